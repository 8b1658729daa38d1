"""Models whose outputs are no choice among classes, from their folders to answers over REST."""

from __future__ import annotations

import json

import pytest

from models.build import build_archive
from models.request import WeightsRequest
from tests.conftest import write_definition
from tests.end_to_end.kit import Kit, find_port, running
from tests.models.folders import TEXTS
from tests.models.test_folders import DEFINITION, KINDS, ask_transformers

HEADS = {"yes_no": "yes or no", "stars": "regression", "many": "multi-label"}


def test_each_head_answers_over_rest_as_transformers_pipeline_does(tmp_path):
    for name, kind in HEADS.items():
        definition = write_definition(tmp_path / "models", {**DEFINITION, "name": name})
        weights = WeightsRequest(source="path", path=KINDS[kind](tmp_path / kind))
        build_archive(definition, weights, store=tmp_path / "store", workspaces=tmp_path / "work")
    kit = Kit(run_dir=tmp_path / "run", store=tmp_path / "store", port=find_port())
    kit.plan(" ".join(HEADS), WORKERS=1)
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        for name, kind in HEADS.items():
            body = json.dumps({"text": TEXTS[:4]}).encode()
            answers = kit.predict(name, body, "application/json").json
            expected = ask_transformers(tmp_path / kind, TEXTS[:4])
            for answer, wanted in zip(answers, expected, strict=True):
                scores = answer["scores"] if "scores" in answer else answer["probabilities"]
                assert scores == pytest.approx(wanted, abs=2e-4)
            pair = kit.predict(name, b'{"text": "a", "text_pair": "b"}', "application/json")
            assert (pair.status, "text_pair" in pair.body.decode()) == (400, True)
