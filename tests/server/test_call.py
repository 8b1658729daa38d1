"""The lines to paste: with the token, or without it where a log would keep it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from server.archives import read_archive
from server.call import make_client, render_calls
from tests.server.fakes import make_archive

FAR = "2999-01-01T00:00:00Z"


@pytest.fixture
def calls(plan, run, tmp_path):
    keys = {kind: {"key": f"{kind}-key", "expiration time": FAR} for kind in ("inference", "management")}
    run.key_file.write_text(json.dumps({**keys, "API": {"key": "api-key"}}))
    one = dataclasses.replace(plan, models={"bert": plan.models["bert"]})
    archives = {"bert": read_archive(make_archive(tmp_path / "bert.mar", name="bert"))}

    def render(**keywords: bool) -> str:
        return render_calls(one, archives, {"bert": Path("x.txt")}, make_client(plan, run), **keywords)

    return render


def test_the_token_is_in_the_line(calls):
    assert calls().startswith('curl -H "Authorization: Bearer inference-key" -H "Content-Type: ')


def test_a_token_of_the_callers_own_is_not_printed(calls):
    text = calls(hide_token=True)
    assert text.startswith('curl -H "Authorization: Bearer $TOKEN" ')
    assert "inference-key" not in text
    assert text.endswith("# TOKEN is the one you gave")
