"""Goes on with a result that was cut off: only where everything is as it was when it began."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.results.kept import Kept, plain, read_kept
from loadtest.trials.block import Experiment


def resume_result(experiment: Experiment, folder: Path) -> Kept:
    """What was kept; LoadTestError names all that differs from what it was started with."""
    kept = read_kept(folder)
    differences = list(find_differences(kept.asked, plain(experiment.asked)))
    if kept.kind != experiment.kind:
        differences.insert(0, f"experiment: was {kept.kind}, is {experiment.kind}")
    if differences:
        listed = "\n  ".join(differences)
        raise LoadTestError(
            f"{folder.name} can only be resumed where everything is as it was:\n  {listed}\n"
            "start a new one, without RESUME"
        )
    return kept


def find_differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Each value that is not the same, by its path."""
    if isinstance(then, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*then, *now]):
            yield from find_differences(then.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif then != now:
        yield f"{where}: was {_show(then)}, is {_show(now)}"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}…"
