"""What one core's arithmetic allows at best, against what the models reach.

The best matrix product or 3×3 convolution that PyTorch's libraries compute on one pinned core is the most
that any model can be given. Divided into a model's multiply-adds it is a rate that no server here can pass.
It is a probe: nothing is served, and its figures are the best of some stretches.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import LoadTestError
from loadtest.experiments.targets import experiment
from loadtest.experiments.targets.judge import find_alone, look_at
from loadtest.results.kept import (
    RESULTS,
    Kept,
    list_results,
    read_kept,
    start_result,
    write_json,
)

KIND = "ceiling"
SIZES = (512, 1024, 2048)
"""Of square matrices; smaller ones do not fill the kernels."""
CHANNELS = (64, 128, 256)
"""Of 3×3 convolutions, on EDGE × EDGE pixels without padding."""
EDGE = 56
COPY_BYTES = 1 << 28
"""Beyond any cache that one core has to itself."""
REPEATS = 5
STRETCH_S = 0.2
RESNET50 = 4.089e9
"""Multiply-adds of one 224×224 image (torchvision, ResNet50_Weights: 4.09 GFLOPS, counted as such)."""
BERT_TOKEN = 12 * (4 * 768**2 + 2 * 768 * 3072)
"""Multiply-adds of one token in BERT base's linear layers (Devlin et al. 2018: 12 layers, 768, 3072).
Attention comes on top: 12 · 2 · 768 for each token that is attended to, 3 % at 128 tokens."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Something to compute again and again."""

    compute: Callable[[], object]
    multiply_adds: float


def run_ceiling(results: Path = RESULTS) -> list[str]:
    """Measure one core, keep it, and give the table's lines; this process stays on that core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before torch counts the CPUs
    best = {precision: max(map(time_work, make())) for precision, make in WORK.items()}
    reached = read_reached(results)
    kept = start_result(KIND, KIND, {}, results)
    moved = time_work(make_copy())
    found = {"multiply_adds_per_s": best, "bytes_per_s": moved, "resnet50_per_core": reached}
    write_json(kept.folder / "ceiling.json", found)
    return render(best, reached)


def make_float_work(name: str) -> Iterator[Work]:
    """Products and convolutions of one floating-point type."""
    import torch

    torch.set_num_threads(1)
    kind = {"dtype": getattr(torch, name), "device": "cpu"}
    for size in SIZES:
        layer, rows = torch.nn.Linear(size, size, bias=False, **kind), torch.randn(size, size, **kind)
        yield Work(compute=_without_gradients(layer, rows), multiply_adds=size**3)
    for channels in CHANNELS:
        conv = torch.nn.Conv2d(channels, channels, 3, bias=False, **kind)
        image = torch.randn(1, channels, EDGE + 2, EDGE + 2, **kind)
        conv, image = (one.to(memory_format=torch.channels_last) for one in (conv, image))
        yield Work(compute=_without_gradients(conv, image), multiply_adds=9 * channels**2 * EDGE**2)


def _without_gradients(layer: Any, values: Any) -> Callable[[], object]:
    layer.requires_grad_(False)
    return lambda: layer(values)


def make_int8_work() -> Iterator[Work]:
    """u8 × s8 to u8 through oneDNN, as engines' INT8 layers compute it."""
    import torch

    torch.set_num_threads(1)
    torch.backends.quantized.engine = "onednn"
    for size in SIZES:
        rows = torch.quantize_per_tensor(torch.rand(size, size), 1 / 255, 0, torch.quint8)
        weights = torch.quantize_per_tensor(torch.randn(size, size), 1 / 32, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weights, None)
        compute = functools.partial(torch.ops.quantized.linear, rows, packed, 0.1, 128)
        yield Work(compute=compute, multiply_adds=size**3)
    for channels in CHANNELS:
        image = torch.rand(1, channels, EDGE + 2, EDGE + 2).to(memory_format=torch.channels_last)
        pixels = torch.quantize_per_tensor(image, 1 / 255, 0, torch.quint8)
        kernel = torch.quantize_per_tensor(torch.randn(channels, channels, 3, 3), 1 / 32, 0, torch.qint8)
        plain = ([1, 1], [0, 0], [1, 1], 1)  # stride, padding, dilation, groups
        packed = torch.ops.quantized.conv2d_prepack(kernel, None, *plain)
        compute = functools.partial(torch.ops.quantized.conv2d, pixels, packed, 0.1, 128)
        yield Work(compute=compute, multiply_adds=9 * channels**2 * EDGE**2)


def make_copy() -> Work:
    """From and to memory, in bytes instead of multiply-adds: what a shape without reuse is bound by."""
    import torch

    source = torch.ones(COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    return Work(compute=functools.partial(target.copy_, source), multiply_adds=2 * COPY_BYTES)


WORK: dict[str, Callable[[], Iterator[Work]]] = {
    "fp32": functools.partial(make_float_work, "float32"),
    "bf16": functools.partial(make_float_work, "bfloat16"),
    "int8": make_int8_work,
}


def time_work(work: Work, clock: Callable[[], float] = time.perf_counter) -> float:
    """Multiply-adds a second, the median of some stretches."""
    work.compute()
    rates = []
    for _ in range(REPEATS):
        began, count = clock(), 0
        while (took := clock() - began) < STRETCH_S or not count:
            work.compute()
            count += 1
        rates.append(count * work.multiply_adds / took)
    return statistics.median(rates)


def read_reached(results: Path) -> dict[str, float]:
    """Precision → images a second that ResNet50 alone reached on one core, by the latest targets with it."""
    found: dict[str, float] = {}
    for folder in list_results(results, experiment.KIND):
        kept = read_kept(folder)
        found |= {precision: rate for precision in WORK if (rate := find_reached(kept, precision))}
    return found


def find_reached(kept: Kept, precision: str) -> float | None:
    """By the in-process system; None where it was not measured, or is INVALID."""
    seen = look_at(kept, kept.find(f"resnet50-{precision}"))
    try:
        series = seen.take(f"in-process resnet50 {precision}")
    except LoadTestError:
        return None
    alone, plan = find_alone(series), series.facts.plan
    if not (alone and plan):
        return None
    workers, cores = (plan["layout"][name]["value"] for name in ("workers_per_model", "cores_per_worker"))
    return alone[1] / (workers * cores)


def render(best: Mapping[str, float], reached: Mapping[str, float]) -> list[str]:
    """One line for each precision."""
    head = f"{'one core':<9}{'10⁹ multiply-adds/s':>21}{'ResNet50 images/s':>19}{'BERT tokens/s':>15}"
    lines = [f"{head}   ResNet50 in process, model alone"]
    for precision, rate in best.items():
        figures = f"{precision:<9}{rate / 1e9:>21.0f}{rate / RESNET50:>19.1f}{rate / BERT_TOKEN:>15.0f}"
        if precision in reached:
            share = reached[precision] * RESNET50 / rate
            figures += f"   {reached[precision]:.1f} images/s: {share:.0%} of the ceiling"
        lines.append(figures)
    return [
        *lines,
        "The ceiling is the best of some matrix products and convolutions alone; no setting passes it.",
    ]
