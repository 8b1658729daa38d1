"""Timings of batches are taken of what is sent, where that is said."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.payloads import make_payloads
from loadtest.systems import timings


def test_payloads_reach_the_process_that_times_them(tmp_path, monkeypatch):
    payloads, seen = make_payloads("photos", model="resnet50"), []
    output = tmp_path / "profile.json"
    output.write_text(json.dumps({"models": {"resnet50": {"variants": {"ipex int8": {}}}}}))

    def run(arguments: list[str]) -> str:
        if "--bodies" in arguments:
            folder = Path(arguments[arguments.index("--bodies") + 1])
            seen.append({one.name: [file.read_bytes() for file in sorted(one.iterdir())]
                         for one in folder.iterdir()})  # fmt: skip
        return "{}"

    monkeypatch.setattr(timings, "_run", run)
    known = timings.take_timings("resnet50", [], tmp_path, output, payloads={"resnet50": payloads})
    assert known == {"resnet50": {"ipex int8": {}}}
    assert seen == [{"resnet50": [payload.body for payload in payloads]}]
    timings.take_timings("resnet50", [], tmp_path, output)
    assert len(seen) == 1
