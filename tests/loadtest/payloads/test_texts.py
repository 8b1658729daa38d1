"""Texts have exactly the lengths asked for, by the archive's own tokenizer."""

from __future__ import annotations

import math
import random
import statistics
import zipfile

import pytest

from loadtest.errors import LoadTestError
from loadtest.payloads.texts import (
    LEAST_TOKENS,
    MEDIAN_TOKENS,
    MOST_TOKENS,
    SIGMA,
    arrange_evenly,
    draw_lengths,
    read_token_counter,
    write_exactly,
)


@pytest.fixture(scope="module")
def count_tokens(tiny_text_archive):
    return read_token_counter(tiny_text_archive)


@pytest.mark.parametrize("tokens", [3, 4, 16, 24, 128, 512])
def test_a_text_has_exactly_the_tokens_asked_for(count_tokens, tokens):
    assert count_tokens(write_exactly(tokens, count_tokens, random.Random(tokens))) == tokens


def test_lengths_are_log_normal():
    lengths = draw_lengths(2000, seed=0)
    assert statistics.median(lengths) == pytest.approx(MEDIAN_TOKENS, abs=1)
    assert statistics.stdev(math.log(length) for length in lengths) == pytest.approx(SIGMA, rel=0.03)


def test_lengths_stay_within_what_the_model_takes():
    lengths = draw_lengths(2000, seed=0, median=100, sigma=3.0)
    assert (min(lengths), max(lengths)) == (LEAST_TOKENS, MOST_TOKENS)


def test_an_archive_without_a_tokenizer_is_said(tmp_path):
    with zipfile.ZipFile(tmp_path / "image.mar", "w") as archive:
        archive.writestr("definition.json", "{}")
    with pytest.raises(LoadTestError, match=r"image\.mar: no tokenizer\.json"):
        read_token_counter(tmp_path / "image.mar")


def test_every_group_of_texts_has_the_whole_mix_of_lengths():
    lengths = draw_lengths(512, seed=1)
    order = arrange_evenly(lengths, group=64, seed=24)
    groups = [[lengths[position] for position in order[at : at + 64]] for at in range(0, 512, 64)]
    means = [statistics.mean(group) for group in groups]
    assert sorted(order) == list(range(512))
    assert means[0] == pytest.approx(statistics.mean(means), rel=0.02)
    assert statistics.stdev(means) < 0.05 * means[0]
    assert arrange_evenly(lengths, group=64, seed=24) == order
