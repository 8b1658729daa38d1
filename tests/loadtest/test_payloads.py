"""Payload folders come back as they were written, and every payload is sent as often as any other."""

from __future__ import annotations

import itertools

import pytest
from PIL import Image

from loadtest.errors import LoadTestError
from loadtest.payloads import TEXT, read_list, shuffle_endlessly, write_list, write_texts
from loadtest.photos import FORMS, SCENES, write_photos


def test_texts_are_written_with_their_list(tmp_path):
    folder = write_texts(tmp_path / "texts", ["grün", "two words"], model="bert")
    payloads = read_list(folder)
    assert [(one.path, one.content_type) for one in payloads] == [("/predictions/bert", TEXT)] * 2
    assert [(folder / one.file).read_text(encoding="utf-8") for one in payloads] == ["grün", "two words"]


@pytest.mark.parametrize("text", ["", "{", '[{"file": "a"}]', "[]"])
def test_a_folder_without_a_good_list_is_refused(tmp_path, text):
    (tmp_path / "payloads.json").write_text(text)
    with pytest.raises(LoadTestError, match=r"payloads\.json"):
        read_list(tmp_path)


def test_an_empty_list_is_refused(tmp_path):
    with pytest.raises(LoadTestError, match="at least one payload: got none"):
        read_list(write_list(tmp_path, []))


def test_the_order_visits_all_before_any_comes_again():
    visited = list(itertools.islice(shuffle_endlessly(7, seed=3), 21))
    rounds = [visited[start : start + 7] for start in (0, 7, 14)]
    assert all(sorted(one) == list(range(7)) for one in rounds)
    assert rounds[0] != rounds[1]


def test_the_seed_decides_the_order():
    first, same, other = (list(itertools.islice(shuffle_endlessly(50, seed=s), 50)) for s in (1, 1, 2))
    assert first == same != other


def test_photographs_come_in_every_form(tmp_path):
    folder = write_photos(tmp_path / "photos", model="resnet50")
    payloads = read_list(folder)
    assert len({one.file for one in payloads}) == len(SCENES) * len(FORMS)
    found = set()
    for one in payloads:
        with Image.open(folder / one.file) as image:
            assert Image.MIME[image.format] == one.content_type
            found.add((image.format, *image.size))
    assert found == {(form.kind, form.width, form.height) for form in FORMS}
