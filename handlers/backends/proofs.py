"""Whether the graph that a worker executes is what was planned: one judge for each backend, without torch.

`graph` is what the backend's loader reported as evidence (Loader.evidence); `precision`, the worker's number
of intra-op threads and the load steps that are switched off are the plan's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Graph = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was planned for a live model's graph, and what it shows."""

    expected: str
    actual: str
    good: bool


class Judge(Protocol):
    """Compares evidence with the plan."""

    def __call__(self, graph: Graph, *, precision: str, threads: int, off: frozenset[str]) -> Proof: ...


# TorchScript: eager PyTorch and IPEX.
EAGER, TRACED, FROZEN = "eager", "torchscript", "frozen torchscript"
PYTORCH = ("aten::", "mkldnn::", "mkldnn_prepacked::", "prepacked::")
"""Namespaces of PyTorch's own operators, seen in frozen graphs."""
PLAIN_PREPACKED = frozenset(
    {
        "ipex_prepack::convolution_run",
        "ipex_prepack::linear_run",
        "ipex_prepack::mkl_sgemm_run",
        "ipex_prepack::conv_transpose_run",
    }
)
"""Operators of IPEX with prepacked weights and nothing fused to them."""
FUSED = frozenset(
    {"ipex::mha_scores_calc", "ipex::matmul_outtrans", "ipex::LlgaFusionGroup", "ipex::split_tensor"}
)
"""Operators of IPEX that stand for several of PyTorch's, apart from the fused ipex_prepack:: ones."""


def plan_kind(off: frozenset[str]) -> str:
    """What a TorchScript graph is to be where these steps are switched off."""
    return EAGER if "trace" in off else TRACED if "freeze" in off else FROZEN


def judge_eager(graph: Graph, *, precision: str, threads: int, off: frozenset[str]) -> Proof:
    """Nobody else's operators."""
    foreign = sorted(kind for kind in graph.get("operators") or () if not kind.startswith(PYTORCH))
    kind = str(graph.get("kind", "unknown"))
    got = f"{kind}, with {', '.join(foreign)}" if foreign else kind
    return Proof(expected=plan_kind(off), actual=got, good=got == plan_kind(off))


def judge_ipex(graph: Graph, *, precision: str, threads: int, off: frozenset[str]) -> Proof:
    """A frozen graph holds prepacked and fused operators, but where a handler promises none (Task.fuses)."""
    kind = plan_kind(off)
    fuses = kind == FROZEN and graph.get("fuses", True)
    prepacked, fused = graph.get("prepacked", 0), graph.get("fused", 0)
    # oneDNN Graph's INT8 partitions hold their packed weights inside the fused operators.
    there = fused > 0 and (prepacked > 0 or precision == "int8")
    return Proof(
        expected=f"{kind}, prepacked and fused" if fuses else kind,
        actual=f"{graph.get('kind', 'unknown')}, {prepacked} prepacked, {fused} fused",
        good=graph.get("kind") == kind and (there or not fuses),
    )


def count_fused(operators: Mapping[str, int]) -> dict[str, int]:
    """How many operators are IPEX's own with packed weights, and how many stand for several."""
    prepacked = sum(n for kind, n in operators.items() if kind.startswith("ipex_prepack::"))
    fused = sum(
        n
        for kind, n in operators.items()
        if kind in FUSED or (kind.startswith("ipex_prepack::") and kind not in PLAIN_PREPACKED)
    )
    return {"prepacked": prepacked, "fused": fused}


OPENVINO = "openvino"
EXECUTED = {"fp32": {"f32"}, "bf16": {"bf16"}, "int8": {"i8", "u8"}}
"""Precision → how OpenVINO's layers of COMPUTING are seen to run."""
COMPUTING = ("Convolution", "FullyConnected", "MatMul")
"""Kinds of layers with nearly all of the arithmetic, by the runtime's names."""
INT8_SHARE = 0.5
"""Of those layers: what has fewer in INT8 is INT8 by name alone."""
PINNING = "False"
"""The launcher has given the worker its CPUs; the runtime's own choice would be made from all of them."""


def judge_openvino(graph: Graph, *, precision: str, threads: int, off: frozenset[str]) -> Proof:
    """Layers compute in the precision, on the planned threads, which only the launcher binds."""
    layers = count_computing(graph.get("operators") or {})
    narrow = sum(layers[name] for name in EXECUTED[precision])
    total = sum(layers.values())
    needed = INT8_SHARE * total if precision == "int8" else total
    planned = {"INFERENCE_NUM_THREADS": str(threads), "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": PINNING}
    live = graph.get("properties") or {}
    seen = ", ".join(f"{count} {name}" for name, count in sorted(layers.items())) or "no layers"
    return Proof(
        expected=f"{OPENVINO}, layers in {'/'.join(sorted(EXECUTED[precision]))}, "
        f"{_render_properties(planned)}",
        actual=f"{graph.get('kind', 'unknown')}, {seen}, {_render_properties(live)}",
        good=graph.get("kind") == OPENVINO and 0 < needed <= narrow and dict(live) == planned,
    )


def count_computing(operators: Mapping[str, int]) -> Counter[str]:
    """Execution precision → OpenVINO's layers with the arithmetic."""
    counts: Counter[str] = Counter()
    for name, count in operators.items():
        kind, _, precision = name.partition(" ")
        if kind in COMPUTING:
            counts[precision] += count
    return counts


def _render_properties(properties: Graph) -> str:
    return ", ".join(f"{name} {value}" for name, value in properties.items())


LIBRARY, COMPILED = "inductor library", "torch.compile"
"""Kinds of inductor's graphs: made at build, or by the worker at its start."""
PACKED = ("linear_pointwise", "convolution_pointwise")
"""In the names of oneDNN's operators with packed weights; what is fused to them follows."""
QUANTISED = ("qlinear_pointwise", "qconv_pointwise", "qconv2d_pointwise")
"""INT8's of them."""
PLAIN = ("addmm", "mm", "convolution", "linear")
"""How the names of those begin that multiply by weights as they are: FP32's by MKL."""
WEIGHTS = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Precision → the type of what is packed."""


def judge_inductor(graph: Graph, *, precision: str, threads: int, off: frozenset[str]) -> Proof:
    """The library that was built, for this CPU, all of its products by packed weights of the precision, on
    the planned threads, and nothing compiled in the worker; with freeze off, all of it compiled there."""
    live, compiled = graph.get("threads"), graph.get("compiled_here")
    kind = graph.get("kind", "unknown")
    if "freeze" in off:
        packed, _ = count_products(graph.get("operators") or {}, "fp32")
        return Proof(
            expected=f"{COMPILED}, no weights packed, {threads} threads, graphs compiled here",
            actual=f"{kind}, {packed} products by packed weights, {live} threads, "
            f"{compiled or 0} graphs compiled here",
            good=kind == COMPILED and not packed and live == threads and (compiled or 0) > 0,
        )
    packed, plain = count_products(graph.get("operators") or {}, precision)
    weights, library = graph.get("weights") or {}, graph.get("library") or {}
    narrow = sum(weights.get(one, 0) for one in WEIGHTS.values() if one != "float32")
    typed = weights.get(WEIGHTS[precision], 0) if precision != "fp32" or not narrow else 0
    sound = library.get("sha256") is not None and library.get("sha256") == library.get("built")
    lacking = library.get("cpu_lacks")
    where = f" for a CPU with {', '.join(lacking)}" if lacking else ""
    told = ", ".join(f"{count} {one}" for one, count in sorted(weights.items())) or "no weights"
    return Proof(
        expected=f"{LIBRARY} as built for this CPU, all products by packed {WEIGHTS[precision]} weights, "
        f"{threads} threads, 0 graphs compiled here",
        actual=f"{kind}{'' if sound else ' that was not built'}{where}, {packed} products by packed weights, "
        f"{plain} by others, {told}, {live} threads, {compiled} graphs compiled here",
        good=kind == LIBRARY
        and sound
        and lacking == []
        and plain == 0 < packed <= typed
        and (live, compiled) == (threads, 0),
    )


def count_products(operators: Mapping[str, int], precision: str) -> tuple[int, int]:
    """(by packed weights of this kind, by others); products of activations, as in attention, are neither."""
    kinds = Counter[str | None]()
    for name, count in operators.items():
        kinds[_name_product(name)] += count
    kinds.pop(None, None)
    packed = kinds.pop("quantised" if precision == "int8" else "packed", 0)
    return packed, sum(kinds.values())


def _name_product(operator: str) -> str | None:
    if any(one in operator for one in QUANTISED):
        return "quantised"
    if any(one in operator for one in PACKED):
        return "packed"
    return "plain" if operator.removeprefix("aten::").startswith(PLAIN) else None
