"""A short load on the real server: what is kept is enough to judge it, whatever the machine did meanwhile."""

from __future__ import annotations

import subprocess
import sys

from loadtest.results.kept import list_results, read_kept
from tests.end_to_end.kit import ROOT, Kit


def test_a_load_is_judged_verified_and_kept(kit: Kit, tmp_path):
    command = [sys.executable, "-m", "loadtest", "run", "--run-dir", str(kit.run_dir)]
    command += ["--scenario", "resnet50-closed", "--payloads", "one-photo", "--duration", "3", "--users", "8"]
    done = subprocess.run(
        [*command, "--repeats", "1", "--results", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    (folder,) = list_results(tmp_path)
    kept = read_kept(folder)
    (series,) = kept.list_series(kept.blocks[0])
    trial = series.trials[-1]
    assert trial.requests > 0
    assert trial.errors == trial.answers.wrong == 0
    assert trial.answers.checked >= trial.requests
    assert trial.answers.labels_same == trial.answers.labels_judged > 0
    assert series.facts.verify_before["good"] is series.facts.verify_after["good"] is True
    assert series.facts.pids_before == series.facts.pids_after
    assert trial.cpu.by_role["worker"] > 0
    assert set(trial.memory_mib) > {f"resnet50 {pid}" for pid in kit.workers("resnet50")}
    # A busy machine makes it INVALID, and then there is no figure.
    assert ("INVALID" in done.stdout) is (done.returncode == 1), done.stdout + done.stderr
    assert f"kept: {folder}" in done.stdout
