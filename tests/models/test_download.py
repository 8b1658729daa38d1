"""Downloads: whole or not at all, and given up soon where there is no internet."""

from __future__ import annotations

import functools
import hashlib
import http.server
import socket
import threading
import time

import huggingface_hub
import pytest
import torch

from models.download import check_offered, check_reachable, fetch_checkpoint
from models.errors import BuildError, DownloadError
from models.repository import check_blob, find_cached_repository, locate_repository


def test_an_unreachable_host_is_a_download_error_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(DownloadError, match="does not answer"):
        fetch_checkpoint("http://127.0.0.1:9/resnet-11ad3fa6.pth")
    assert not list(tmp_path.rglob("*.part"))


@pytest.fixture
def file_server(tmp_path):
    """A local web server over tmp_path/www."""
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield root, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_checkpoint_is_fetched_once_and_its_hash_checked(tmp_path, monkeypatch, file_server):
    root, url = file_server
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    name = f"net-{hashlib.sha256(b'weights').hexdigest()[:8]}.pth"
    (root / name).write_bytes(b"weights")
    fetched = fetch_checkpoint(f"{url}/{name}")
    assert fetched.read_bytes() == b"weights"
    (root / name).unlink()
    assert fetch_checkpoint(f"{url}/{name}") == fetched
    fetched.write_bytes(b"changed")
    with pytest.raises(BuildError, match=rf"{fetched} has sha256 .*its name says .*; delete the file, then"):
        fetch_checkpoint(f"{url}/{name}")
    (root / "net-00000000.pth").write_bytes(b"other")
    with pytest.raises(DownloadError, match="arrived with another content"):
        fetch_checkpoint(f"{url}/net-00000000.pth")
    assert not list((tmp_path / "hub").rglob("*.part"))


def test_what_was_used_first_is_what_is_used_again(tmp_path, monkeypatch, file_server, capsys):
    root, url = file_server
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    (root / "net.pth").write_bytes(b"weights")
    fetched = fetch_checkpoint(f"{url}/net.pth")
    digest = hashlib.sha256(b"weights").hexdigest()
    kept = f"{fetched}.sha256"
    assert f"net.pth: first use: sha256 {digest} is kept in {kept}" in capsys.readouterr().out
    assert fetch_checkpoint(f"{url}/net.pth", sha256=digest) == fetched
    assert capsys.readouterr().out == ""
    with pytest.raises(
        BuildError, match=r"pretrained_sha256 in model\.yaml says 000000000000…; delete the file"
    ):
        fetch_checkpoint(f"{url}/net.pth", sha256="0" * 64)
    fetched.write_bytes(b"others")
    with pytest.raises(BuildError, match=rf"but {kept} says {digest[:12]}…; delete the file"):
        fetch_checkpoint(f"{url}/net.pth")


def test_a_repository_is_asked_for_by_its_revision(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: asked.append((a, k)) or str(tmp_path)
    )
    find_cached_repository("some/model@0123abc")
    assert asked[0][0] == ("some/model",)
    assert asked[0][1]["revision"] == "0123abc"
    assert "/some/model/resolve/0123abc/" in locate_repository("some/model@0123abc")


def test_a_cached_file_of_the_hub_must_be_what_it_is_called_by(tmp_path):
    small, large = b"{}", b"weights"
    names = {
        hashlib.sha1(b"blob 2\0{}").hexdigest(): small,
        hashlib.sha256(large).hexdigest(): large,
    }
    for name, content in names.items():
        blob, link = tmp_path / name, tmp_path / f"link-{len(name)}"
        blob.write_bytes(content)
        link.symlink_to(blob)
        check_blob(link)
        blob.write_bytes(content + b" ")
        with pytest.raises(BuildError, match=rf"is not what was downloaded: .*; delete {blob}, then"):
            check_blob(link)


def test_a_missing_file_is_a_download_error(tmp_path, monkeypatch, file_server):
    _, url = file_server
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    check_reachable(f"{url}/absent.pth")
    with pytest.raises(DownloadError, match="broke off: HTTP Error 404"):
        fetch_checkpoint(f"{url}/absent.pth")


def test_a_file_that_is_not_offered_is_told_from_one_that_is(file_server):
    root, url = file_server
    (root / "net.pth").write_bytes(b"weights")
    check_offered(f"{url}/net.pth", seconds=60)
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1 answers HTTP 404"):
        check_offered(f"{url}/absent.pth", seconds=60)


def test_a_name_look_up_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(60) or [])
    started = time.monotonic()
    with pytest.raises(DownloadError, match=r"files\.test does not answer: nothing within 0\.3 s"):
        check_reachable("http://files.test/", seconds=0.3)
    assert time.monotonic() - started < 30


def test_an_answer_that_is_no_http_is_a_download_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer_nonsense, args=(server,), daemon=True).start()
        with pytest.raises(DownloadError, match="does not answer"):
            check_reachable(f"http://127.0.0.1:{server.getsockname()[1]}/", seconds=60)


def _answer_nonsense(server):
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"SSH-2.0-no-http\r\n\r\n")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_half_a_cached_repository_is_not_taken(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"x")
    assert find_cached_repository("some/model") == tmp_path
    (tmp_path / missing).unlink()
    assert find_cached_repository("some/model") is None
