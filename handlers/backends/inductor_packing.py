"""Patterns for Inductor's freezing: weights are packed ahead although the batch is symbolic.

PyTorch's own do so where the batch is a number (torch 2.8, `_inductor/fx_passes/mkldnn_fusion.py`:
`_is_packable_linear`, `_register_weight_pack_pass`); with a symbolic one FP32's Linear goes to MKL, which
leaves AVX-512 unused on AMD, and a convolution packs its weights at each run; so does INT8's, which with one
image is then seven times as slow. Here the batch that is compiled
with stands for all: oneDNN takes weights that were packed for another.
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import torch

from handlers.backends.catalogue import find_pt2e

FUSING = 3
"""The pass in which PyTorch fuses what stands behind an INT8 product to it."""


@functools.cache
def register_packing() -> None:
    """Once in a process; after PyTorch's own, so that what those pack is not met again."""
    from torch._inductor.fx_passes import freezing_patterns
    from torch._inductor.pattern_matcher import Arg, CallFunction

    freezing_patterns.lazy_init()  # first PyTorch's: patterns of a pass are tried in the order they came in
    load_quantiser()  # torchao's too, which come with it
    register = functools.partial(freezing_patterns.register_freezing_graph_pattern, pass_number=2)
    aten, mkldnn = torch.ops.aten, torch.ops.mkldnn
    for operator, count, is_symbolic, pack in (
        (aten.addmm.default, 3, _is_symbolic_linear, _pack_linear),
        (aten.mm.default, 2, _is_symbolic_linear, _pack_linear),
        (mkldnn._convolution_pointwise.default, 10, _is_symbolic_convolution, _pack_convolution),
    ):
        # An Arg of its own for each argument: one that stands twice matches the same value alone.
        pattern = CallFunction(operator, *(Arg() for _ in range(count)))
        register(pattern, extra_check=is_symbolic)(pack)
    freezing_patterns.pass_patterns.insert(FUSING, _DeadCode())
    pattern = CallFunction(torch.ops.onednn.qconv_prepack, *(Arg() for _ in range(9)))
    after = len(freezing_patterns.pass_patterns)
    freezing_patterns.register_freezing_graph_pattern(pattern, pass_number=after)(_pack_quantised)


def load_quantiser() -> tuple[Any, Any, Any]:
    """PT2E's calls, its observers, and its quantiser for x86; Nones where there is no PT2E."""
    if (home := find_pt2e()) is None:
        return None, None, None
    names = (f"{home}.quantize_pt2e", home, f"{home}.quantizer.x86_inductor_quantizer")
    # Of torchao's own classes, which torch has come to know by itself.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    calls, observers, x86 = map(importlib.import_module, names)
    return calls, observers, x86


class _DeadCode:
    """A pass before INT8's post-operations are fused: symbolic sizes leave dead nodes, which are users to its
    patterns, so that GELU and the sum with a residual would stay outside of their linear layer."""

    def apply(self, graph: Any) -> int:
        return int(graph.eliminate_dead_code())


def _is_symbolic_linear(match: Any) -> bool:
    """input × constant FP32 matrix, for any number of rows; narrower ones PyTorch packs itself."""
    from torch.fx.experimental.symbolic_shapes import has_free_symbols

    *_, rows, weight = match.output_node().args
    if weight.op != "get_attr" or weight.meta["val"].dtype != torch.float32:
        return False
    return has_free_symbols(rows.meta["val"].shape[0])


def _is_symbolic_convolution(match: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import has_free_symbols

    image, weight, *_ = match.output_node().args
    return weight.op == "get_attr" and has_free_symbols(image.meta["val"].shape)


def _pack_linear(match: Any, *_: Any, **__: Any) -> None:
    """addmm(bias, input, weightᵀ) or mm(input, weightᵀ) → oneDNN's linear with a packed weight."""
    mkldnn, node, graph = torch.ops.mkldnn, match.output_node(), match.graph
    *bias, rows, transposed = node.args
    with graph.inserting_before(node):
        weight = graph.call_function(torch.ops.aten.permute.default, (transposed, (1, 0)))
        hint = _read_hint(rows.meta["val"].shape[0])
        packed = graph.call_function(mkldnn._reorder_linear_weight, (weight, hint))
        arguments: tuple[Any, ...] = (rows, packed, bias[0] if bias else None, "none", [], "")
        linear = graph.call_function(mkldnn._linear_pointwise.default, arguments)
    linear.meta.update(node.meta)
    node.replace_all_uses_with(linear)
    graph.erase_node(node)


def _pack_convolution(match: Any, *_: Any, **__: Any) -> None:
    """The weight of PyTorch's node is replaced by its packed form; constants are folded afterwards."""
    node, graph = match.output_node(), match.graph
    image, weight, bias, padding, stride, dilation, groups, *rest = node.args
    size = [_read_hint(side) for side in image.meta["val"].shape]
    with graph.inserting_before(node):
        arguments = (weight, padding, stride, dilation, groups, size)
        packed = graph.call_function(torch.ops.mkldnn._reorder_convolution_weight, arguments)
    node.args = (image, packed, bias, padding, stride, dilation, groups, *rest)


def _pack_quantised(match: Any, *_: Any, **__: Any) -> None:
    """Says the shape of the input, which PyTorch leaves open where the batch is symbolic."""
    node = match.output_node()
    rows = next(iter(node.users)).args[0]
    node.args = (*node.args[:-1], [_read_hint(side) for side in rows.meta["val"].shape])


def _read_hint(size: Any) -> int:
    """What a symbolic size was in the example."""
    return size if isinstance(size, int) else int(size.node.shape_env.size_hint(size.node.expr))
