"""The real Locust against the fake server: what it does is recorded, counted and validated right.

Bounds are one-sided where time is involved: a slow machine only makes waits longer.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.drivers import HERE, LOCUSTFILE, ROOT, Generators, Outcome, parse_generators, run_locust
from loadtest.errors import LoadTestError
from loadtest.payloads.payload import Payload, make_plain_text, make_text
from loadtest.rows import cut_window, find_good, find_latency
from tests.loadtest.fake_server import Asked, Behaviour, answer_to, serving
from tests.loadtest.making import make_load

PAYLOADS = [make_text(f"text {n}", "word " * n, model="bert") for n in range(1, 4)]
PAYLOADS.append(make_plain_text("plain", "a text", model="other"))
BYTES = Payload(name="bytes", body=b"\x00\xff{", content_type="application/octet-stream", model="other")
PAYLOADS.append(BYTES)
READS_NO_TOKEN = """
import sys, locust.main, pathlib
whole = pathlib.Path.read_text
def read(path, *more, **how):
    assert path.name != "token", "it is on another machine"
    return whole(path, *more, **how)
pathlib.Path.read_text = read
sys.exit(locust.main.main())
"""
OWN = """
from locust import HttpUser, task

class Visitor(HttpUser):
    @task
    def look(self):
        self.client.post("/predictions/bert", data="a text")
"""


def send(
    folder: Path,
    behaviour: Behaviour,
    *,
    rate: float | None = None,
    generators: Generators = HERE,
    **changes: Any,
) -> tuple[Outcome, Asked]:
    timing = {"warm_up_s": 1.0, "duration_s": 3.0, "timeout_s": 10.0}
    load = make_load(rate, models=("bert", "other"), **{**timing, **changes})
    with serving(behaviour) as server:
        outcome = run_locust(
            load, url=server.url, token="secret", payloads=PAYLOADS, generators=generators, folder=folder
        )
    assert server.asked.requests == len(outcome.rows)
    return outcome, server.asked


def count_wrong(outcome: Outcome) -> int:
    """Good ones that are not the fake server's answer to their payload."""
    good = outcome.rows[find_good(outcome.rows)]
    pairs = zip(good["payload"], good["answer"], strict=True)
    return sum(
        json.loads(outcome.answers[number]) != answer_to(PAYLOADS[sent].body) for sent, number in pairs
    )


def test_an_open_loop_sends_what_was_planned_and_sees_a_pause_whole(tmp_path):
    """A pause of 1 s starts 2 s after the first request: it holds no later one up, and all of it is seen."""
    behaviour = Behaviour(pause_every_s=2, pause_s=1, workers=64)
    outcome, asked = send(tmp_path, behaviour, rate=50.0)
    rows = outcome.rows
    assert asked.list_values("Authorization") == {"Bearer secret"}
    assert find_good(rows).all()
    assert (rows["sent"] - rows["due"] >= -0.002).all()
    window = cut_window(rows, 0, 3)
    assert len(window) == pytest.approx(150, abs=60)
    # Each that is due in it waits for its end, those 0.75 s before that too.
    ends = rows["sent"].min() + 3
    held = rows[(rows["due"] > ends - 0.75) & (rows["due"] < ends - 0.1)]
    assert len(held) >= 10
    assert (held["ended"] >= ends - 0.01).all()
    assert find_latency(rows).max() >= 0.8
    assert max(((rows["sent"] <= at) & (rows["ended"] > at)).sum() for at in rows["sent"]) >= 20
    assert count_wrong(outcome) == 0


def test_failures_of_every_kind_are_counted(tmp_path):
    behaviour = Behaviour(error_each=10, hang_up_each=11, drip_each=13, drip_s=0.3, wrong_each=17)
    outcome, _ = send(tmp_path, behaviour, rate=50.0, timeout_s=5.0)
    rows = outcome.rows
    assert {text.split(":")[0] for text in rows["error"] if text} == {
        "LocustBadStatusCode", "HTTPConnectionClosed", "Timeout",
    }  # fmt: skip
    asked = np.arange(1, len(rows) + 1)
    hung, failed = asked % 11 == 0, (asked % 10 == 0) & (asked % 11 != 0)
    slow = (asked % 13 == 0) & (asked % 10 != 0) & (asked % 11 != 0)
    assert int((~find_good(rows)).sum()) == int((hung | failed | slow).sum())
    assert count_wrong(outcome) == int(((asked % 17 == 0) & ~(hung | failed | slow)).sum())


def test_a_closed_loop_keeps_its_users_busy_and_no_more(tmp_path):
    outcome, asked = send(tmp_path, Behaviour(service_s=0.01, workers=4), users=8)
    rows = outcome.rows
    assert find_good(rows).all()
    assert rows["due"].isna().all()
    busy = [int(((rows["sent"] <= at) & (rows["ended"] > at)).sum()) for at in np.linspace(0, 2.9, 50)]
    assert max(busy) <= 8
    assert asked.connections == 8
    assert rows["sent"].max() > 3.0  # the load goes on behind the window
    kinds = {body: (path, headers["Content-Type"]) for path, body, headers in asked.received}
    assert kinds == {one.body: (one.path, one.content_type) for one in PAYLOADS}


def test_payloads_are_sent_in_order_or_evenly_shuffled(tmp_path):
    listed, _ = send(tmp_path, Behaviour(), users=1, in_order=True, duration_s=1.0)
    assert listed.rows["payload"].tolist() == [number % 5 for number in range(len(listed.rows))]
    shuffled, _ = send(tmp_path, Behaviour(), users=1, duration_s=1.0)
    whole = len(shuffled.rows) // 5 * 5
    counts = Counter(shuffled.rows["payload"][:whole].tolist())
    assert counts == dict.fromkeys(range(5), whole // 5)
    assert shuffled.rows["payload"][:10].tolist() != [*range(5)] * 2


@pytest.mark.parametrize(("rate", "users"), [(60.0, None), (None, 4)])
def test_several_processes_share_the_load_and_all_report(tmp_path, rate, users):
    outcome, asked = send(tmp_path, Behaviour(), rate=rate, users=users, generators=Generators(processes=2))
    assert len(outcome.cpu_shares) == 2
    assert find_good(outcome.rows).all()
    if rate:
        window = cut_window(outcome.rows, 0, 3)
        assert len(window) == pytest.approx(180, abs=5 * 180**0.5)
        assert window["due"].nunique() == len(window)
    else:
        assert asked.connections == 4


def test_generators_elsewhere_are_told_by_the_master_what_to_send(tmp_path):
    """As on another machine: a worker that is given nothing but the master's address."""
    load = make_load(users=2, models=("bert",), payloads="one-text", warm_up_s=0.5, duration_s=1.0)
    there = tmp_path / "there.py"
    there.write_text(READS_NO_TOKEN)
    command = [sys.executable, str(there), "-f", str(LOCUSTFILE), "--worker", "--master-host", "127.0.0.1"]
    with serving() as server, subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as worker:
        outcome = run_locust(
            load, url=server.url, token="secret", payloads=PAYLOADS[:1], folder=tmp_path,
            generators=Generators(processes=1, remote=True),
        )  # fmt: skip
        _, told = worker.communicate(timeout=60)
    assert {path for path, *_ in server.asked.received} == {"/predictions/bert"}
    assert find_good(outcome.rows).all()
    assert b"Traceback" not in told
    assert server.asked.list_values("Authorization") == {"Bearer secret"}


def test_a_server_that_is_not_there_gives_errors_not_figures(tmp_path):
    load = make_load(20.0, warm_up_s=0.0, duration_s=1.0)
    outcome = run_locust(
        load, url="http://127.0.0.1:9", token="", payloads=PAYLOADS, generators=HERE, folder=tmp_path
    )
    assert len(outcome.rows) > 0
    assert set(outcome.rows["status"]) == {0}


def test_a_locustfile_of_ones_own_is_recorded(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(OWN)
    load = make_load(users=3, warm_up_s=0.5, duration_s=1.0, locustfile=str(own))
    with serving(Behaviour(error_each=5)) as server:
        outcome = run_locust(load, url=server.url, token="", payloads=[], generators=HERE, folder=tmp_path)
    assert server.asked.requests == len(outcome.rows) > 20
    assert (~find_good(outcome.rows)).sum() == len(outcome.rows) // 5
    assert (outcome.rows["sent"] <= outcome.rows["ended"]).all()


def test_a_locustfile_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / "own.py").write_text("import nothing_of_this_name")
    load = make_load(users=1, duration_s=1.0, locustfile=str(tmp_path / "own.py"))
    with pytest.raises(LoadTestError, match=r"(?s)without a report: .*nothing_of_this_name"):
        run_locust(load, url="http://127.0.0.1:9", token="", payloads=[], generators=HERE, folder=tmp_path)


def locust(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(LOCUSTFILE),
        "--headless",
        "--only-summary",
        *arguments,
    ]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_it_runs_alone_with_tags_and_locusts_own_files(tmp_path):
    with serving() as server:
        done = locust("--host", server.url, "--tags", "bert", "-u", "2", "-r", "2", "-t", "5", "--csv",
                      str(tmp_path / "x"), "--html", str(tmp_path / "x.html"), cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path for path, *_ in server.asked.received} == {"/predictions/bert"}
    (first, *_) = csv.DictReader((tmp_path / "x_stats.csv").open())
    assert (first["Name"], int(first["Request Count"]) > 0) == ("/predictions/bert", True)
    assert (tmp_path / "x.html").stat().st_size > 1000


def test_a_folder_of_bodies_is_sent_to_any_model(tmp_path):
    bodies = {b"[1, 2]": "application/json", b"\x00\xff": "application/octet-stream"}
    for number, (body, kind) in enumerate(bodies.items()):
        (tmp_path / f"{number}.{'json' if kind.endswith('json') else 'bin'}").write_bytes(body)
    with serving() as server:
        done = locust("--host", server.url, "--model", "router", "--payloads", str(tmp_path), "-t", "2")
    assert done.returncode == 0, done.stderr
    sent = {body: (path, headers["Content-Type"]) for path, body, headers in server.asked.received}
    assert sent == {body: ("/predictions/router", kind) for body, kind in bodies.items()}


def test_a_folder_of_ones_own_a_rate_and_a_token(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "mine.txt").write_text("one text\n\nanother text\n")
    (tmp_path / "token").write_text("abc\n")
    with serving() as server:
        done = locust("--host", server.url, "--model", "router", "--payloads", str(tmp_path / "texts"),
                      "--rate", "20", "--token-file", str(tmp_path / "token"), "-t", "6")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert server.asked.list_values("Authorization") == {"Bearer abc"}
    assert {path for path, *_ in server.asked.received} == {"/predictions/router"}
    assert {json.loads(body)["text"] for _, body, _ in server.asked.received} == {"one text", "another text"}
    assert server.asked.requests == pytest.approx(100, abs=50)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("--tags bert --payloads nothing-there", "PAYLOADS must be one of"),
        ("--model router", "PAYLOADS must be a folder or a set that needs no archive: got none of router"),
        ("--payloads one-text", "--payloads are of one model: got bert, resnet50; add --model or --tags"),
        ("--tags bert --token-file /nothing/there", "No such file"),
    ],
)
def test_a_mistake_in_the_arguments_is_a_sentence(line, wrong):
    done = locust("--host", "http://127.0.0.1:9", "-t", "2", *line.split())
    assert done.returncode != 0
    assert any(wrong in line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr


def test_processes():
    assert parse_generators("") == HERE
    assert parse_generators("3") == Generators(processes=3)
    assert parse_generators("remote:2") == Generators(processes=2, remote=True)
    there = Generators(processes=2, remote=True, address="10.1.0.1")
    assert parse_generators("remote:2@10.1.0.1") == there
    for wrong in ("0", "many", "remote:", "100", "remote:2@", "2@10.1.0.1"):
        with pytest.raises(LoadTestError, match=f"--processes must be 1 to 99, remote:N or .*: got {wrong}$"):
            parse_generators(wrong)
