"""The fast preprocessing's distance from the reference is measured, not believed."""

from __future__ import annotations

import sys

import pytest

from handlers.shared.preprocessing import FastPreprocessing
from models import drift
from models.classifiers import load_classifier
from models.errors import BuildError
from models.synthetic import encode_member


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(8):
        (folder / f"{number}.jpg").write_bytes(encode_member(number, 200))
    return folder


def test_the_fast_way_stays_beside_the_reference(tiny_image, photos):
    measured = drift.measure_drift(load_classifier(tiny_image), photos)
    assert measured.photos == 8
    # These are decoded at a quarter of their size, so that many values differ; the answers do not.
    assert 0 < measured.pixels < 1
    assert measured.agreement == 1
    assert 0 < measured.probability < 0.2


def test_a_way_that_moves_the_answers_is_seen(tiny_image, photos, monkeypatch):
    honest = drift.measure_drift(load_classifier(tiny_image), photos)
    real = FastPreprocessing.pack
    monkeypatch.setattr(FastPreprocessing, "pack", lambda *args, **rest: real(*args, **rest) * 0.5)
    assert drift.measure_drift(load_classifier(tiny_image), photos).probability > 3 * honest.probability


def test_texts_have_no_preprocessing_to_compare(tiny_text, photos):
    with pytest.raises(BuildError, match="tiny_text takes no images"):
        drift.measure_drift(load_classifier(tiny_text), photos)


def test_the_command_prints_it(tiny_image_archive, photos, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["drift", str(tiny_image_archive), str(photos)])
    assert drift.main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tiny_image: fast against reference preprocessing on 8 photographs\n")
    assert "top-1 agreement" in printed


def test_a_missing_archive_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["drift", str(tmp_path / "none.mar"), str(tmp_path)])
    assert drift.main() == 1
    assert capsys.readouterr().err.startswith("error: ")
