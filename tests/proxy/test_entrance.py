"""What is accepted, what rejected ones are told, what instances see: no second request within a first."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from config.proxy import FORM_TYPE, PROTOCOL
from handlers import request
from server.supervisor.requests import parse_line
from tests.proxy.backends import Backend
from tests.proxy.proxies import (
    FOREIGN,
    MODEL,
    PATH,
    TOKEN,
    Answer,
    Proxy,
    head_of,
    open_proxy,
    planned,
    wait_for,
)

CONTINUE, FORM = "expect: 100-continue", "content-type: application/x-www-form-urlencoded"
ENCODED, TYPED = "content-encoding: {}".format, "content-type: {}".format
PREFLIGHT = ("origin: https://a.example", "access-control-request-method: POST")
OTHERS = f"/predictions/{FOREIGN}"


def assert_rejected(answer: Answer, status: int) -> None:
    """In the kit's form."""
    said = json.loads(answer.body)
    assert (answer.status, said["code"], bool(said["error"])) == (status, status, True)
    assert answer.body.endswith(b"}\n")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.headers["x-request-id"]) == 36
    assert ("retry-after" in answer.headers) == (status == 503)
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)


def ask(*headers: str, **asked: str) -> tuple[tuple[str, ...], dict[str, str]]:
    return headers, asked


REJECTED = {
    401: [
        ask(token=""), ask(*PREFLIGHT, token=""), ask(path="/models", method="GET", token=""),
        ask(path=OTHERS, token=""), ask(token="of-client"),
        *(ask(f"authorization: Bearer {token}") for token in ("other", TOKEN)),
        *(ask(f"authorization: {value}", token="")
          for value in ("of-clients", "Basic of-clients", "bearer OF-CLIENTS", "bearer of-clients x")),
    ],
    403: [ask(*PREFLIGHT, method="OPTIONS", **given) for given in ({"token": ""}, {})],
    404: [ask(path=path) for path in (
        *(PATH + end for end in ("/2.0", "/1x0", "/1.0/1.0", "/../../models", "/2.0%20b")),
        *(OTHERS + end for end in ("/3.0", "/2.0", "/1.0/../../../models")),
        "/predictions/other", f"/explanations/{FOREIGN}",
    )],
    405: [ask(method="DELETE"), ask(method="OPTIONS"), ask(path=OTHERS, method="GET"),
          ask(path=f"/v2/models/{MODEL}/infer", method="PUT")],
    415: [
        ask(FORM), ask("Content-Encoding: gzip"), ask(ENCODED("identity, br")),
        ask(ENCODED("identity"), ENCODED("gzip")), ask(ENCODED("gzip"), ENCODED("identity")),
    ],
    400: [
        ask(TYPED("image/jpeg"), "Content-Type: multipart/form-data"),
        ask(TYPED("a/b"), TYPED("multipart/form-data"), path=OTHERS), ask("x-deadline-ms: 0", path=OTHERS),
        *(ask(f"x-deadline-ms: {value}") for value in ("0", "300001", "1e3", '"}', "-1")),
        ask("x-deadline-ms: 5", "x-deadline-ms: 900000"),
    ],
    431: [ask(f"x-long: {'y' * 20_000}")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "headers", "asked"), [(status, *one) for status, some in REJECTED.items() for one in some]
)
def test_rejected(quiet: Proxy, status, headers, asked):
    assert_rejected(quiet.ask(b"x", *headers, **asked), status)
    assert not quiet.list_seen()


@pytest.mark.parametrize(
    ("token", "headers", "status"),
    [
        ("no", ["content-length: 9"], 401),
        (TOKEN, [CONTINUE, "content-length: 16777217"], 413),
        (TOKEN, [CONTINUE, "content-length: 9", ENCODED("gzip")], 415),
        (TOKEN, [CONTINUE, "transfer-encoding: chunked", ENCODED("gzip")], 415),
    ],
)
def test_what_is_rejected_is_rejected_before_the_body(quiet: Proxy, token, headers, status):
    assert_rejected(quiet.exchange(head_of(None, *headers, token=token)), status)


def test_100_continue_is_from_haproxy(quiet: Proxy):
    with quiet.connect() as connection:
        connection.sendall(head_of(16, CONTINUE))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    assert not quiet.list_seen()


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ask(f"authorization: bearer {TOKEN}", token=""), ask(f"Authorization: BEARER  {TOKEN}", token=""),
        ask(ENCODED("Identity")), ask(path=f"{PATH}/1.0"), ask(path=f"{PATH}/1.0?a=b"), ask(*PREFLIGHT),
        ask("describe: 1", "x-kit-deadline-ms: 1", "X-KIT-a: 2", "x-request-id: a", path=f"{PATH}?describe"),
    ],
)  # fmt: skip
def test_accepted_and_what_an_instance_sees(quiet: Proxy, headers, asked):
    assert quiet.ask(b"x", "a: b", *headers, **asked).status == 200
    [seen] = quiet.list_seen()
    assert (seen.target, seen.header("a"), seen.header("connection")) == (PATH, "b", "close")
    assert seen.list_values("authorization", "describe", "x-kit-deadline-ms", "x-kit-a") == []
    assert [len(value) for value in seen.list_values("x-request-id")] == [36]


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        (PATH, []), (f"/v2/models/{MODEL}/infer", ["v2"]), (f"/v2/models/{MODEL}/versions/1.0/infer", ["v2"]),
        (f"/v1/models/{MODEL}:predict", ["v1"]),
    ],
)  # fmt: skip
def test_an_address_has_a_protocol_whatever_the_client_says(quiet: Proxy, path, protocol):
    assert quiet.ask(b"x", "x-kit-protocol: openai", path=path).status == 200
    [seen] = quiet.list_seen()
    assert (seen.target, seen.list_values(PROTOCOL)) == (PATH, protocol)
    assert PROTOCOL == request.PROTOCOL


@pytest.mark.parametrize("size", [5, 16_777_216])
@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        *(('multipart/form-data; boundary=' + end, 'x-multipart/form-data; boundary=' + end)
          for end in ('"aB c"', 'y' * 12_000)),
        ("Multipart/Form-Data;boundary=x", "x-multipart/Form-Data;boundary=x"),
        (" multipart/mixed", "x-multipart/mixed"),
        *((other, other) for other in ("image/jpeg", "text/plain; a=multipart/form-data")),
    ],
)  # fmt: skip
def test_a_form_is_hidden_from_torchserve_and_known_to_handlers(quiet: Proxy, sent, seen, size):
    assert quiet.ask(b"x" * size, f"Content-TYPE:{sent}").status == 200
    [one] = quiet.list_seen()
    assert (one.list_values("content-type"), one.body_bytes) == ([seen], size)
    assert FORM_TYPE == request.FORM_TYPE


@pytest.mark.parametrize(
    "target", [OTHERS, f"{OTHERS}/1.0", f"{OTHERS}/2.0%20b?top=3&x", f"{OTHERS}?a=/../b"]
)
@pytest.mark.parametrize("form", [FORM, TYPED('multipart/form-data; boundary="aB c"'), TYPED("a/b")])
@pytest.mark.parametrize("size", [5, 2_000_000])
def test_others_archives_get_requests_unchanged_but_for_token_and_headers_of_the_kit(
    quiet: Proxy, target, form, size
):
    answer = quiet.ask(b"x" * size, form, "a: b", "describe: True", "x-kit-deadline-ms: 1", path=target)
    assert (answer.status, json.loads(answer.body)) == (200, {"by": "a3"})
    [seen] = quiet.list_seen()
    assert (seen.target, seen.body_bytes, seen.list_values("a")) == (target, size, ["b"])
    assert [TYPED(value) for value in seen.list_values("content-type")] == [form]
    assert seen.list_values("authorization", "describe", "x-kit-deadline-ms") == []
    assert [len(value) for value in seen.list_values("x-request-id")] == [36]


def curl(*arguments: str) -> str:
    done = subprocess.run(
        ["curl", "-sS", "-m", "60", "-H", f"Authorization: Bearer {TOKEN}", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("size", [5, 300_000, 2_000_000])
@pytest.mark.parametrize(
    "how",
    ["-T FILE", "--data-binary @FILE -H Content-Type:image/jpeg", "-H Transfer-Encoding:chunked -T FILE",
     "-H Expect:100-continue -T FILE", "-F data=@FILE", "-0 -T FILE"],
)  # fmt: skip
def test_curl(quiet: Proxy, tmp_path, how, size):
    (file := tmp_path / "photo.jpg").write_bytes(b"x" * size)
    said = curl(*how.replace("FILE", str(file)).split(), f"http://127.0.0.1:{quiet.port}{PATH}")
    assert "by" in json.loads(said)
    assert [one.body_bytes >= size for one in quiet.list_seen()] == [True]


def test_health_and_metrics_are_the_supervisors_and_haproxys_own_beside_them(proxy: Proxy):
    def look(path: str, method: str = "GET") -> Answer:
        return proxy.ask(b"", path=path, method=method, token="")

    assert_rejected(look("/ready"), 503)
    supervisor = Backend("supervisor", proxy.files.supervisor_socket)
    paths = ("/ready", "/live", "/ping", "/v2/health/ready", "/v2/health/live")
    assert [look(path).status for path in paths] == [200] * 5
    assert [seen.target for seen in supervisor.requests] == ["/ready", "/live", "/ready", "/ready", "/live"]
    page, metrics = f"http://127.0.0.1:{proxy.port + 2}", f"http://127.0.0.1:{proxy.port + 2}/metrics"
    assert json.loads(curl(metrics)) == {"by": "supervisor"}
    assert json.loads(curl(f"{page}/other"))["code"] == 404
    supervisor.set(mode="503")
    assert json.loads(look("/ready").body) == {"by": "supervisor"}
    assert_rejected(look("/ready", "POST"), 405)
    supervisor.set(mode="hang")
    hung = look("/live")
    assert_rejected(hung, 504)
    assert hung.seconds < 30
    supervisor.die()
    assert 'haproxy_backend_current_queue{proxy="resnet50"} 0' in curl(f"{metrics}/proxy")
    assert proxy.list_reasons(0) == []  # neither probes nor scrapes are requests


def test_each_request_leaves_its_reason_and_no_secret_and_the_token_can_change(proxy: Proxy):
    proxy.set_all(mode="500")
    asked = [proxy.ask(path=f"{PATH}?secret"), proxy.ask(token="secret"), proxy.ask(path="/x")]
    assert [one.status for one in (*asked, proxy.ask(b"x", FORM))] == [500, 401, 404, 415]
    reasons = [(401, "token"), (404, "bad_request"), (415, "bad_request"), (500, "instance_failed")]
    assert proxy.list_reasons(4) == reasons
    log = proxy.log.read_text()
    assert "secret" not in log
    assert proxy.list_seen()[0].header("x-request-id") in log
    proxy.runtime.set_token("next")
    assert [proxy.ask().status, proxy.ask(token="next").status] == [401, 500]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(("sent", "logged"), [(f"00-{TRACE}-00f067aa0ba902b7-01", TRACE), ("00-x y-1-1", "")])
def test_a_trace_is_passed_on_and_in_the_log(proxy: Proxy, sent, logged):
    assert proxy.ask(b"x", f"traceparent: {sent}", "x-kit-cause: of a client").status == 200
    wait_for(lambda: proxy.list_reasons(1) and proxy.log.read_text().count("request ") == 2)
    lines = [*filter(None, map(parse_line, proxy.log.read_text().splitlines()))]
    assert {(line.trace, line.cause) for line in lines if not line.second} == {(logged, "")}
    [seen] = proxy.list_seen()
    assert (seen.header("traceparent"), seen.list_values("x-kit-cause")) == (sent, [])
    assert abs(int(seen.header("x-kit-began-us")) / 1e6 - time.time()) < 60


OURS = "https://app.example"


@planned(cors_origin=OURS)
def test_pages_of_one_origin_are_served(proxy: Proxy):
    ask = ("access-control-request-method: POST",)
    allowed = proxy.ask(b"", f"origin: {OURS}", *ask, method="OPTIONS", token="")
    assert (allowed.status, allowed.body) == (204, b"")
    assert allowed.headers["access-control-allow-origin"] == OURS
    assert "authorization" in allowed.headers["access-control-allow-headers"]
    assert_rejected(proxy.ask(b"", "origin: https://other.example", *ask, method="OPTIONS"), 403)
    for token, status in ((TOKEN, 200), ("", 401)):  # an error, too, is to be read
        answer = proxy.ask(b"x", f"origin: {OURS}", token=token)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, OURS)
    other = proxy.ask(b"x", "origin: https://app.example.evil")
    assert (other.status, other.headers["vary"]) == (200, "origin")
    assert "access-control-allow-origin" not in other.headers


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        capture_output=True, check=True,
    )  # fmt: skip
    with open_proxy(
        certificate=cert.read_text() + key.read_text(), tls_cert=str(cert), tls_key=str(key)
    ) as proxy:
        said = curl("--cacert", str(cert), "-T", str(cert), f"https://localhost:{proxy.port}{PATH}")
        assert json.loads(said) == {"by": "a1"}


HEAD = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
HIDDEN = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nx-hidden: yes\r\ncontent-length: 1\r\n\r\nx"
ALL, CL, TE = len(HIDDEN), "content-length", "transfer-encoding"
TRICKS = {
    "CL and TE": f"{CL}: {ALL + 5}\r\n{TE}: chunked\r\n\r\n0\r\n\r\n",
    "TE and CL": f"{TE}: chunked\r\n{CL}: 5\r\n\r\n0\r\n\r\n",
    "two CLs": f"{CL}: 1\r\n{CL}: {ALL + 1}\r\n\r\nx",
    "a list of CLs": f"{CL}: 1, {ALL + 1}\r\n\r\nx",
    "CL with a sign": f"{CL}: +1\r\n\r\nx",
    "TE twice": f"{TE}: chunked\r\n{TE}: identity\r\n\r\n0\r\n\r\n",
    "TE unknown": f"{TE}: xchunked\r\n{CL}: 1\r\n\r\nx",
    "TE behind a tab": f"{TE}:\tchunked\r\n{CL}: 1\r\n\r\n0\r\n\r\n",
    "blank before the colon": f"{CL} : {ALL}\r\n\r\n",
    "folded": f"x-a: b\r\n {CL}: 1\r\n{TE}:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare LF": f"x-a: b\n{CL}: 1\r\n\r\nx",
    "bare CR": f"x-a: b\r{CL}: 1\r\n\r\n",
    "NUL": f"x-a: b\0c\r\n{CL}: 1\r\n\r\nx",
    "bad chunk": f"{TE}: chunked\r\n\r\n1;\nx\r\n0\r\n\r\n",
    "chunk of too many": f"{TE}: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n0\r\n\r\n",
    "upgrade": f"connection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n{CL}: 1\r\n\r\nx",
    "connection names": f"connection: authorization, {CL}\r\n{CL}: 1\r\n\r\nx",
    "pipelined": f"{CL}: 1\r\n\r\nx",
}
"""What stands behind HEAD and before HIDDEN, which has no token: a second request of it is rejected."""


@pytest.mark.parametrize("trick", TRICKS)
def test_a_hidden_request_never_arrives(quiet: Proxy, trick: str):
    first = quiet.exchange(f"{HEAD}{TRICKS[trick]}{HIDDEN}".encode("latin-1"))
    assert first.status in (200, 400, 401, 501)
    seen = [(one.head.count(b"HTTP/1.1"), len(one.list_values(CL, TE))) for one in quiet.list_seen()]
    assert seen in ([], [(1, 1)])
    assert not any(one.list_values("x-hidden") for one in quiet.list_seen())


@pytest.mark.parametrize(
    "sent", [f"{HEAD}{TE}: chunked\r\n\r\n0\r\n\r\n{HIDDEN}".replace("1.1", "1.0"), "HELLO\r\n\r\n"]
)
def test_http_1_0_has_no_chunks_and_what_is_no_http_is_told_so_by_haproxys_own_page(quiet: Proxy, sent: str):
    assert quiet.exchange(sent.encode()).status == 400
    assert not quiet.list_seen()


def test_two_requests_of_one_connection_come_to_instances_on_two_and_are_answered_in_their_order(
    quiet: Proxy,
):
    with quiet.connect() as connection:
        connection.sendall("".join(f"{HEAD}x-n: {number}\r\n{CL}: 1\r\n\r\nx" for number in (1, 2)).encode())
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 2 and (part := connection.recv(1 << 16)):
            answered += part
    assert answered.startswith(b"HTTP/1.1 200")
    assert answered.count(b"HTTP/1.1 200") == 2
    seen = quiet.list_seen()
    assert sorted(one.header("x-n") for one in seen) == ["1", "2"]
    assert all(one.header("connection") == "close" for one in seen)
