"""Cleaning takes the kit's own files, never another's, and never from under a running server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.folders import check_run_folder
from config.write import write_site
from server.cli import main
from server.launch import prepare_folders
from server.processes import JAVA_MAIN
from server.stop import clean
from tests.config.sites import make_door


@pytest.fixture
def used(run):
    """A run directory as a stopped server leaves it."""
    write_site(make_door("two-cores"), run.path)
    for _ in range(2):
        prepare_folders(run)
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
    kept = f"cleaned {used.path}; kept what make tune found: {used.tuned}"
    assert clean(used) == kept
    assert used.tuned.read_text() == content
    assert clean(used) == kept
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


def test_the_server_is_stopped_first_even_without_a_plan(run, dummy, capsys):
    process = dummy(run.path, JAVA_MAIN)
    assert main(["clean", "--run-dir", str(run.path)]) == 0
    assert process.wait(60) == -signal.SIGTERM
    assert capsys.readouterr().out.startswith("stopped 1 TorchServe\n")


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["clean", "stop", "status"])
def test_the_standard_library_is_enough(planned, command):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from server.cli import main; sys.exit(main())"
    words = [sys.executable, "-I", "-S", "-c", code, command, "--run-dir", str(planned.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == (1 if command == "status" else 0)
