"""Payloads are real photographs and texts, several of each, or a user's own files."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from loadtest.errors import LoadTestError
from loadtest.payload_sets import MOST, make_payloads


def test_photographs_differ_in_size_and_format():
    photos = make_payloads("photos")
    opened = [Image.open(io.BytesIO(one.body)) for one in photos]
    assert {image.format for image in opened} == {"JPEG", "PNG", "WEBP"}
    assert len({image.size for image in opened}) >= 5
    assert len({one.digest for one in photos}) == len(photos) == 14
    assert all(
        one.content_type == f"image/{image.format.lower()}" for one, image in zip(photos, opened, strict=True)
    )


def test_texts_have_the_lengths_of_comments():
    counts = sorted(len(json.loads(one.body)["text"].split()) for one in make_payloads("texts"))
    assert 15 <= counts[len(counts) // 2] <= 30
    assert counts[0] <= 6
    assert counts[-1] >= 100


def test_sets_are_the_same_every_time():
    for name in ("photos", "texts"):
        assert [one.digest for one in make_payloads(name)] == [one.digest for one in make_payloads(name)]


def test_one_payload_is_sent_only_when_it_is_asked_for():
    assert [len(make_payloads(name)) for name in ("one-photo", "one-text")] == [1, 1]


def test_a_folder_of_images(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.JPG").write_bytes(b"jpeg")
    (tmp_path / "b.png").write_bytes(b"png")
    (tmp_path / "readme.md").write_text("no payload")
    found = {one.name: one.content_type for one in make_payloads(str(tmp_path))}
    assert found == {"b.png": "image/png", "sub/a.JPG": "image/jpeg"}


def test_a_folder_of_texts_has_one_a_line(tmp_path):
    (tmp_path / "reviews.txt").write_text("Good.\n\n  Bad – very bad.\n", encoding="utf-8")
    assert [json.loads(one.body)["text"] for one in make_payloads(str(tmp_path))] == [
        "Good.",
        "Bad – very bad.",
    ]


def test_a_large_folder_is_thinned(tmp_path):
    (tmp_path / "many.txt").write_text("\n".join(f"text {n}" for n in range(3 * MOST + 1)))
    assert 100 <= len(make_payloads(str(tmp_path))) <= MOST


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "must hold images .* or .txt files: got neither"),
        ({"a.txt": "x", "b.png": "y"}, "must hold images .* or .txt files: got both"),
        ({"a.txt": "\n\n"}, "must hold at least one text: got only empty lines"),
    ],
)
def test_a_folder_that_cannot_be_sent_is_refused(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LoadTestError, match=message):
        make_payloads(str(tmp_path))


def test_an_unknown_set_is_answered_with_the_known_ones():
    with pytest.raises(
        LoadTestError, match=r"PAYLOADS must be one of photos, texts, .*, or a folder: got holiday"
    ):
        make_payloads("holiday")
