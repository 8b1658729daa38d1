"""A short load on the real server: what is kept is enough to judge it, whatever the machine did meanwhile."""

from __future__ import annotations

from tests.end_to_end.kit import Kit


def test_a_load_is_judged_verified_and_kept(kit: Kit, load_with):
    load = load_with("locust")
    series = load.series["resnet50"]
    (window,) = series.windows
    assert window.answers.wrong == 0
    assert window.answers.checked >= window.requests
    assert window.answers.labels_same == window.answers.labels_judged > 0
    assert series.facts.verify_before["good"] is series.facts.verify_after["good"] is True
    assert series.facts.pids_before == series.facts.pids_after
    assert window.cpu.by_role["worker"] > 0
    assert set(window.memory_mib) > {f"resnet50 {pid}" for pid in kit.workers("resnet50")}
    # A busy machine makes it INVALID, and then there is no figure.
    done = load.done
    assert ("INVALID" in done.stdout) is (done.returncode == 1), done.stdout + done.stderr
    assert f"report: {load.folder}/report.html" in done.stdout
