"""HAProxy's runtime socket: what is asked, and what is made of the answers. tests/proxy/ has a real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.haproxy import HaproxyError, Runtime, Stat

COLUMNS = "pxname,svname,qcur,scur,slim,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_5xx,rtime,act,status,"
STATS = f"""\
# {COLUMNS}
bert.entry,queue,0,7,,5,0,1,2,3,1,UP,
bert.entry,BACKEND,0,7,1,5,0,1,2,3,1,UP,
bert.large.entry,queue,0,2,,5,0,1,2,3,1,UP,
bert.large.entry,BACKEND,0,2,1,5,0,1,2,3,1,UP,
bert,a1,0,3,16,50,0,4,1,90,1,UP,
bert,a2,0,2,16,40,0,,0,80,1,UP,
bert,BACKEND,4,9,,90,0,4,7,85,2,UP,
bert.large,a1,0,1,3,6,0,0,0,300,1,UP,
bert.large,a2,0,0,3,0,0,0,0,0,1,MAINT,
bert.large,BACKEND,1,2,,6,0,0,0,300,2,UP,

"""
ACLS = (
    "# id (file) description\n"
    "0 () acl 'path' file '/run/haproxy.cfg' line 5. curr_ver=0 next_ver=0 entry_cnt=3\n"
    "1 (/run/of a/bearers.lst) pattern loaded from file '/run/of a/bearers.lst' used by acl at file "
    "'/run/haproxy.cfg' line 71. curr_ver=0 next_ver=0 entry_cnt=1\n\n"
)


class FakeHaproxy:
    """Answers each command by its beginning, with nothing where none is known."""

    def __init__(self, path: Path) -> None:
        self.answers = {"show stat": STATS, "show acl": ACLS, "prepare acl": "New version created: 4\n\n"}
        self.heard: list[str] = []
        self._listener = socket.create_server(str(path), family=socket.AF_UNIX)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                command = connection.recv(4096).decode().strip()
                self.heard.append(command)
                known = (text for begin, text in self.answers.items() if command.startswith(begin))
                connection.sendall(next(known, "\n").encode())

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def haproxy(tmp_path: Path) -> Iterator[FakeHaproxy]:
    fake = FakeHaproxy(tmp_path / "admin.sock")
    yield fake
    fake.end()


@pytest.fixture
def runtime(haproxy: FakeHaproxy, tmp_path: Path) -> Runtime:
    return Runtime(tmp_path / "admin.sock")


def test_stats_are_of_models_and_limits_and_requests_of_instances(runtime: Runtime):
    assert runtime.read_stats() == {
        "bert": Stat(
            answered=50 + 4 + 1 + 40 + 6, queued=5, in_hand=6, service_ms=85.0, up=2,
            asleep={"bert/a1": 16, "bert/a2": 16, "bert.large/a1": 3},
        )
    }  # fmt: skip
    assert runtime.read_limits() == {"bert/a1": 16, "bert/a2": 16, "bert.large/a1": 3, "bert.large/a2": 3}
    assert (runtime.count_without_response(), runtime.count_in_hand(["a1"])) == (9, 4)


def test_a_queue_is_woken_by_its_limit_and_a_token_replaces_the_other_in_one_step(haproxy, runtime):
    runtime.wake(runtime.read_stats()["bert"])
    runtime.set_token("abc")
    wanted = [f"set maxconn server {one}" for one in ("bert/a1 16", "bert/a2 16", "bert.large/a1 3")]
    wanted += ["show acl", "prepare acl #1", r"add acl @4 #1 Bearer\ abc", "commit acl @4 #1"]
    assert haproxy.heard[1:] == wanted


@pytest.mark.parametrize(
    ("command", "answer", "message"),
    [
        ("add acl", "Unknown ACL identifier.\n", "HAProxy does not add acl @4: Unknown ACL identifier."),
        ("prepare acl", "No.\n", "prepares no other list of tokens"),
        ("show acl", "\n", "has no list of tokens"),
    ],
)
def test_a_token_that_is_not_taken(haproxy, runtime, command, answer, message):
    haproxy.answers[command] = answer
    with pytest.raises(HaproxyError, match=message) as caught:
        runtime.set_token("abc")
    assert "abc" not in str(caught.value)


def test_no_statistics_and_what_haproxy_rejects_are_errors(haproxy: FakeHaproxy, runtime: Runtime):
    for answer in ("", "Permission denied\n"):
        haproxy.answers["show stat"] = answer
        with pytest.raises(HaproxyError, match="no statistics"):
            runtime.read_stats()
    haproxy.answers["set server"] = "No such server.\n"
    with pytest.raises(HaproxyError, match=r"does not set server bert/zz: No such server\."):
        runtime.set_serving("bert", "zz", 1, 1)
