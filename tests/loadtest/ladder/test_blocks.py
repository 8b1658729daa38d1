"""Blocks hold the anchor and what each rung is compared with, and no more than the memory does."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.ladder.blocks import MOST_SERVERS, USABLE_MEMORY, cut_blocks
from loadtest.ladder.rungs import MODELS, list_left_out, list_rungs

PLENTY = 1e6


def cut(rungs, memory=1000, available=PLENTY):
    return cut_blocks(rungs, lambda name: memory, available)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("available", [PLENTY, 4000 / USABLE_MEMORY, 3000 / USABLE_MEMORY])
def test_every_rung_is_measured_once_beside_the_one_it_is_compared_with(model, available):
    rungs = [*list_rungs(model), *list_left_out(model)]
    blocks = cut(rungs, available=available)
    assert [name for block in blocks for name in block.new] == [one.name for one in rungs if not one.reason]
    for block in blocks:
        assert len(block.members) == len(set(block.members)) <= MOST_SERVERS
        assert 1000 * len(block.members) <= USABLE_MEMORY * available
        before = {one.before for one in rungs if one.name in block.new and one.before}
        assert before <= set(block.members)


@pytest.mark.parametrize("model", MODELS)
def test_blocks_are_linked_by_rungs_that_both_have(model):
    blocks = cut([*list_rungs(model), *list_left_out(model)])
    for number, block in enumerate(blocks[1:], start=1):
        earlier = {name for one in blocks[:number] for name in one.members}
        assert set(block.members) & earlier


def test_memory_that_holds_no_pair_is_refused_with_what_is_needed():
    with pytest.raises(LoadTestError, match=r"stock must be up together and need 1000 MiB: got 800"):
        cut(list_rungs("resnet50"), available=1000)
