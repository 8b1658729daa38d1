"""The ordered steps from an archive to a model that is ready to serve.

`LOAD_STEPS` is the one registry. Each step is a function on the `LoadState`; `skip` says why a step is not
run, and whether that is because it was switched off or because it does not apply. A step that is
not skipped and fails, fails the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from handlers.shared.definition import BUILD_AGAIN
from handlers.shared.errors import LoadError
from handlers.shared.evidence import count_channels_last, count_operators, describe_layout
from handlers.shared.ipex import import_ipex
from handlers.shared.precision import INT8, OPTIMIZED_DTYPES, precision_context
from handlers.shared.quantization import RECIPE_FILE, convert_with_recipe, read_recipe
from handlers.shared.state import EXAMPLES, LoadState
from handlers.shared.work import time_work

JUDGED_ERROR_SLACK = 1.5
"""A recipe passed the gate with its own error on the examples; other CPUs and shapes round elsewhere."""
NEIGHBOURS_ERROR = 5e-4
"""Largest relative error of eager FP32 logits that neighbours in a row may make; 2e-6 was seen."""
PROFILING_RUNS = 2
"""TorchScript's profiling executor records in run 1 and compiles in run 2; the next is the first fast one."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why a step is not run."""

    status: str
    """`off`: switched off, or `not applicable`: it means nothing for this model."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What became of one step, as the worker logs it and describe answers it."""

    name: str
    status: str
    reason: str
    seconds: float


def build_eager(state: LoadState) -> None:
    classifier = state.classifier
    classifier.adopt(state.options)
    state.model = classifier.build_model()
    state.examples = classifier.example_samples(EXAMPLES)
    # One at a time and hardly padded: eager FP32 is the slowest thing a load does.
    logits = [classifier.answer_alone(state.model, sample) for sample in state.examples]
    state.reference = torch.cat(logits).float()
    if not torch.isfinite(state.reference).all():
        raise LoadError(
            "the eager model's own output is not finite", cure="check the weights that were packed"
        )
    _check_layout(state)
    state.facts["channels_last_weights"] = count_channels_last(state.model)


def _check_layout(state: LoadState) -> None:
    """Samples that share rows, in FP32, where a leaking neighbour cannot pass for a precision's rounding."""
    shape = state.classifier.layout.trace_shape
    if all(len(row) == 1 for row in state.arrange(shape).rows):
        return
    with torch.no_grad():
        logits = state.model(*state.inputs(shape))
    worst = state.compare(shape, logits)
    if not worst <= NEIGHBOURS_ERROR:
        raise LoadError(
            "the eager model answers a sample beside others not as it answers it alone: "
            f"relative error {worst:.3g}, tolerance {NEIGHBOURS_ERROR:.3g}",
            cure=BUILD_AGAIN,
        )


def channels_last(state: LoadState) -> None:
    state.model = state.model.to(memory_format=torch.channels_last)
    state.channels_last = True
    # Counted here: later steps replace the weights by constants and blocked copies without a memory format.
    state.facts["channels_last_weights"] = count_channels_last(state.model)


def ipex_optimize(state: LoadState) -> None:
    ipex = import_ipex()
    convolutional = state.classifier.convolutional
    state.model = ipex.optimize(
        state.model,
        dtype=OPTIMIZED_DTYPES[state.options.precision],
        auto_kernel_selection=state.recipe.auto_kernel_selection,
        # Without convolutions there is no batch norm to fold, and IPEX would warn that it failed.
        conv_bn_folding=convolutional,
        linear_bn_folding=convolutional,
        inplace=True,
    )


def quantize(state: LoadState) -> None:
    if not state.options.ipex:
        raise LoadError(
            "int8 needs IPEX, and ipex_enable is false", cure="set ipex_enable=true, or serve fp32"
        )
    recipe = state.classifier.definition.directory / RECIPE_FILE
    state.facts["recipe"] = asdict(read_recipe(recipe))
    example = state.inputs(state.classifier.layout.trace_shape)
    state.model = convert_with_recipe(state.model, example, recipe)


def trace(state: LoadState) -> None:
    with precision_context(state.options.precision):
        # check_trace would run the model again to compare it with itself; self_check compares with eager.
        state.model = torch.jit.trace(
            state.model, state.inputs(state.classifier.layout.trace_shape), check_trace=False, strict=False
        )
    state.graph_kind = "torchscript"


def freeze(state: LoadState) -> None:
    state.model = torch.jit.freeze(state.model)
    state.graph_kind = "frozen torchscript"


def warm_up(state: LoadState) -> None:
    shapes = state.classifier.layout.list_shapes()
    smallest = state.inputs(shapes[-1])
    for _ in range(PROFILING_RUNS):
        state.run(smallest)
    for shape in shapes:
        state.warmed[shape] = state.run(state.inputs(shape))
    state.facts["operators"] = count_operators(state.graph_kind)
    state.facts["memory_format"] = describe_memory_format(state, smallest)
    state.work = time_work(state)


def self_check(state: LoadState) -> None:
    """Every warmed shape must have given the eager model's logits, sample by sample."""
    worst = 0.0
    for shape, logits in state.warmed.items():
        worst = max(worst, state.compare(shape, logits))
    judged = state.facts.get("recipe", {}).get("relative_error", 0.0)
    tolerance = max(state.recipe.self_check_relative_error, JUDGED_ERROR_SLACK * judged)
    state.facts["self_check"] = {"relative_error": worst, "tolerance": tolerance}
    # Written so that NaN fails too.
    if not worst <= tolerance:
        raise LoadError(
            "the optimised model differs from eager FP32: "
            f"relative error {worst:.3g}, tolerance {tolerance:.3g}",
            cure="serve this model with PRECISION=fp32, or check its weights",
        )


def _always(state: LoadState) -> Skip | None:
    return None


def _unless_off(name: str) -> Callable[[LoadState], Skip | None]:
    def skip(state: LoadState) -> Skip | None:
        if name in state.options.off:
            return Skip(status="off", reason="switched off by the plan")
        return None

    return skip


def _skip_channels_last(state: LoadState) -> Skip | None:
    if not state.classifier.convolutional:
        return Skip(status="not applicable", reason="the model has no convolutions")
    return _unless_off("channels_last")(state)


def _skip_ipex(state: LoadState) -> Skip | None:
    if state.options.precision == INT8:
        return Skip(status="not applicable", reason="int8 models are converted by the quantize step")
    return None if state.options.ipex else Skip(status="off", reason="ipex_enable=false")


def _skip_quantize(state: LoadState) -> Skip | None:
    if state.options.precision == INT8:
        return None
    return Skip(status="not applicable", reason=f"{state.options.precision} is not quantised")


def _skip_freeze(state: LoadState) -> Skip | None:
    if "trace" in state.options.off:
        return Skip(status="off", reason="only a traced model can be frozen, and tracing is switched off")
    return _unless_off("freeze")(state)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One entry of the registry."""

    name: str
    run: Callable[[LoadState], None]
    skip: Callable[[LoadState], Skip | None] = _always


# The order matters: weights must be channels_last before IPEX prepacks or quantises them, IPEX must rewrite
# the modules before they are traced, only a trace can be frozen, and what is checked is what will serve.
LOAD_STEPS = (
    Step(name="build_eager", run=build_eager),
    Step(name="channels_last", run=channels_last, skip=_skip_channels_last),
    Step(name="ipex_optimize", run=ipex_optimize, skip=_skip_ipex),
    Step(name="quantize", run=quantize, skip=_skip_quantize),
    Step(name="trace", run=trace, skip=_unless_off("trace")),
    Step(name="freeze", run=freeze, skip=_skip_freeze),
    Step(name="warm_up", run=warm_up),
    Step(name="self_check", run=self_check),
)


class StepError(LoadError):
    """A load step failed; `step` names it."""

    def __init__(self, step: str, cause: str, *, cure: str) -> None:
        super().__init__(cause, cure=cure)
        self.step = step


def run_steps(state: LoadState) -> list[StepRecord]:
    """Run the registry in order; StepError names the step that failed and its cause."""
    return [_run_step(step, state) for step in LOAD_STEPS]


def build_graph(state: LoadState) -> None:
    """The steps up to the graph that would serve, without warming or checking it: what a build measures."""
    for step in LOAD_STEPS:
        if step.run not in (warm_up, self_check):
            _run_step(step, state)


def _run_step(step: Step, state: LoadState) -> StepRecord:
    skipped = step.skip(state)
    if skipped is not None:
        return StepRecord(name=step.name, status=skipped.status, reason=skipped.reason, seconds=0.0)
    started = time.monotonic()
    try:
        step.run(state)
    except LoadError as error:
        raise StepError(step.name, error.cause, cure=error.cure) from error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise StepError(
            step.name, cause, cure="see the traceback above this line in model_log.log"
        ) from error
    seconds = round(time.monotonic() - started, 3)
    return StepRecord(name=step.name, status="applied", reason="", seconds=seconds)


def describe_memory_format(state: LoadState, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """What describe answers about channels_last: of the weights before prepacking, and of the input."""
    convolutions, in_format = state.facts["channels_last_weights"]
    return {
        "applicable": state.classifier.convolutional,
        "convolutions": convolutions,
        "channels_last_weights": in_format,
        "input": describe_layout(inputs[0]),
    }
