"""What oneDNN's calls came to, by primitive, shape and code: operations from the shapes, time from the log.

The peak is what `make ceiling` measured on one core here, so a share of it needs no counter. Bytes are those
of the tensors, each moved once: caches make it less, blocking makes it more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadtest.experiments.profile.onednn import Call, name_instructions

SIZES = {"f64": 8, "f32": 4, "s32": 4, "bf16": 2, "f16": 2, "u8": 1, "s8": 1}
"""Bytes of a value; 8-bit floats (f8_e4m3 …) are 1, others unknown."""
_SIZE = re.compile(r"(mb|ic|oc|[io][dhw]|k[dhw]|g)(\d+)")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Of this machine, one core; None where `make ceiling` has not measured it."""

    multiply_adds: Mapping[str, float]
    """Precision → multiply-adds a second."""
    bytes_per_s: float | None = None
    """From and to memory."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """All calls of one primitive in one shape by one piece of code."""

    kind: str
    shape: str
    implementation: str
    types: str
    post_ops: tuple[str, ...]
    calls: int
    ms: float
    multiply_adds: float | None
    """Of all calls; None for what computes no sums of products."""
    bytes_moved: float | None
    precision: str
    moves_weights: bool = False

    @property
    def instructions(self) -> str:
        return name_instructions(self.implementation)

    def find_share(self, peak: Peak, threads: int) -> float | None:
        """Of the peak of so many cores (0 to 1, above it where the peak was measured too low)."""
        best = peak.multiply_adds.get(self.precision)
        if not best or not self.multiply_adds or not self.ms:
            return None
        return self.multiply_adds / (self.ms / 1000) / (best * threads)

    def find_side(self, peak: Peak) -> str:
        """Of the ridge: what the shape would be bound by if it came from memory."""
        best = peak.multiply_adds.get(self.precision)
        if not best or not peak.bytes_per_s or not self.bytes_moved:
            return ""
        intensity = (self.multiply_adds or 0.0) / self.bytes_moved
        return "compute" if intensity >= best / peak.bytes_per_s else "memory"


def break_down(calls: Iterable[Call]) -> list[Line]:
    """The dearest first."""
    groups: dict[tuple, list[Call]] = {}
    for one in calls:
        types = "→".join(one.types[name] for name in ("src", "wei", "dst") if name in one.types)
        key = (one.kind, one.problem, one.implementation, types, one.post_ops, one.moves_weights)
        groups.setdefault(key, []).append(one)
    lines = [_make_line(key, each) for key, each in groups.items()]
    return sorted(lines, key=lambda line: -line.ms)


def _make_line(key: tuple, calls: list[Call]) -> Line:
    kind, shape, implementation, types, post_ops, moves_weights = key
    first = calls[0]
    sums, moved = count_multiply_adds(kind, shape), count_bytes(first)
    return Line(
        kind=kind,
        shape=shape,
        implementation=implementation,
        types=types,
        post_ops=post_ops,
        calls=len(calls),
        ms=sum(one.ms for one in calls),
        multiply_adds=None if sums is None else sums * len(calls),
        bytes_moved=None if moved is None else moved * len(calls),
        precision=find_precision(first.types),
        moves_weights=moves_weights,
    )


def find_precision(types: Mapping[str, str]) -> str:
    """In the kit's words, by what is multiplied."""
    kinds = {types.get("src", ""), types.get("wei", "")}
    if kinds & {"u8", "s8"}:
        return "int8"
    return "bf16" if kinds & {"bf16", "f16"} else "fp32"


def read_sizes(problem: str) -> dict[str, int]:
    """`mb2_ic64oc64_ih112oh112kh3…` by name."""
    return {name: int(value) for name, value in _SIZE.findall(problem)}


def read_dims(problem: str) -> list[tuple[int, ...]]:
    """`2x64:64x1000` as tuples; empty where it is of another form."""
    parts = problem.split(":")
    if not all(re.fullmatch(r"\d+(x\d+)*", part) for part in parts):
        return []
    return [tuple(int(one) for one in part.split("x")) for part in parts]


def count_multiply_adds(kind: str, problem: str) -> float | None:
    """Of one call; None for other kinds, and for a shape that cannot be read."""
    if kind == "matmul":
        dims = read_dims(problem)
        if len(dims) < 2 or len(dims[0]) < 2:
            return None
        batch = max(math.prod(one[:-2]) for one in dims[:2])
        return float(batch * dims[0][-2] * dims[0][-1] * dims[1][-1])
    size = read_sizes(problem)
    if kind not in ("convolution", "deconvolution", "inner_product") or not {"mb", "ic", "oc"} <= set(size):
        return None
    inner = ("kd", "kh", "kw", "od", "oh", "ow") if kind != "inner_product" else ("id", "ih", "iw")
    sums = math.prod(size.get(name, 1) for name in ("mb", "ic", "oc", *inner))
    return sums / size.get("g", 1)


def count_bytes(call: Call) -> float | None:
    """Of one call's tensors; None for a shape or a type that cannot be read."""
    each = count_values(call.kind, call.problem)
    widths = {name: _find_width(kind) for name, kind in call.types.items()}
    if each is None or any(widths.get(name) is None for name in each):
        return None
    return float(sum(count * (widths[name] or 0) for name, count in each.items()))


def _find_width(kind: str) -> int | None:
    return 1 if kind.startswith("f8_") else SIZES.get(kind)


def count_values(kind: str, problem: str) -> dict[str, int] | None:
    """src, wei, dst → values in it."""
    dims, size = read_dims(problem), read_sizes(problem)
    if kind == "matmul" and len(dims) >= 2:
        out = math.prod(dims[0][:-1]) * dims[1][-1]
        return {"src": math.prod(dims[0]), "wei": math.prod(dims[1]), "dst": out}
    if dims:
        return {"src": math.prod(dims[0]), "dst": math.prod(dims[-1])}
    if "mb" not in size or "ic" not in size:
        return None
    source = math.prod(size.get(name, 1) for name in ("mb", "ic", "id", "ih", "iw"))
    out = math.prod(size.get(name, 1) for name in ("mb", "od", "oh", "ow")) * size.get("oc", size["ic"])
    if "oc" not in size:
        return {"src": source, "dst": out}
    inner = ("kd", "kh", "kw") if kind != "inner_product" else ("id", "ih", "iw")
    weights = math.prod(size.get(name, 1) for name in ("ic", "oc", *inner)) // size.get("g", 1)
    return {"src": source, "wei": weights, "dst": out}
