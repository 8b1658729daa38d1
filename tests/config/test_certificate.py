"""TLS_CERT and TLS_KEY are looked at before anything long runs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from config.errors import ConfigError
from config.settings import read_certificate

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


@pytest.fixture
def make_pair(tmp_path):
    """A self-signed certificate and its key, by name."""

    def make(name: str, *options: str) -> tuple[str, str]:
        cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-subj", f"/CN={name}", "-days", "1", "-out", str(cert), "-keyout", str(key)]
        subprocess.run([*command, *(options or ["-nodes"])], check=True, capture_output=True)
        return str(cert), str(key)

    return make


def reject(cert: str, key: str) -> str:
    with pytest.raises(ConfigError) as error:
        read_certificate(cert, key)
    return str(error.value)


def test_without_any_there_is_none():
    assert read_certificate("", "") == ("", "")


@needs_openssl
def test_a_pair_is_named_by_absolute_paths(make_pair, tmp_path, monkeypatch):
    cert, key = make_pair("one")
    monkeypatch.chdir(tmp_path)
    assert read_certificate("one.pem", "one.key") == (cert, key)


@needs_openssl
def test_a_key_of_another_certificate(make_pair):
    (cert, _), (_, key) = make_pair("one"), make_pair("other")
    assert "KEY_VALUES_MISMATCH" in reject(cert, key)


@needs_openssl
def test_a_key_with_a_password_is_not_asked_for_it(make_pair):
    assert "without a password" in reject(*make_pair("one", "-passout", "pass:secret"))


def test_files_that_are_none(tmp_path):
    (tmp_path / "text").write_text("hello")
    text = str(tmp_path / "text")
    assert reject("/nowhere", text).startswith("TLS_CERT must be a file that can be read: got /nowhere: ")
    assert reject(text, str(tmp_path)).startswith("TLS_KEY must be a file that can be read: got ")
    assert "must be a certificate and its own key" in reject(text, text)
