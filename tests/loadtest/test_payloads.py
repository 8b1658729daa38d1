"""Payloads are real photographs and texts of exact lengths, the same every time, or a person's own files."""

from __future__ import annotations

import io
import json
import math
import random
import statistics

import pytest
from PIL import Image

from loadtest.errors import LoadTestError
from loadtest.payloads import (
    SETS,
    find_usual,
    make_payloads,
    pick_each_length,
    read_manifest,
    texts,
    write_manifest,
)
from loadtest.payloads.payload import JSON, MANIFEST, PLAIN
from loadtest.payloads.photos import FORMS
from loadtest.payloads.sets import MIXED, MOST
from loadtest.payloads.texts import draw_lengths, read_token_counter, write_exactly
from tests.server.fakes import make_archive

EXACT = ("texts-128", "texts-grouped")


@pytest.fixture(scope="module")
def count_tokens(tiny_text_archive):
    return read_token_counter(tiny_text_archive)


@pytest.fixture(scope="module")
def made(tiny_text_archive):
    """Every set, by its name."""
    return {name: make(name, tiny_text_archive) for name in SETS}


def make(asked, archive=None, model="bert", **more):
    return make_payloads(asked, model=model, archives={"bert": archive} if archive else None, **more)


def open_all(payloads):
    return [Image.open(io.BytesIO(one.body)) for one in payloads]


def test_photographs_come_in_every_form_and_cuts_in_one_size(made):
    photos, cuts = made["photos"], made["cuts"]
    assert len({one.digest for one in photos}) == len(photos) == 2 * len(FORMS)
    found = open_all(photos)
    assert {(image.format, image.size) for image in found} == {(form.kind, form.size) for form in FORMS}
    assert [Image.MIME[image.format] for image in found] == [one.content_type for one in photos]
    assert len({one.digest for one in cuts}) == len(cuts) == 32
    assert {image.size for image in open_all(cuts)} == {(500, 375)}
    assert cuts[0].digest == made["one-photo"][0].digest


def test_sets_are_the_same_every_time_and_sent_as_clients_send_them(made, tiny_text_archive):
    for name, payloads in made.items():
        assert make(name, tiny_text_archive) == payloads
        assert {(one.model, one.path) for one in payloads} == {("bert", "/predictions/bert")}
    words = sorted(len(json.loads(one.body)["text"].split()) for one in made["texts"])
    assert (statistics.median(words), words[0], words[-1]) == (22, 3, 153)
    assert {one.content_type for name in ("texts", "one-text") for one in made[name]} == {JSON}
    assert {one.content_type for name in (*EXACT, "plain-texts") for one in made[name]} == {PLAIN}
    plain = [one.body.decode() for one in made["plain-texts"]]
    assert plain == [json.loads(one.body)["text"] for one in made["texts"]]


def test_exact_texts_have_the_tokens_that_were_drawn_and_need_the_archive(made, count_tokens, tmp_path):
    counts = {name: [count_tokens(one.body.decode()) for one in made[name]] for name in EXACT}
    assert counts["texts-128"] == [128] * 64
    assert counts["texts-grouped"] == MIXED
    assert len({one.digest for one in made["texts-128"]}) == 64
    with pytest.raises(LoadTestError, match=r"a set that needs no archive: got none of bert"):
        make("texts-128")
    make_archive(tmp_path / "image.mar")
    with pytest.raises(LoadTestError, match=r"image\.mar: no tokenizer\.json"):
        make("texts-128", tmp_path / "image.mar")


@pytest.mark.parametrize(("bert", "texts", "photos"), [(0.3, 55, 128), (0.5, 128, 128), (0.9, 128, 14)])
def test_a_mix_keeps_its_shares_in_every_round(tiny_text_archive, bert, texts, photos):
    found = make("", tiny_text_archive, shares={"resnet50": 1 - bert, "bert": bert})
    models = [one.model for one in found]
    assert (models.count("bert"), models.count("resnet50")) == (texts, photos)
    assert {one.path for one in found} == {"/predictions/resnet50", "/predictions/bert"}
    assert len({one.digest for one in found}) == len(found)


def test_one_text_of_each_length_is_picked_and_no_picture(made, tiny_text_archive, count_tokens):
    picked = pick_each_length(made["texts-grouped"], tiny_text_archive)
    assert sorted(count_tokens(one.body.decode()) for one in picked) == sorted(set(MIXED))
    assert pick_each_length(made["one-photo"], tiny_text_archive) == []


def test_a_folder_of_images_or_of_texts_a_line_each(tmp_path):
    for name in ("images/sub", "texts"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("sub/a.JPG", "b.png", "readme.md"):
        (tmp_path / "images" / name).write_bytes(b"x")
    found = {one.name: one.content_type for one in make(str(tmp_path / "images"))}
    assert found == {"b.png": "image/png", "sub/a.JPG": "image/jpeg"}
    reviews = tmp_path / "texts" / "reviews.txt"
    reviews.write_text("Good.\n\n  Bad – very bad.\n", encoding="utf-8")
    texts = [json.loads(one.body)["text"] for one in make(str(tmp_path / "texts"))]
    assert texts == ["Good.", "Bad – very bad."]
    reviews.write_text("\n".join(f"text {n}" for n in range(3 * MOST + 1)))
    assert 100 <= len(make(str(tmp_path / "texts"))) <= MOST


def test_a_folder_of_bodies_is_sent_as_it_is(tmp_path):
    for name in ("deep/a.json", "b.BIN", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b'{"a": 1}\n')
    found = {one.name: (one.content_type, one.body) for one in make(str(tmp_path))}
    kinds = {"b.BIN": "application/octet-stream", "deep/a.json": "application/json"}
    assert found == {name: (kind, b'{"a": 1}\n') for name, kind in kinds.items()}


@pytest.fixture
def archives(tmp_path, tiny_text_archive, tiny_image_archive):
    """Model → its archive, of several kinds."""

    def describe(name, content_type, expected):
        example = {"file": "example.txt", "content_type": content_type, "expected": expected}
        return make_archive(tmp_path / f"{name}.mar", name=name, text="[1, 2]", example=example)

    return {
        "image": tiny_image_archive,
        "text": tiny_text_archive,
        "detector": describe("detector", "image/jpeg", {"boxes": [{"label": "cat", "score": 0.9}]}),
        "plain": describe("plain", "text/plain", {"embedding": [0.1]}),  # and no tokenizer
        "json": describe("json", "application/json", [0.5]),
        "bytes": describe("bytes", "application/octet-stream", None),
    }


def test_what_suits_a_model_is_found_by_its_archive_and_only_then_by_its_name(archives):
    found = {model: find_usual(model, archives) for model in archives}
    example = dict.fromkeys(("detector", "plain", "json", "bytes"), "example")
    assert found == {"image": "photos", "text": "plain-texts", **example}
    (one,) = make_payloads("", model="json", archives=archives)
    assert (one.body, one.content_type, one.path) == (b"[1, 2]", "application/json", "/predictions/json")
    assert find_usual("bert", {"bert": archives["json"]}) == "example"
    assert [find_usual(model, {}) for model in ("bert", "resnet50")] == ["texts", "photos"]
    for asked in ("", "example"):
        with pytest.raises(LoadTestError, match=r"PAYLOADS must be a folder .*: got none of router"):
            make_payloads(asked, model="router")


def test_a_mixture_has_of_each_model_what_suits_it(archives):
    found = make_payloads("mixture", model="image text json", archives=archives)
    assert {(one.model, one.content_type.partition("/")[0]) for one in found} == {
        ("image", "image"), ("text", "text"), ("json", "application"),
    }  # fmt: skip
    # As often as others, and still one payload.
    assert [one.model for one in found].count("json") == [one.model for one in found].count("text") == 128
    assert len({one.digest for one in found if one.model == "json"}) == 1


def test_a_folder_that_cannot_be_sent_is_rejected(tmp_path):
    faults = {"": "got none", "a.txt": "got only empty lines", "b.png": "got a.txt and b.png"}
    for name, message in faults.items():
        if name:
            (tmp_path / name).write_text("\n")
        with pytest.raises(LoadTestError, match=f"must hold .*: {message}"):
            make(str(tmp_path))
    with pytest.raises(LoadTestError, match=r"PAYLOADS must be one of photos, .*, or a folder: got none"):
        make("none")


def test_a_manifest_gives_the_payloads_back(made, tmp_path):
    payloads = [*made["photos"], *made["texts"]]
    assert read_manifest(write_manifest(payloads, tmp_path / "new" / "folder")) == payloads
    assert read_manifest(tmp_path) is None
    (tmp_path / MANIFEST).write_text('[{"name": "x"}]')
    with pytest.raises(LoadTestError, match=r"payloads\.json must list the bodies beside it"):
        read_manifest(tmp_path)


def test_lengths_are_log_normal_and_texts_have_exactly_those_that_the_model_takes(count_tokens):
    lengths = draw_lengths(2000, seed=0)
    assert statistics.median(lengths) == pytest.approx(texts.MEDIAN_TOKENS, abs=1)
    assert statistics.stdev(math.log(length) for length in lengths) == pytest.approx(texts.SIGMA, rel=0.03)
    wide = draw_lengths(2000, seed=0, median=100, sigma=3.0)
    assert (min(wide), max(wide)) == (texts.LEAST_TOKENS, texts.MOST_TOKENS)
    for tokens in (3, 4, 16, 24, 128, 512):
        assert count_tokens(write_exactly(tokens, count_tokens, random.Random(tokens))) == tokens


def test_every_group_of_texts_has_the_whole_mix_of_lengths():
    groups = [MIXED[at : at + 64] for at in range(0, 512, 64)]
    means = [statistics.mean(group) for group in groups]
    assert statistics.stdev(means) < 0.1 * statistics.mean(means)
    assert len({*map(tuple, groups)}) == len(groups)
