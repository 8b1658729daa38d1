"""What hides a second request in a first one never gets a second one to an instance."""

from __future__ import annotations

import pytest

from tests.proxy.proxies import PATH, TOKEN, Proxy, read_answer

HEAD = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
HIDDEN = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nx-hidden: yes\r\ncontent-length: 1\r\n\r\nx"
ALL = len(HIDDEN)
CL, TE = "content-length", "transfer-encoding"

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
"""What stands behind HEAD and before HIDDEN."""


@pytest.mark.parametrize("trick", TRICKS)
def test_a_hidden_request_never_arrives(quiet: Proxy, trick: str):
    """It has no token, so that the proxy itself refuses it where it takes it for a second request."""
    with quiet.connect() as connection:
        connection.sendall(f"{HEAD}{TRICKS[trick]}{HIDDEN}".encode("latin-1"))
        first = read_answer(connection)
    assert first.status in (200, 400, 401, 501)
    seen = quiet.list_seen()
    assert len(seen) <= 1
    for one in seen:
        assert one.header("x-hidden") is None
        assert one.head.count(b"HTTP/1.1") == 1
        assert one.count(CL, TE) == 1


def test_http_1_0_has_no_chunks(quiet: Proxy):
    with quiet.connect() as connection:
        connection.sendall(f"{HEAD}{TE}: chunked\r\n\r\n0\r\n\r\n{HIDDEN}".replace("1.1", "1.0").encode())
        assert read_answer(connection).status == 400
    assert not quiet.list_seen()


def test_two_requests_of_one_connection_come_to_instances_on_two(quiet: Proxy):
    """And are answered in their order."""
    both = f"{HEAD}x-n: 1\r\ncontent-length: 1\r\n\r\nx{HEAD}x-n: 2\r\ncontent-length: 1\r\n\r\nx"
    with quiet.connect() as connection:
        connection.sendall(both.encode())
        answered = b""
        while answered.count(b"HTTP/1.1 200") < 2 and (part := connection.recv(1 << 16)):
            answered += part
    assert answered.startswith(b"HTTP/1.1 200")
    assert answered.count(b"HTTP/1.1 200") == 2
    seen = quiet.list_seen()
    assert sorted(one.header("x-n") or "" for one in seen) == ["1", "2"]
    assert all(one.header("connection") == "close" for one in seen)
