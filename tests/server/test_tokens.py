"""The token: given, saved, or made; for nobody else to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.errors import ServerError
from server.tokens import prepare_secrets, read_token, write_bearers
from tests.plans import make_plan, make_proxy

GIVEN = "a-token-of-24-characters"


@pytest.fixture
def given(tmp_path):
    """A file of a person's, and a plan with it."""
    file = tmp_path / "secret"
    file.write_text(f"{GIVEN}\n")
    return file, make_plan(proxy=make_proxy(token_file=str(file)))


def read_private(file: Path | str) -> str:
    """What is in a file that nobody else can read."""
    assert Path(file).stat().st_mode & 0o777 == 0o600
    return Path(file).read_text()


def test_one_is_made_and_saved(run):
    prepare_secrets(run, make_plan())
    made = read_private(run.token)
    prepare_secrets(run, make_plan())
    assert run.token.read_text() == made
    assert read_private(run.proxy_files.bearers) == f"Bearer {made}"


def test_one_that_was_given_is_the_proxys_and_a_changed_one_is_taken_by_a_reload(run, given):
    file, plan = given
    file.chmod(0o444)
    prepare_secrets(run, plan)
    assert read_private(run.token) == f"{GIVEN}\n"
    assert read_private(run.proxy_files.bearers) == f"Bearer {GIVEN}\n"
    file.chmod(0o644)
    file.write_text(f"{GIVEN}-2")
    assert write_bearers(run, plan) == read_token(run.token) == f"{GIVEN}-2"


@pytest.mark.parametrize("text", ["", "short", "with a blank, but long enough", "two-lines-of-it-\nmore"])
def test_what_cannot_be_sent_is_rejected_and_nothing_is_written(run, given, text):
    file, plan = given
    file.write_text(text)
    with pytest.raises(ServerError, match=r"16 or more letters, digits or any of .* make one: openssl rand"):
        prepare_secrets(run, plan)
    assert not run.token.exists()


def test_certificate_and_key_are_one_private_file(run, tmp_path):
    files = {f"tls_{name}": tmp_path / name for name in ("cert", "key")}
    for file in files.values():
        file.write_text(file.name)
    prepare_secrets(run, make_plan(proxy=make_proxy(**{name: str(file) for name, file in files.items()})))
    assert read_private(run.proxy_files.certificate) == "cert\nkey\n"
