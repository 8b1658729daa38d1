"""What is sent is the same in every run, and a slow server is sent the same mix as a fast one."""

from __future__ import annotations

import random
import statistics

import pytest

from loadtest.ladder.payloads import CUTS, GROUP, arrange_evenly, write_cuts
from loadtest.payloads import read_list
from loadtest.photos import SCENES, SIZE, write_photo


def count_words(text):
    return len(text.split())


def test_every_group_of_texts_has_the_whole_mix_of_lengths():
    chance = random.Random(1)
    texts = [" ".join(["word"] * max(1, round(chance.lognormvariate(3, 0.8)))) for _ in range(8 * GROUP)]
    arranged = arrange_evenly(texts, count_words, group=GROUP)
    groups = [arranged[at : at + GROUP] for at in range(0, len(texts), GROUP)]
    means = [statistics.mean(map(count_words, group)) for group in groups]
    assert sorted(arranged) == sorted(texts)
    assert means[0] == pytest.approx(statistics.mean(means), rel=0.02)
    assert statistics.stdev(means) < 0.05 * means[0]
    assert arrange_evenly(texts, count_words, group=GROUP) == arranged


def test_photographs_are_different_and_the_same_each_time(tmp_path):
    from PIL import Image

    folders = [write_cuts(tmp_path / name, "resnet50") for name in "ab"]
    bodies = [[(folder / one.file).read_bytes() for one in read_list(folder)] for folder in folders]
    assert bodies[0] == bodies[1]
    assert len(set(bodies[0])) == CUTS * len(SCENES)
    assert {Image.open(folders[0] / one.file).size for one in read_list(folders[0])} == {SIZE}
    assert bodies[0][0] == write_photo(tmp_path / "photo.jpg").read_bytes()
