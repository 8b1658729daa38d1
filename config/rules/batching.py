"""How many requests go into one batch, how long they wait for it, and when TorchServe gives up on one."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from config.definitions import ModelDefinition
from config.errors import ConfigError
from config.plan import Inputs, ModelPlan, Setting, Settings
from config.rules.door import count_slots
from config.rules.limits import plan_limits, plan_response_timeout
from config.rules.service import (
    LEAST_OF_CAPACITY,
    NEAR_BEST,
    NEAR_CAPACITY,
    SERVER_BATCH_MS,
    SERVICES_IN_LIMIT,
    Service,
    choose_size,
    find_service,
    list_sizes,
    render_ms,
)
from config.rules.variants import Chosen
from config.tuned import Tuned
from handlers.backends.catalogue import BACKENDS

EXAMPLE = "bert=8,resnet50=4"
ALL = ""
"""Whose number is that of every model."""
_ITEM = re.compile(r"(?:([^=]+)=)?(\d{1,6})")


def parse_by_model(knob: str, text: str) -> dict[str, int]:
    """By model; that of ALL where one number is given."""
    numbers: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        found = _ITEM.fullmatch(word)
        name = (found[1] or ALL) if found else ALL
        if not found or name in numbers or (numbers and ALL in (name, *numbers)):
            raise ConfigError(f"{knob} must be a whole number, or one by model as {EXAMPLE}: got {text}")
        numbers[name] = int(found[2])
    return numbers


def render_by_model(numbers: Mapping[str, int]) -> str:
    """In one order, so that the same numbers are the same plan."""
    return ",".join(f"{name}={number}" if name else str(number) for name, number in sorted(numbers.items()))


def find_number(knob: str, text: str | None, model: str) -> int | None:
    """What was asked for this model."""
    numbers = parse_by_model(knob, text or "")
    return numbers.get(model, numbers.get(ALL))


def check_by_model(knob: str, text: str | None, models: Collection[str], least: int, most: int) -> None:
    """Each number is within its limits, and of a model that is served."""
    for name, number in parse_by_model(knob, text or "").items():
        if models and name not in (ALL, *models):
            raise ConfigError(f"{knob} must name models that are served, {', '.join(models)}: got {name}")
        if not least <= number <= most:
            raise ConfigError(f"{knob} must be {least} to {most}: got {number}")


DELAY_MS = 1
"""The least: TorchServe reads 0 as "not given" and waits 100 ms (ConfigManager.getJsonIntValue)."""

DEFAULT_SLO_P99_MS = 200
"""Nobody has asked for a limit: a fifth of a second is what people call at once."""

LOAD_S = 180
"""A worker's start was seen to take 14 s alone; each shape it warms adds to that, and so does a slower
machine. TorchServe's default is 120."""
COMPILING_S = 900
"""Of a worker that compiles the model while it starts: DenseNet121 takes more than LOAD_S (seen)."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What batches are planned by."""

    chosen: Chosen
    workers: int
    """Of each model."""
    cores: int
    """Of each worker."""
    bodies_mib: int
    """What the instance has for the bodies of requests."""


def plan_models(models: Sequence[ModelDefinition], inputs: Inputs, figures: Figures) -> dict[str, ModelPlan]:
    """Per model; the queue size is one number for all, because TorchServe has one."""
    batches = {model.name: plan_batch(model, inputs, figures) for model in models}
    queue = plan_queue(figures, batches)
    backends, precisions = figures.chosen.backends, figures.chosen.precisions
    return {
        model.name: ModelPlan(
            backend=backends[model.name],
            precision=precisions[model.name],
            batch_size=batches[model.name],
            max_batch_delay_ms=_plan_delay(model, inputs, figures.chosen.tuned),
            workers=Setting(value=figures.workers, reason="the layout's: one number for all models"),
            queue_size=queue,
            response_timeout_s=plan_response_timeout(model, batches[model.name].value, len(models)),
            startup_timeout_s=_plan_startup(backends[model.name], inputs.off, len(models)),
            archive=Setting(value=f"{model.name}.mar", reason="the archive make models builds"),
            limits=plan_limits(model, precisions[model.name].value, batches[model.name].value, len(models)),
        )
        for model in models
    }


def plan_batch(model: ModelDefinition, inputs: Inputs, figures: Figures) -> Setting:
    """What was asked for, else what was tuned, else by what a batch takes."""
    asked = find_number("BATCH", inputs.batch, model.name)
    return (
        _give("BATCH", inputs.batch, asked)
        or figures.chosen.tuned.decide("batch", model.name)
        or _choose_batch(model, inputs, figures)
    )


def _give(knob: str, text: object, number: int | None) -> Setting | None:
    """What a person gave."""
    return None if number is None else Setting(value=number, reason=f"{knob}={text} was given")


def _choose_batch(model: ModelDefinition, inputs: Inputs, figures: Figures) -> Setting:
    chosen = figures.chosen
    service = find_service(model, chosen.variants[model.name], figures.cores, chosen.timed)
    limit_ms = inputs.slo_p99_ms or round(chosen.tuned.limit.get("ms", DEFAULT_SLO_P99_MS))
    if inputs.profile == "latency":
        least = min(list_sizes(model))
        alone = f"{render_ms(service.take_ms(least))} ms each; {service.describe()}"
        return Setting(value=least, reason=f"latency: a request waits for no other; {alone}")
    size = choose_size(service, list_sizes(model), limit_ms)
    return Setting(
        value=size, reason=f"{_explain_size(service, size, limit_ms, figures)}; {service.describe()}"
    )


def _explain_size(service: Service, size: int, limit_ms: int, figures: Figures) -> str:
    took, rate = service.take_ms(size), figures.workers * service.rate(size)
    served = (
        f"{rate:.3g}/s of {figures.workers} workers with {render_ms(SERVER_BATCH_MS)} ms of TorchServe's for "
        "each batch"
    )
    answered = (
        f"{SERVICES_IN_LIMIT} × {render_ms(took)} ms (one computed before it, its own, and as long to wait)"
    )
    if service.tail_ms:
        answered += f" + {render_ms(service.tail_ms)} (what the longest of a hundred takes more)"
    if service.late_ms(size) <= limit_ms:
        near = f"the smallest within {1 - NEAR_BEST:.0%} of the best rate"
        return f"{near}, {served}, of those with {answered} ≤ {limit_ms} ms, SLO_P99_MS"
    near = f"the smallest within {1 - NEAR_CAPACITY:.0%} of the capacity"
    return (
        f"{near}, {served}; SLO_P99_MS={limit_ms} CANNOT BE KEPT at such rates: {answered} > {limit_ms} ms, "
        f"and no batch keeps it at {LEAST_OF_CAPACITY:.0%} of the capacity"
    )


def _plan_delay(model: ModelDefinition, inputs: Inputs, tuned: Tuned) -> Setting:
    asked = find_number("DELAY_MS", inputs.delay_ms, model.name)
    least = Setting(
        value=DELAY_MS,
        reason="the least TorchServe takes (0 would mean 100): the worker that waits for a batch to fill "
        "holds the lock that the model's idle workers need; under load a batch is there at once",
    )
    return _give("DELAY_MS", inputs.delay_ms, asked) or tuned.decide("delay_ms", model.name) or least


def plan_queue(figures: Figures, batches: Settings) -> Setting:
    """Places of each model's queue in TorchServe, beyond which it answers 503."""
    counted = count_slots(
        figures.workers, {name: batch.value for name, batch in batches.items()}, figures.bodies_mib
    )
    most = max(counted.values(), key=lambda slots: slots.places)
    return Setting(
        value=most.places,
        reason=f"what HAProxy hands over at once, {most.small} small and {most.large} large, {most.left} "
        "whose clients left, and the health check's: a full queue answers 503",
    )


def _plan_startup(backend: Setting, off: Collection[str], models: int) -> Setting:
    compiles = BACKENDS[backend.value].compiles_at_start(off)
    each, why = (COMPILING_S, ", and compile there") if compiles else (LOAD_S, "")
    reason = f"{each} s × {models} models that load on the same cores at the same time{why}"
    return Setting(value=each * models, reason=reason)
