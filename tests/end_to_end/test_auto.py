"""PRECISION=auto from the timings on this host to the precision that the live workers compute in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from config.plan import read_plan
from config.rules.variants import MARGIN
from tests.end_to_end.kit import ROOT, Kit, find_port, running

TIMING_SECONDS = 400


def time_models(kit: Kit, models: str, output: Path) -> dict:
    """`make timings`."""
    folders = ["--models-dir", str(kit.models_dir), "--model-store", str(kit.store)]
    job = kit.call(
        "config", "--models", models, *folders, "--front", "none", "--precision", "auto", "--timing-job"
    )
    assert job.returncode == 0, job.stderr
    command = [sys.executable, "-m", "models", "time", "--job", job.stdout, "--store", str(kit.store)]
    subprocess.run([*command, "--output", str(output)], cwd=ROOT, check=True, timeout=TIMING_SECONDS)
    return json.loads(output.read_text(encoding="utf-8"))["models"]


def test_auto_serves_what_was_fastest_here(store, tmp_path, canary):
    kit = Kit(run_dir=tmp_path / "run", store=store, port=find_port())
    timings = tmp_path / "timings.json"
    entries = time_models(kit, "resnet50", timings)["resnet50"]["variants"]
    speed = {name: entry["samples_per_second"] for name, entry in entries.items() if "problem" not in entry}
    assert "ipex fp32" in speed

    kit.plan("resnet50", "--precision", "auto", "--timings", str(timings))
    planned = read_plan(kit.run_dir / "plan.json").models["resnet50"].precision
    # A faster one may be left for a more exact one, but for no more than the margin.
    chosen = speed[f"ipex {planned.value}"]
    assert chosen * MARGIN >= max(speed.values())
    assert f"{chosen:g}" in planned.reason

    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        answer = kit.request("models/resnet50?customized=true", management=True).json[0]
        described = answer["customizedMetadata"]
        described = json.loads(described) if isinstance(described, str) else described
        assert described["precision"] == planned.value
        assert kit.predict("resnet50", canary).status == 200
