"""Blocks hold what each rung is compared with, and no more than the memory does."""

from __future__ import annotations

import pytest

from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.blocks import MOST_SERVERS, USABLE_MEMORY, cut_groups
from loadtest.experiments.ladder.rungs import MODELS, list_all, list_rungs

PLENTY = 1e6


def cut(rungs, memory=1000, available=PLENTY):
    return cut_groups(rungs, lambda name: memory, available)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("available", [PLENTY, 4000 / USABLE_MEMORY, 3000 / USABLE_MEMORY])
def test_every_rung_is_first_measured_beside_the_one_it_is_compared_with(model, available):
    rungs, seen = list_all(model), set()
    for group in cut(rungs, available=available):
        assert len(group.members) == len(set(group.members)) <= MOST_SERVERS
        assert 1000 * len(group.members) <= USABLE_MEMORY * available
        new = [one for one in rungs if one.name in set(group.members) - seen]
        assert {one.before for one in new if one.before} <= set(group.members)
        seen |= set(group.members)
    assert seen == {one.name for one in rungs if not one.reason}


@pytest.mark.parametrize("model", MODELS)
def test_blocks_have_names_of_their_own_and_are_linked_by_rungs_that_both_have(model):
    groups = cut(list_all(model))
    assert len({group.name for group in groups}) == len(groups)
    for number, group in enumerate(groups[1:], start=1):
        earlier = {name for one in groups[:number] for name in one.members}
        assert set(group.members) & earlier


def test_memory_that_holds_no_pair_is_refused_with_what_is_needed():
    with pytest.raises(LoadTestError, match=r"stock must be up together and need 1000 MiB: got 800"):
        cut(list_rungs("resnet50"), available=1000)
