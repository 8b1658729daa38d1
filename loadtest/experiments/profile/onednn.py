"""Reads oneDNN's verbose log: which primitives ran, in which shapes, by which code, how long.

The format is oneDNN's (https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html). It differs between
the copies that PyTorch and its engines carry: `v0` has no version field, `v1` has; a time stamp may stand in
front.
A line that fits none of the forms is counted under its first words and named, never dropped in silence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MARKERS = ("onednn_verbose", "dnnl_verbose", "mkldnn_verbose")
EXEC_FIELDS = 9
"""engine, kind, implementation, propagation, descriptors, attributes, auxiliary, problem, milliseconds."""
COMPUTING = ("convolution", "deconvolution", "inner_product", "matmul")
"""Primitives that compute sums of products."""
_VERSION, _STAMP = re.compile(r"v\d+"), re.compile(r"\d+\.\d+")
_TYPE = re.compile(r"(src\d*|wei|bia|dst\d*)[:_]([a-z]+\d+(?:_e\dm\d)?)(?=:|$)")
_POST_OPS = re.compile(r"attr-post-ops:(\S+)|post_ops:'([^']*)'")
_LAYOUT = re.compile(r"dst[:_]\w+:[^:]*:blocked:(\w*)")
INSTRUCTIONS = (
    ("amx", "AMX"), ("vnni", "VNNI"), ("bf16", "AVX-512 BF16"), ("fp16", "AVX-512 FP16"),
    ("avx10", "AVX10"), ("avx512", "AVX-512"), ("avx2", "AVX2"), ("sse41", "SSE4.1"),
    ("sve", "SVE"), ("acl", "Arm Compute Library"), ("asimd", "NEON"), ("ref", "reference code"),
)  # fmt: skip
"""Part of an implementation's name → what it computes with; the first that fits."""


@dataclass(frozen=True)
class Call:
    """One primitive that ran."""

    kind: str
    implementation: str
    types: Mapping[str, str]
    """src, wei, bia, dst → type, as far as the line has them."""
    attributes: str
    problem: str
    """The shape."""
    ms: float
    descriptors: str = ""

    @property
    def post_ops(self) -> tuple[str, ...]:
        """What is fused behind it, such as eltwise_relu."""
        found = _POST_OPS.search(self.attributes)
        text = (found[1] or found[2]) if found else ""
        return tuple(one.split(":")[0] for one in re.split(r"[+;]", text) if one)

    @property
    def moves_weights(self) -> bool:
        """Of a reorder: only weights are blocked by their first dimension; batches never are."""
        layout = _LAYOUT.search(self.descriptors)
        return bool(layout and layout[1].startswith("A"))


@dataclass(kw_only=True)
class Log:
    """Everything that a log said."""

    calls: list[Call] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    """First words → lines that could not be read."""


def parse_log(lines: Iterable[str]) -> Log:
    """Lines without a marker are not oneDNN's; a marker may stand behind a logger's own words."""
    log = Log()
    for line in lines:
        starts = [place for marker in MARKERS if (place := line.find(f"{marker},")) >= 0]
        if starts:
            _read_line(log, line[min(starts) :].strip().split(",")[1:])
    return log


def _read_line(log: Log, words: list[str]) -> None:
    whole = words
    if words and _VERSION.fullmatch(words[0]):
        words = words[1:]
    if words and _STAMP.fullmatch(words[0]):
        words = words[1:]
    scope, rest = (words[0], words[1:]) if words else ("", [])
    if scope in ("exec",) or scope.startswith("create"):  # v0: all lines are of primitives
        scope, rest = "primitive", words
    verb = rest[0] if rest else ""
    if scope == "info":
        # `oneDNN v3.7.1 (commit …)`; the others tell of the CPU and its threads.
        log.versions += [word.split(" (")[0] for word in rest if word.startswith(("oneDNN v", "DNNL v"))]
    elif scope == "primitive" and verb == "exec" and (call := _read_call(rest[1:])):
        log.calls.append(call)
    # A graph's partitions are made of primitives, which are among the calls too.
    elif scope == "graph" and verb == "exec" and _is_number(rest[-1]) and len(rest) > 4:
        return
    elif not (scope in ("primitive", "graph") and verb.startswith(("info", "create"))):
        log.unknown[",".join(whole[:4])] += 1


def _read_call(words: list[str]) -> Call | None:
    if len(words) != EXEC_FIELDS or not _is_number(words[-1]):
        return None
    _, kind, implementation, _, descriptors, attributes, _, problem, ms = words
    types = dict(_TYPE.findall(descriptors))
    return Call(kind, implementation, types, attributes, problem, float(ms), descriptors)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def name_instructions(implementation: str) -> str:
    """What the code computes with, by its name; the name itself where no part of it is known."""
    return next((word for part, word in INSTRUCTIONS if part in implementation.lower()), implementation)


@dataclass(frozen=True)
class Line:
    """All calls of one primitive in one shape by one piece of code."""

    kind: str
    shape: str
    implementation: str
    types: str
    post_ops: tuple[str, ...]
    moves_weights: bool
    calls: int
    ms: float

    @property
    def computes(self) -> bool:
        return self.kind in COMPUTING


def break_down(calls: Iterable[Call]) -> list[Line]:
    """The dearest first."""
    groups: dict[tuple[str, str, str, str, tuple[str, ...], bool], list[float]] = {}
    for one in calls:
        types = "→".join(one.types[name] for name in ("src", "wei", "dst") if name in one.types)
        key = (one.kind, one.problem, one.implementation, types, one.post_ops, one.moves_weights)
        groups.setdefault(key, []).append(one.ms)
    lines = [Line(*key, len(each), sum(each)) for key, each in groups.items()]
    return sorted(lines, key=lambda line: -line.ms)
