"""The rows of the table of speed targets; `loadtest/targets.py` runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtest.bench import Bench
from loadtest.rows.bert import measure_equal_texts, measure_mixed_texts
from loadtest.rows.load import measure_load
from loadtest.rows.outcome import Outcome
from loadtest.rows.resnet50 import (
    measure_bf16,
    measure_fp32,
    measure_int8,
    measure_latency,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    title: str
    measure: Callable[[Bench], Outcome]


PHOTO = "one 500×375 photograph as JPEG a request"

# `load` comes last: it takes over the starts that the others have made.
ROWS = (
    Row(name="resnet50-int8", title=f"ResNet50 INT8 over REST, {PHOTO}", measure=measure_int8),
    Row(name="resnet50-bf16", title=f"ResNet50 BF16 over REST, {PHOTO}", measure=measure_bf16),
    Row(name="resnet50-fp32", title=f"ResNet50 FP32 over REST, {PHOTO}", measure=measure_fp32),
    Row(
        name="bert-128",
        title="BERT INT8 over REST, one text of 128 tokens a request",
        measure=measure_equal_texts,
    ),
    Row(
        name="bert-mixed",
        title="BERT INT8 over REST, mixed lengths (log-normal, median 24 tokens, at most 512)",
        measure=measure_mixed_texts,
    ),
    Row(
        name="resnet50-latency",
        title=f"ResNet50 INT8, PROFILE=latency, one request at a time, {PHOTO}",
        measure=measure_latency,
    ),
    Row(
        name="load",
        title="Load time: the kit with one model, to all shapes warmed and checked",
        measure=measure_load,
    ),
)
