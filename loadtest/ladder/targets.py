"""Whether the top rung agrees with the last result of `make targets` for the same server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.ladder.rows import Row, compare_over, find_row
from loadtest.ladder.rungs import BERT, RESNET50, STOCK_ONE, TOP
from loadtest.targets import RESULTS

ROWS = {RESNET50: "resnet50-int8", BERT: "bert-mixed"}
KIT, STOCK = "kit int8", "stock TorchServe"


def compare_with_targets(model: str, rows: Sequence[Row], results: Path = RESULTS) -> dict[str, Any]:
    """Both figures and their difference; empty when there is nothing to compare."""
    top, file = find_row(rows, TOP), find_target(model, results)
    if top is None or not top.is_valid or top.rate is None or file is None:
        return {}
    result = json.loads(file.read_text(encoding="utf-8"))
    medians = {side["name"]: side["requests_per_second"]["median"] for side in result["sides"]}
    over_stock = compare_over(rows, TOP, STOCK_ONE)
    pairs = [
        ("requests/s of the top", "", top.rate.value, medians.get(KIT)),
        ("top / stock with one worker and batch size 32", "×", over_stock, _divide(medians)),
    ]
    figures = [
        {"what": what, "unit": unit, "ladder": here, "targets": there, "difference": here / there - 1,
         "row": result["row"], "time": result["time"]}
        for what, unit, here, there in pairs if here and there
    ]  # fmt: skip
    return {"figures": figures} if figures else {}


def find_target(model: str, results: Path) -> Path | None:
    """The latest; None when there is none."""
    return max(results.glob(f"*/{ROWS[model]}.json"), default=None)


def _divide(medians: Mapping[str, float]) -> float | None:
    return medians[KIT] / medians[STOCK] if {KIT, STOCK} <= set(medians) else None
