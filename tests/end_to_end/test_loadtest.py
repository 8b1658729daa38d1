"""A short load on the real server: what is kept is enough to judge it, whatever the machine did meanwhile."""

from __future__ import annotations

import subprocess
import sys

from loadtest.results import list_results, read_result
from tests.end_to_end.kit import ROOT, Kit


def test_a_load_is_validated_verified_and_kept(kit: Kit, load_with):
    load = load_with("locust")
    series = load.series["resnet50"]
    (window,) = series.windows
    assert window.answers.wrong == 0
    assert window.answers.checked >= window.requests
    assert window.answers.labels_same == window.answers.labels_compared > 0
    assert series.facts.verify_before["good"] is series.facts.verify_after["good"] is True
    assert series.facts.pids_before == series.facts.pids_after
    assert window.cpu.by_role["worker"] > 0
    assert set(window.memory_mib) > {f"resnet50 {pid}" for pid in kit.workers("resnet50")}
    # A busy machine makes it INVALID, and then there is no figure.
    done = load.done
    assert ("INVALID" in done.stdout) is (done.returncode == 1), done.stdout + done.stderr
    assert f"report: {load.folder}/report.html" in done.stdout


def test_a_model_of_any_name_is_measured_in_both_loops(tiny_server: Kit, tmp_path):
    """Nothing but the server is named; seconds are enough to see what is sent, and that it is validated."""
    command = [sys.executable, "-m", "loadtest", "run", f"RUN_DIR={tiny_server.run_dir}"]
    command += ["--results", str(tmp_path), "DURATION=3", "--repeats", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    (folder,) = list_results(tmp_path)
    kept = read_result(folder)
    names = [f"tiny_image-{loop}" for loop in ("closed", "open-capacity", "open")]
    assert [*kept.list_blocks()][:2] == names[:2], done.stdout + done.stderr
    for block in map(kept.find_block, kept.list_blocks()):
        (series,) = block.series
        (window,) = series.windows
        assert (series.load.payloads, window.answers.wrong) == ("photos", 0)
        assert window.answers.checked >= window.requests > 0
