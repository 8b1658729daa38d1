"""oneDNN's verbose log: which primitives ran, in which shapes, by which code, how long.

The format is oneDNN's (https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html). Of the copies that are
about, v0 has no version field, v1 has, and a time stamp may follow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import dropwhile
from typing import Any, NamedTuple

import pandas as pd

MOST_LINES, EXEC_FIELDS = 20_000, 9
"""engine, primitive, code, propagation, descriptors, attributes, auxiliary, shape, milliseconds."""
COMPUTING = ("convolution", "deconvolution", "inner_product", "matmul")
KEYS = ["primitive", "shape", "types", "code", "computes with", "fused", "of weights"]
INSTRUCTIONS = (
    ("amx", "AMX"), ("vnni", "VNNI"), ("bf16", "AVX-512 BF16"), ("fp16", "AVX-512 FP16"),
    ("avx10", "AVX10"), ("avx512", "AVX-512"), ("avx2", "AVX2"), ("sse41", "SSE4.1"),
    ("sve", "SVE"), ("acl", "Arm Compute Library"), ("asimd", "NEON"), ("ref", "reference code"),
)  # fmt: skip
"""Part of a code's name → what it computes with; the first that fits."""
_MARKED = re.compile(r"(?:onednn|dnnl|mkldnn)_verbose,.*")
_BEFORE = re.compile(r"v\d+|\d+\.\d+")
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_TYPE = re.compile(r"(src\d*|wei|bia|dst\d*)[:_]([a-z]+\d+(?:_e\dm\d)?)(?=:|$)")
_POST_OPS = re.compile(r"attr-post-ops:(\S+)|post_ops:'([^']*)'")
_OF_WEIGHTS = re.compile(r"dst[:_]\w+:[^:]*:blocked:A")  # batches are never blocked by the first dimension


class Log(NamedTuple):
    """KEYS and ms of each primitive that ran; first words → number of the lines that could not be read."""

    calls: pd.DataFrame
    versions: tuple[str, ...]
    unknown: Counter[str]


def take_marked(lines: Iterable[str]) -> list[str]:
    """oneDNN's, without what a logger wrote before them; the header first, then the last MOST_LINES."""
    marked = [found[0].strip() for line in lines if (found := _MARKED.search(line))]
    header = [line for line in marked if ",info," in line]
    return [*header, *[line for line in marked if ",info," not in line][-MOST_LINES:]]


def parse_log(lines: Iterable[str]) -> Log:
    """Of any lines."""
    calls, versions, unknown = [], [], Counter[str]()
    for whole in (line.split(",")[1:] for line in take_marked(lines)):
        words = list(dropwhile(_BEFORE.fullmatch, whole))
        if words and words[0].startswith(("exec", "create")):  # v0: all lines are of primitives
            words = ["primitive", *words]
        (scope, verb), rest = [*words, "", ""][:2], words[2:]
        timed = verb == "exec" and bool(rest) and _NUMBER.fullmatch(rest[-1])
        if scope == "info":  # `oneDNN v3.7.1 (commit …)`; the others tell of the CPU and its threads
            versions += [one.split(" (")[0] for one in words if re.match("(oneDNN|DNNL) v", one)]
        elif scope == "primitive" and timed and len(rest) == EXEC_FIELDS:
            calls.append(_read_call(rest))
        elif scope == "graph" and timed:
            continue  # its partitions are made of primitives, which are among the calls too
        elif scope not in ("primitive", "graph") or not verb.startswith(("info", "create")):
            unknown[",".join(whole[:4])] += 1
    frame = pd.DataFrame(calls, columns=[*KEYS, "ms"]).astype({"of weights": bool, "ms": float})
    return Log(calls=frame, versions=tuple(dict.fromkeys(versions)), unknown=unknown)


def _read_call(words: list[str]) -> tuple:
    _, kind, code, _, descriptors, attributes, _, shape, ms = words
    told, found = dict(_TYPE.findall(descriptors)), _POST_OPS.search(attributes)
    types = "→".join(told[name] for name in ("src", "wei", "dst") if name in told)
    fused = [one.split(":")[0] for one in re.split(r"[+;]", found[1] or found[2]) if one] if found else []
    width = next((word for part, word in INSTRUCTIONS if part in code.lower()), code)
    return kind, shape, types, code, width, " + ".join(fused), bool(_OF_WEIGHTS.search(descriptors)), ms


def break_down(log: Log) -> pd.DataFrame:
    """Equal calls as one row with their number and share of the time, the most expensive first."""
    lines = log.calls.groupby(KEYS, sort=False, as_index=False).agg(calls=("ms", "size"), ms=("ms", "sum"))
    lines["share %"] = lines["ms"] / (lines["ms"].sum() or 1.0)
    return lines.sort_values("ms", ascending=False, kind="stable", ignore_index=True)


def sum_up(log: Log) -> dict[str, Any]:
    """Cells of one server. Without convolutions there is no format to lose: reorders are not told by call."""
    calls, unknown = log.calls, log.unknown.most_common(3)
    weights, reorders = calls["of weights"], calls["primitive"] == "reorder"
    computing, moved = calls[calls["primitive"].isin(COMPUTING)], int((reorders & ~weights).sum())
    unread = [str(log.unknown.total()), *(f"{number} × {words}" for words, number in unknown)]
    return {
        "oneDNN": ", ".join(log.versions) or None, "calls": len(calls), "ms": float(calls["ms"].sum()),
        "in convolutions and products %": computing["ms"].sum() / (calls["ms"].sum() or 1.0),
        "reorders of activations": moved,
        "for each of these": moved / len(computing) if "convolution" in {*calls["primitive"]} else None,
        "reorders of weights": int((reorders & weights).sum()),
        "with post-ops %": (computing["fused"] != "").mean(), "lines not read": ", ".join(unread),
    }  # fmt: skip
