"""The ordered steps from an archive to a model that is ready to serve.

The eager model is built, the backend's own steps make of it what serves, and that is warmed and checked. Each
step is a function on the `LoadState`; `skip` says why a step is not run, and whether that is because it was
switched off or because it does not apply. A step that is not skipped and fails, fails the load.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from handlers.backends.loader import EXAMPLES, Loader, LoadState, Step
from handlers.definition import BUILD_AGAIN
from handlers.shared.errors import LoadError
from handlers.shared.evidence import count_channels_last, describe_layout
from handlers.shared.outputs import find_worst, is_finite, list_tensors, to_float
from handlers.shared.shapes import Shape
from handlers.shared.work import Work
from handlers.task import Inputs

VALIDATED_ERROR_SLACK = 1.5
"""A recipe passed the gate with its own error on the examples; other CPUs and shapes round elsewhere."""
NEIGHBOURS_ERROR = 5e-4
"""Largest relative error of eager FP32 logits that neighbours in a row may make; 2e-6 was seen."""
PROFILING_RUNS = 2
"""TorchScript's profiling executor records in run 1 and compiles in run 2; the next is the first fast one."""


def build_eager(state: LoadState) -> None:
    task = state.task
    task.adopt(state.options)
    # A wrapper that an author puts around a model in eval mode is in training mode itself.
    state.model = task.load_model().eval()
    state.examples = task.make_examples(EXAMPLES)
    # One at a time and hardly padded: eager FP32 is the slowest thing a load does.
    for sample in state.examples:
        (output,) = task.split(to_float(task.answer_alone(state.model, sample)), [sample])
        state.reference.append(output)
    if not is_finite(state.reference):
        raise LoadError(
            "the eager model's own output is not finite", fix="check the weights that were packed"
        )
    _check_layout(state)
    state.facts["channels_last_weights"] = count_channels_last(state.model)


def _check_layout(state: LoadState) -> None:
    """Samples that share rows, in FP32, where a leaking neighbour cannot pass for a precision's rounding."""
    shape = state.task.layout.trace_shape
    if all(len(row) == 1 for row in state.arrange(shape).rows):
        return
    with torch.no_grad():
        outputs = state.model(*state.inputs(shape))
    worst = state.compare(shape, outputs)
    if not worst <= NEIGHBOURS_ERROR:
        raise LoadError(
            "the eager model answers a sample beside others not as it answers it alone: "
            f"relative error {worst:.3g}, tolerance {NEIGHBOURS_ERROR:.3g}",
            fix=BUILD_AGAIN,
        )


def warm_up(state: LoadState) -> None:
    shapes = state.task.layout.list_shapes()
    smallest = state.inputs(shapes[-1])
    for _ in range(PROFILING_RUNS):
        state.run(smallest)
    for shape in shapes:
        state.warmed[shape] = state.run(state.inputs(shape))
    state.facts["graph"] = {**state.loader.evidence(state, shapes[-1]), "fuses": state.task.fuses}
    state.facts["memory_format"] = describe_memory_format(state, smallest)
    state.work = time_work(state)


def time_work(state: LoadState) -> Work:
    """Times the largest shape twice, when it is warm: the first run may still compile."""
    largest = state.task.layout.list_shapes()[0]
    seconds = min(_time_shape(state, largest) for _ in range(2))
    seconds_each = seconds / (largest.batch_size * max(1, largest.length))
    return state.task.plan_work(seconds_each)


def _time_shape(state: LoadState, shape: Shape) -> float:
    """Seconds of a core: the clock counts what other processes take meanwhile, the CPU time counts each of
    several threads, so that the lower of the two is nearer the truth and never below it."""
    inputs = state.inputs(shape)
    clock, cpu = time.perf_counter(), time.process_time()
    state.run(inputs)
    return min(time.perf_counter() - clock, time.process_time() - cpu)


def self_check(state: LoadState) -> None:
    """Every warmed shape must have given the eager model's outputs, sample by sample."""
    worst = find_worst([state.compare(shape, outputs) for shape, outputs in state.warmed.items()])
    validated = (state.accuracy or {}).get("relative_error")
    tolerance = max(state.recipe.self_check_relative_error, VALIDATED_ERROR_SLACK * (validated or 0.0))
    state.facts["self_check"] = {"relative_error": worst, "tolerance": tolerance}
    # Written so that NaN fails too.
    if not worst <= tolerance:
        raise LoadError(
            "the optimised model differs from eager FP32: "
            f"relative error {worst:.3g}, tolerance {tolerance:.3g}",
            fix="use PRECISION=fp32 or BACKEND=eager, or check its weights; where rounding decides "
            "the answer to model.yaml's example (ties), choose another",
        )


# What is checked is what will serve; between these stand the backend's own steps.
FIRST_STEPS = (Step(name="build_eager", run=build_eager),)
LAST_STEPS = (Step(name="warm_up", run=warm_up), Step(name="self_check", run=self_check))


def list_steps(loader: Loader) -> tuple[Step, ...]:
    """All steps of a load, in order."""
    return (*FIRST_STEPS, *loader.steps, *LAST_STEPS)


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What became of one step, as the worker logs it and describe answers it."""

    name: str
    status: str
    reason: str
    seconds: float


class StepError(LoadError):
    """A load step failed; `step` names it."""

    def __init__(self, step: str, cause: str, *, fix: str) -> None:
        super().__init__(cause, fix=fix)
        self.step = step


def run_steps(state: LoadState) -> list[StepRecord]:
    """Run them in order; StepError names the step that failed and its cause."""
    return [_run_step(step, state) for step in list_steps(state.loader)]


def build_graph(state: LoadState) -> None:
    """The steps up to the graph that would serve, without warming or checking it: what a build measures."""
    for step in (*FIRST_STEPS, *state.loader.steps):
        _run_step(step, state)


def _run_step(step: Step, state: LoadState) -> StepRecord:
    skipped = step.skip(state)
    if skipped is not None:
        return StepRecord(name=step.name, status=skipped.status, reason=skipped.reason, seconds=0.0)
    started = time.monotonic()
    try:
        step.run(state)
    except LoadError as error:
        raise StepError(step.name, error.cause, fix=error.fix) from error
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise StepError(step.name, cause, fix="see the traceback above this line in model_log.log") from error
    seconds = round(time.monotonic() - started, 3)
    return StepRecord(name=step.name, status="applied", reason="", seconds=seconds)


def describe_memory_format(state: LoadState, inputs: Inputs) -> dict[str, Any]:
    """What describe answers about channels_last: of the weights before prepacking, and of the first input."""
    convolutions, in_format = state.facts["channels_last_weights"]
    return {
        "applicable": state.task.convolutional and state.backend.channels_last,
        "convolutions": convolutions,
        "channels_last_weights": in_format,
        "input": describe_layout(list_tensors(inputs)[0]),
    }
