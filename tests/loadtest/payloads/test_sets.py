"""Sets are real photographs and texts, the same every time, or a user's own files."""

from __future__ import annotations

import io
import json
import statistics

import pytest
from PIL import Image

from loadtest.errors import LoadTestError
from loadtest.payloads import SETS, make_payloads, name_mix, pick_each_length
from loadtest.payloads.payload import JSON, PLAIN
from loadtest.payloads.photos import FORMS
from loadtest.payloads.sets import MIXED, MOST
from loadtest.payloads.texts import draw_lengths, read_token_counter

EXACT = ("texts-128", "texts-mixed", "texts-grouped")


def make(asked, archive=None):
    return make_payloads(asked, model="bert", archives={} if archive is None else {"bert": archive})


def open_all(payloads):
    return [Image.open(io.BytesIO(one.body)) for one in payloads]


def test_photographs_come_in_every_form():
    photos = make("photos")
    assert len({one.digest for one in photos}) == len(photos) == 2 * len(FORMS)
    found = open_all(photos)
    assert {(image.format, image.size) for image in found} == {(form.kind, form.size) for form in FORMS}
    assert [Image.MIME[image.format] for image in found] == [one.content_type for one in photos]


def test_cuts_differ_and_have_one_size_the_whole_scenes_first():
    cuts = make("cuts")
    assert len({one.digest for one in cuts}) == len(cuts) == 32
    assert {image.size for image in open_all(cuts)} == {(500, 375)}
    assert cuts[0].digest == make("one-photo")[0].digest


def test_texts_have_the_lengths_of_comments():
    counts = sorted(len(json.loads(one.body)["text"].split()) for one in make("texts"))
    assert statistics.median(counts) == 22
    assert (counts[0], counts[-1]) == (3, 153)


def test_sets_are_the_same_every_time(tiny_text_archive):
    for name in SETS:
        first, second = ([one.digest for one in make(name, tiny_text_archive)] for _ in range(2))
        assert first == second


def test_all_ask_the_model_and_are_sent_as_clients_send_them(tiny_text_archive):
    kinds = {name: {(one.model, one.content_type) for one in make(name, tiny_text_archive)} for name in SETS}
    assert kinds["texts"] == kinds["one-text"] == {("bert", JSON)}
    assert kinds["texts-128"] == kinds["texts-mixed"] == kinds["texts-grouped"] == {("bert", PLAIN)}


def test_exact_texts_have_the_tokens_that_were_drawn(tiny_text_archive):
    count = read_token_counter(tiny_text_archive)
    counts = {name: [count(one.body.decode()) for one in make(name, tiny_text_archive)] for name in EXACT}
    assert counts["texts-128"] == [128] * 64
    assert counts["texts-mixed"] == draw_lengths(512, seed=24)
    assert sorted(counts["texts-grouped"]) == sorted(counts["texts-mixed"])
    assert counts["texts-grouped"] != counts["texts-mixed"]
    assert len({one.digest for one in make("texts-128", tiny_text_archive)}) == 64


@pytest.mark.parametrize("name", EXACT)
def test_exact_texts_need_the_archive(name):
    with pytest.raises(LoadTestError, match=r"texts of so many tokens need the archive of bert .* got none"):
        make(name)


@pytest.mark.parametrize(("bert", "texts", "photos"), [(0.3, 55, 128), (0.5, 128, 128), (0.9, 128, 14)])
def test_a_mix_keeps_its_shares_in_every_round(tiny_text_archive, bert, texts, photos):
    name = name_mix({"resnet50": 1 - bert, "bert": bert})
    found = make_payloads(name, model="resnet50 bert", archives={"bert": tiny_text_archive})
    models = [one.model for one in found]
    assert (models.count("bert"), models.count("resnet50")) == (texts, photos)
    assert len({one.digest for one in found}) == len(found)


def test_a_mixture_has_as_many_photographs_as_texts(tiny_text_archive):
    found = make_payloads("mixture", model="resnet50 bert", archives={"bert": tiny_text_archive})
    photos = [one for one in found if one.content_type.startswith("image/")]
    assert len(photos) == len(found) / 2 == len({one.digest for one in photos}) == 128
    assert {one.path for one in photos} == {"/predictions/resnet50"}
    assert {one.path for one in found} == {"/predictions/resnet50", "/predictions/bert"}
    assert {image.size for image in open_all(photos)} == {form.size for form in FORMS}


def test_one_text_of_each_length_is_picked_and_no_picture(tiny_text_archive):
    picked = pick_each_length(make("texts-mixed", tiny_text_archive), tiny_text_archive)
    count = read_token_counter(tiny_text_archive)
    lengths = [count(one.body.decode()) for one in picked]
    assert sorted(lengths) == sorted(set(MIXED))
    assert len(pick_each_length(make("one-text"), tiny_text_archive)) == 1
    assert pick_each_length(make("one-photo"), tiny_text_archive) == []


def test_a_folder_of_images(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.JPG").write_bytes(b"jpeg")
    (tmp_path / "b.png").write_bytes(b"png")
    (tmp_path / "readme.md").write_text("no payload")
    found = {one.name: one.content_type for one in make(str(tmp_path))}
    assert found == {"b.png": "image/png", "sub/a.JPG": "image/jpeg"}


def test_a_folder_of_texts_has_one_a_line(tmp_path):
    (tmp_path / "reviews.txt").write_text("Good.\n\n  Bad – very bad.\n", encoding="utf-8")
    assert [json.loads(one.body)["text"] for one in make(str(tmp_path))] == ["Good.", "Bad – very bad."]


def test_a_large_folder_is_thinned(tmp_path):
    (tmp_path / "many.txt").write_text("\n".join(f"text {n}" for n in range(3 * MOST + 1)))
    assert 100 <= len(make(str(tmp_path))) <= MOST


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
        make(str(tmp_path))
