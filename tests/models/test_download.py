"""Downloads: whole or not at all, and given up soon where there is no internet."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading

import pytest
import torch

from models.download import fetch_checkpoint
from models.errors import BuildError, DownloadError
from models.repository import check_blob


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
        BuildError, match=r"weights_sha256 in model\.yaml says 000000000000…; delete the file"
    ):
        fetch_checkpoint(f"{url}/net.pth", sha256="0" * 64)
    fetched.write_bytes(b"others")
    with pytest.raises(BuildError, match=rf"but {kept} says {digest[:12]}…; delete the file"):
        fetch_checkpoint(f"{url}/net.pth")


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
