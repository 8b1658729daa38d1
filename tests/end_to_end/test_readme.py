"""The Python client of docs/api.md, and the answer that README shows, against a live server."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.end_to_end.kit import ROOT

README, API = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/api.md"))


def test_the_client_prints_an_answer_for_each_text(kit, tmp_path):
    client, *_ = re.findall(r"^```python\n(.*?)^```", API, re.MULTILINE | re.DOTALL)
    assert client.count("8080") == 1
    (tmp_path / "run").symlink_to(kit.run_dir)
    done = subprocess.run(
        [sys.executable, "-c", client.replace("8080", str(kit.port))],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"'(\w+)':", client)
    answers = ast.literal_eval(done.stdout)
    assert len(answers) == 2
    for answer in answers:
        assert set(shown) == {*answer, *answer["probabilities"]}
        assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_readmes_image_answer_has_the_fields_that_are_answered(kit, photo):
    (block,) = re.findall(r"^```text\n(\[\{.*?)^```", README, re.MULTILINE | re.DOTALL)
    answer = kit.predict("resnet50", photo)
    assert answer.status == 200
    assert set(re.findall(r'"(\w+)":', block)) == {field for one in answer.json for field in one}
