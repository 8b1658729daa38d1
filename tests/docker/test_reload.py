"""`kit reload`: the order that the server gets, and a value that cannot be used."""

from __future__ import annotations

import pytest

from docker import reload
from docker.settings import read_settings


@pytest.fixture
def environment(tmp_path, monkeypatch):
    (tmp_path / "bert.mar").touch()
    given = {"MODEL_STORE": str(tmp_path), "FRONT": "haproxy", "DEADLINE_MS": "2000"}
    monkeypatch.setattr(reload.os, "environ", given)
    return given


def test_it_asks_for_what_the_environment_says_now(environment, monkeypatch):
    asked = []
    monkeypatch.setattr(reload.cli, "main", lambda arguments: asked.append(arguments) or 1)
    assert reload.main() == 1
    assert asked == [read_settings(environment).reload_arguments()]
    assert asked[0][asked[0].index("--deadline-ms") :][:2] == ["--deadline-ms", "2000"]


def test_a_wrong_value_is_said_and_nothing_is_asked(environment, monkeypatch, capsys):
    monkeypatch.setattr(reload.cli, "main", lambda _: pytest.fail("asked"))
    environment["STOP_SECONDS"] = "soon"
    assert reload.main() == 2
    assert capsys.readouterr().err == "error: STOP_SECONDS must be a whole number above 10: got soon\n"
