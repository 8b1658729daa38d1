"""Cleaning takes the kit's own files, never another's, and never from under a running server."""

from __future__ import annotations

import json

import pytest

from config.folders import check_run_folder, claim_run_folder
from config.plan import write_plan
from server.launch import prepare_folders
from server.stop import clean


@pytest.fixture
def used(run, plan):
    """A run directory as a stopped server leaves it."""
    claim_run_folder(run.path)
    write_plan(plan, run.plan)
    for folder in (run, run.instance("a1"), run.instance("b1")):
        folder.path.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            prepare_folders(folder)
    run.next.mkdir()
    for file in (run.failure, run.lock, run.console_log, run.state, run.timings):
        file.write_text("")
    run.samples.mkdir()
    return run


def test_what_the_kit_made_goes_and_the_folder_with_it(used):
    assert clean(used) == f"removed {used.path}"
    assert not used.path.exists()


def test_what_make_tune_found_is_kept_and_the_folder_is_still_the_kits(used):
    content = json.dumps({"schema": 1, "made_for": {}, "limit": {}, "chosen": {}, "evidence": {}})
    used.tuned.write_text(content)
    kept = f"cleaned {used.path}; what make tune found stays: {used.tuned}"
    assert clean(used) == clean(used) == kept
    assert used.tuned.read_text() == content
    check_run_folder(used.path)
    (used.path / "notes.txt").write_text("mine")
    assert clean(used) == f"{kept}; not the kit's and left alone: notes.txt"


def test_files_of_a_person_stay(used):
    (used.path / "notes.txt").write_text("mine")
    for name in ("build", "test-store"):  # the kit's in the checkout's run/ alone
        (used.path / name).mkdir()
    assert clean(used).endswith("not the kit's and left alone: build, notes.txt, test-store")
    assert sorted(file.name for file in used.path.iterdir()) == ["build", "notes.txt", "test-store"]


def test_a_folder_that_is_no_run_directory_is_left_alone(run):
    (run.path / "logs").mkdir()
    assert "holds no plan of the kit" in clean(run)
    assert (run.path / "logs").exists()


def test_a_link_is_removed_and_what_it_leads_to_stays(used, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    used.samples.rmdir()
    used.samples.symlink_to(precious)
    clean(used)
    assert precious.exists()
