"""A variant differs from its archive in the definition alone, and says so."""

from __future__ import annotations

import json
import zipfile

import pytest

from loadtest.errors import LoadTestError
from loadtest.systems.variants import DEFINITION, vary_archive
from server.archives import SUMS_FILE, check_packed, read_archive

CHANGE = {"token_lengths": [24]}


def read_members(archive):
    with zipfile.ZipFile(archive) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def read_definition(archive):
    return json.loads(read_members(archive)[DEFINITION])


def test_only_the_definition_and_its_sum_differ(tiny_text_archive, tmp_path):
    variant = vary_archive(tiny_text_archive, tmp_path, model=CHANGE)
    before, after = read_members(tiny_text_archive), read_members(variant)
    assert list(after) == list(before)
    assert [name for name in before if before[name] != after[name]] == [DEFINITION, SUMS_FILE]
    check_packed([read_archive(variant)])


def test_members_stay_uncompressed_with_their_times(tiny_text_archive, tmp_path):
    variant = vary_archive(tiny_text_archive, tmp_path, model=CHANGE)
    with zipfile.ZipFile(tiny_text_archive) as old, zipfile.ZipFile(variant) as new:
        assert {entry.compress_type for entry in new.infolist()} == {zipfile.ZIP_STORED}
        assert [one.date_time for one in new.infolist()] == [one.date_time for one in old.infolist()]


def test_the_definition_changes_in_what_was_asked(tiny_text_archive, tmp_path):
    old = read_definition(tiny_text_archive)
    new = read_definition(vary_archive(tiny_text_archive, tmp_path, model=CHANGE))
    assert new["model"] == {**old["model"], **CHANGE}
    assert new["notes"] == [*old["notes"], 'a variant for a baseline: model {"token_lengths": [24]}']
    same = set(old) - {"model", "notes"}
    assert {name: new[name] for name in same} == {name: old[name] for name in same}


def test_different_changes_have_different_ids(tiny_text_archive, tmp_path):
    ids = {
        read_archive(
            vary_archive(tiny_text_archive, tmp_path / str(n), model={"token_lengths": [n]})
        ).archive_id
        for n in (16, 24)
    }
    assert len(ids | {read_archive(tiny_text_archive).archive_id}) == 3


def test_an_unknown_field_is_refused(tiny_text_archive, tmp_path):
    with pytest.raises(LoadTestError, match=r"model has .*token_lengths.*: got token_length$"):
        vary_archive(tiny_text_archive, tmp_path, model={"token_length": [24]})


def test_an_archive_is_never_overwritten_by_its_variant(tiny_text_archive):
    before = tiny_text_archive.read_bytes()
    with pytest.raises(LoadTestError, match="must go to another folder"):
        vary_archive(tiny_text_archive, tiny_text_archive.parent, model=CHANGE)
    assert tiny_text_archive.read_bytes() == before
