"""The token: given, saved, or made; for nobody else to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import ServerError
from server.rundir import RunDir
from server.tokens import prepare_secrets, read_token, write_bearers
from tests.plans import make_plan, make_proxy

GIVEN = "a-token-of-24-characters"


def test_one_is_made_and_saved(tmp_path):
    run, plan = RunDir.at(tmp_path), make_plan()
    prepare_secrets(run, plan)
    made = run.token.read_text()
    prepare_secrets(run, plan)
    assert run.token.read_text() == made
    assert Path(run.proxy_files.bearers).read_text() == f"Bearer {made}"


def test_one_that_was_given_is_the_proxys_and_stays_private(tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"{GIVEN}\n")
    file.chmod(0o444)
    run = RunDir.at(tmp_path)
    prepare_secrets(run, make_plan(proxy=make_proxy(token_file=str(file))))
    assert read_token(run.token) == GIVEN
    assert Path(run.proxy_files.bearers).read_text() == f"Bearer {GIVEN}\n"
    assert {one.stat().st_mode & 0o777 for one in (run.token, Path(run.proxy_files.bearers))} == {0o600}


def test_a_given_one_that_changed_is_taken_by_a_reload(tmp_path):
    file, run = tmp_path / "secret", RunDir.at(tmp_path)
    plan = make_plan(proxy=make_proxy(token_file=str(file)))
    for token in (GIVEN, f"{GIVEN}-2"):
        file.write_text(token)
        assert write_bearers(run, plan) == token
        assert read_token(run.token) == token


@pytest.mark.parametrize("text", ["", "short", "with a blank, but long enough", "two-lines-of-it-\nmore"])
def test_what_cannot_be_sent_is_rejected_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    file, run = tmp_path / "secret", RunDir.at(tmp_path)
    file.write_text(text)
    with pytest.raises(ServerError, match=r"16 or more letters, digits or any of .* make one: openssl rand"):
        prepare_secrets(run, make_plan(proxy=make_proxy(token_file=str(file))))
    assert not run.token.exists()


def test_certificate_and_key_are_one_private_file(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path)
    for name in ("cert", "key"):
        (tmp_path / name).write_text(name)
    proxy = make_proxy(tls_cert=str(tmp_path / "cert"), tls_key=str(tmp_path / "key"))
    prepare_secrets(run, make_plan(proxy=proxy))
    file = Path(run.proxy_files.certificate)
    assert file.read_text() == "cert\nkey\n"
    assert file.stat().st_mode & 0o777 == 0o600
