"""What requests are accepted, what rejected ones are told, and what of it an instance sees."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from config.proxy import FORM_TYPE, ProxyFiles
from handlers import request
from tests.proxy.backends import Backend
from tests.proxy.proxies import PATH, TOKEN, Answer, Proxy, head_of, open_proxy, read_answer, wait_for

CONTINUE = "expect: 100-continue"
FORM = "content-type: application/x-www-form-urlencoded"
PREFLIGHT = ("origin: https://a.example", "access-control-request-method: POST")


def assert_rejected(answer: Answer, status: int) -> None:
    """In the kit's form."""
    assert answer.status == status
    said = json.loads(answer.body)
    assert said["code"] == status
    assert said["error"]
    assert answer.body.endswith(b"}\n")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.headers["x-request-id"]) == 36
    assert ("retry-after" in answer.headers) == (status == 503)


def bearer(value: str) -> tuple[tuple[str], dict[str, str]]:
    """In place of the usual one."""
    return (f"authorization: {value}",), {"token": ""}


@pytest.mark.parametrize(
    ("headers", "asked", "status"),
    [
        ((), {"token": ""}, 401),
        ((), {"token": "of-client"}, 401),
        (("authorization: Bearer other",), {}, 401),
        ((f"authorization: Bearer {TOKEN}",), {}, 401),
        (*bearer("of-clients"), 401),
        (*bearer("Basic of-clients"), 401),
        (*bearer("bearer OF-CLIENTS"), 401),
        (*bearer("bearer of-clients x"), 401),
        ((), {"path": "/models", "method": "GET", "token": ""}, 401),
        (PREFLIGHT, {"token": ""}, 401),
        ((), {"path": "/predictions/other"}, 404),
        ((), {"path": f"{PATH}/2.0"}, 404),
        ((), {"path": f"{PATH}/1x0"}, 404),
        ((), {"path": f"{PATH}/1.0/1.0"}, 404),
        ((), {"path": f"{PATH}/../../models"}, 404),
        ((), {"method": "DELETE"}, 405),
        ((), {"method": "OPTIONS"}, 405),
        ((FORM,), {}, 415),
        (("Content-Encoding: gzip",), {}, 415),
        (("content-encoding: identity, br",), {}, 415),
        (("content-encoding: identity", "content-encoding: gzip"), {}, 415),
        (("content-encoding: gzip", "content-encoding: identity"), {}, 415),
        (("content-type: image/jpeg", "Content-Type: multipart/form-data"), {}, 400),
        (PREFLIGHT, {"method": "OPTIONS", "token": ""}, 403),
        (PREFLIGHT, {"method": "OPTIONS"}, 403),
        (("x-deadline-ms: 0",), {}, 400),
        (("x-deadline-ms: 300001",), {}, 400),
        (("x-deadline-ms: 1e3",), {}, 400),
        (('x-deadline-ms: "}',), {}, 400),
        (("x-deadline-ms: -1",), {}, 400),
        (("x-deadline-ms: 5", "x-deadline-ms: 900000"), {}, 400),
        ((f"x-long: {'y' * 20_000}",), {}, 431),
    ],
)
def test_rejected(quiet: Proxy, headers, asked, status):
    assert_rejected(quiet.ask(b"x", *headers, **asked), status)
    assert not quiet.list_seen()


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        ("no", ["content-length: 9"], 401),
        (TOKEN, [CONTINUE, "content-length: 16777217"], 413),
        (TOKEN, [CONTINUE, "content-length: 9", "content-encoding: gzip"], 415),
        (TOKEN, [CONTINUE, "transfer-encoding: chunked", "content-encoding: gzip"], 415),
    ],
)
def test_what_is_rejected_is_rejected_before_the_body(quiet: Proxy, token, headers, status):
    with quiet.connect() as connection:
        connection.sendall(head_of(None, *headers, token=token))
        answer = read_answer(connection)
    assert_rejected(answer, status)
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ((f"authorization: bearer {TOKEN}",), {"token": ""}),
        ((f"Authorization: BEARER  {TOKEN}",), {"token": ""}),
        (("content-encoding: Identity",), {}),
        ((), {"path": f"{PATH}/1.0"}),
        ((), {"path": f"{PATH}/1.0?a=b"}),
        (PREFLIGHT, {}),
    ],
)
def test_accepted(quiet: Proxy, headers, asked):
    assert quiet.ask(b"x", *headers, **asked).status == 200
    assert [seen.target for seen in quiet.list_seen()] == [PATH]


@pytest.mark.parametrize("size", [5, 2_000_000])
@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ('multipart/form-data; boundary="aB c"', 'x-multipart/form-data; boundary="aB c"'),
        ("Multipart/Form-Data;boundary=x", "x-multipart/Form-Data;boundary=x"),
        (" multipart/mixed", "x-multipart/mixed"),
        (f"multipart/form-data; boundary={'y' * 12_000}", f"x-multipart/form-data; boundary={'y' * 12_000}"),
        ("image/jpeg", "image/jpeg"),
        ("text/plain; a=multipart/form-data", "text/plain; a=multipart/form-data"),
    ],
)
def test_a_form_is_hidden_from_torchserve(quiet: Proxy, sent, seen, size):
    assert quiet.ask(b"x" * size, f"Content-TYPE:{sent}").status == 200
    [one] = quiet.list_seen()
    assert (one.header("content-type"), one.count("content-type"), one.body_bytes) == (seen, 1, size)


def test_the_handlers_know_the_name_of_a_hidden_form():
    assert FORM_TYPE == request.FORM_TYPE


def test_the_largest_is_accepted(quiet: Proxy):
    assert quiet.ask(b"x" * 16_777_216).status == 200


@pytest.mark.parametrize("size", [5, 300_000, 2_000_000])
@pytest.mark.parametrize(
    "how",
    [
        ["-T", "FILE"],
        ["--data-binary", "@FILE", "-H", "Content-Type: image/jpeg"],
        ["-H", "Transfer-Encoding: chunked", "-T", "FILE"],
        ["-H", "Expect: 100-continue", "-T", "FILE"],
        ["-F", "data=@FILE"],
        ["-0", "-T", "FILE"],
    ],
)
def test_curl(quiet: Proxy, tmp_path, how, size):
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"x" * size)
    arguments = [part.replace("FILE", str(file)) for part in how]
    url = f"http://127.0.0.1:{quiet.port}{PATH}"
    answered = subprocess.run(
        ["curl", "-sS", "-m", "60", "-H", f"Authorization: Bearer {TOKEN}", *arguments, url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "by" in json.loads(answered.stdout)
    assert answered.stderr == ""
    assert [one.body_bytes >= size for one in quiet.list_seen()] == [True]


def test_100_continue_is_from_haproxy(proxy: Proxy):
    for instance in proxy.instances.values():
        instance.reads_bodies.clear()
    with proxy.connect() as connection:
        connection.sendall(head_of(16, CONTINUE))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")


def test_what_an_instance_sees(quiet: Proxy):
    sent = ("describe: True", "x-kit-deadline-ms: 1", "X-KIT-other: 2", "x-request-id: mine", "a: b")
    assert quiet.ask(b"x", *sent, path=f"{PATH}?describe=1").status == 200
    [seen] = quiet.list_seen()
    assert (seen.target, seen.header("a"), seen.header("connection")) == (PATH, "b", "close")
    assert seen.count("authorization", "describe", "x-kit-deadline-ms", "x-kit-other") == 0
    assert [len(value) for value in seen.list_values("x-request-id")] == [36]


def test_what_is_no_http_is_told_so_by_haproxy_itself(quiet: Proxy):
    """Its own page: 2.6 takes no other for what it cannot parse."""
    with quiet.connect() as connection:
        connection.sendall(b"HELLO\r\n\r\n")
        assert read_answer(connection).status == 400


def test_another_token(proxy: Proxy):
    proxy.runtime.set_token("next")
    assert proxy.ask().status == 401
    assert proxy.ask(token="next").status == 200


def test_health_is_the_supervisors(proxy: Proxy):
    def ask(path: str, method: str = "GET") -> Answer:
        return proxy.ask(b"", path=path, method=method, token="")

    assert_rejected(ask("/ready"), 503)
    supervisor = Backend("supervisor", proxy.files.supervisor_socket)
    assert [ask(path).status for path in ("/ready", "/live", "/ping")] == [200, 200, 200]
    assert [seen.target for seen in supervisor.requests] == ["/ready", "/live", "/ready"]
    supervisor.mode = "503"
    assert json.loads(ask("/ready").body) == {"by": "supervisor"}
    assert_rejected(ask("/ready", "POST"), 405)
    supervisor.mode = "hang"
    hung = ask("/live")
    assert_rejected(hung, 504)
    assert hung.seconds < 30
    supervisor.die()


def test_metrics(quiet: Proxy):
    answer = subprocess.run(
        ["curl", "-sS", f"http://127.0.0.1:{quiet.port + 2}/metrics"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 'haproxy_backend_current_queue{proxy="resnet50"} 0' in answer.stdout


def test_the_log_has_failures_of_clients_with_a_token_alone(proxy: Proxy):
    proxy.set_all(mode="500")
    failed = proxy.ask(path=f"{PATH}?secret")
    proxy.ask(token="secret")
    assert failed.status == 500
    wait_for(lambda: "POST /predictions/resnet50" in proxy.log.read_text())
    log = proxy.log.read_text()
    assert "secret" not in log
    assert " 401 " not in log
    assert proxy.list_seen()[0].header("x-request-id") in log


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        capture_output=True, check=True,
    )  # fmt: skip

    def join(files: ProxyFiles) -> None:
        Path(files.certificate).write_text(cert.read_text() + key.read_text(), encoding="utf-8")

    with open_proxy(prepare=join, tls_cert=str(cert), tls_key=str(key)) as proxy:
        url = f"https://localhost:{proxy.port}{PATH}"
        answered = subprocess.run(
            ["curl", "-sS", "--cacert", cert, "-H", f"Authorization: Bearer {TOKEN}", "-T", cert, url],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(answered.stdout) == {"by": "a1"}
