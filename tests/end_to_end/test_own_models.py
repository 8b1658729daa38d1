"""Models of a person's own, from their folders to answers over REST: embeddings, any net, a detector."""

from __future__ import annotations

import io
import json
import shutil
import zipfile

import pytest
from PIL import Image

from models.build import build_archive
from models.definition import read_definition
from models.names import MODELS_FOLDER
from models.new import write_model
from models.request import WeightsRequest
from tests.conftest import RANDOM
from tests.end_to_end.kit import Kit, find_port, running
from tests.models.folders import TEXTS
from tests.models.test_own import ROW, expect, write_risk
from tests.models.test_text_tasks import embed, make_encoder

HOW = {"pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The three, built by the command's own steps: memory is measured."""
    folder = tmp_path_factory.mktemp("own")
    write_model(make_encoder(folder / "encoder", **HOW), folder=folder / "models")
    write_risk(folder / "models", weights="./net.pth")
    shutil.copytree(MODELS_FOLDER / "ssdlite", folder / "models" / "ssdlite")
    for name in ("encoder", "risk", "ssdlite"):
        weights = RANDOM if name == "ssdlite" else WeightsRequest(source="")
        definition = read_definition(name, folder / "models")
        build_archive(definition, weights, store=folder / "store", precisions=["fp32"])
    kit = Kit(run_dir=folder / "run", store=folder / "store", port=find_port())
    kit.plan("encoder risk ssdlite", WORKERS=1)
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit


def test_each_is_verified(kit):
    assert kit.verify() == (0, {})


def test_embeddings_are_those_of_the_folder(kit):
    answers = kit.predict("encoder", json.dumps({"text": TEXTS[:3]}).encode(), "application/json").json
    for answer, text in zip(answers, TEXTS[:3], strict=True):
        own = embed(kit.run_dir.parent / "encoder", text, **HOW)
        assert answer["embedding"] == pytest.approx(own, abs=2e-5)


def test_a_net_of_any_kind_answers_as_it_does_alone(kit):
    answer = kit.predict("risk", json.dumps(ROW).encode(), "application/json")
    assert answer.json == {"risk": pytest.approx(expect(), rel=1e-4), "unit": "share"}
    wrong = kit.predict("risk", b'{"row": [1]}', "application/json")
    assert (wrong.status, "4 numbers" in wrong.body.decode()) == (400, True)


def test_a_detector_takes_images_of_any_size(kit):
    for size in ((320, 240), (64, 200)):
        body = io.BytesIO()
        Image.new("RGB", size, "white").save(body, "JPEG")
        answer = kit.predict("ssdlite", body.getvalue(), "image/jpeg")
        assert (answer.status, type(answer.json)) == (200, list)
    assert kit.predict("ssdlite", b"no image", "image/jpeg").status == 415
    with zipfile.ZipFile(kit.store / "ssdlite.mar") as archive:
        assert json.loads(archive.read("definition.json"))["freeze"] is False
