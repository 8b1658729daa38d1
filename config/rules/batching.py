"""How many requests go into one batch, how long they wait for it, and when TorchServe gives up on one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from config.definitions import ModelDefinition
from config.plan import Inputs, ModelPlan, Setting, Settings
from config.rules.limits import plan_limits
from config.rules.work import plan_response_timeout

THROUGHPUT_BATCH = {"fp32": 8, "bf16": 16, "int8": 16}
"""About a third of a second of ResNet50 on one core (25 and 52 images/s were seen): enough to pay for a
batch, and every request of it waits that long."""

THROUGHPUT_TOKENS = {"fp32": 256, "bf16": 512, "int8": 768}
"""About a third of a second of BERT-base on one core, as of pictures (1.7, 0.87, 0.48 ms a token were seen).
16 mixed texts fill their rows to 97 %, 24 to 98 %, 32 hardly further."""

USUAL_TEXT_TOKENS = 32
"""TorchServe counts requests, not tokens. The load tests' log-normal lengths have a mean of 33 (median 24);
what a batch of longer texts may take is bounded by the limit tokens_per_batch."""

THROUGHPUT_DELAY_MS = 20
"""Short beside a batch's own time (0.1-1 s), long enough to fill it from a few dozen clients."""

LATENCY_DELAY_MS = 1
"""TorchServe reads 0 as "not given" and waits 100 ms (ConfigManager.getJsonIntValue)."""

MIN_QUEUE = 100
"""TorchServe's default."""

QUEUED_BATCHES = 8
"""Batches per worker that may wait: a few seconds of work; more would only be answered late."""

LOAD_S = 180
"""A worker's start was seen to take 14 s alone; each shape it warms adds to that, and so does a slower
machine. TorchServe's default is 120."""


def plan_models(
    models: Sequence[ModelDefinition], inputs: Inputs, precisions: Settings, workers: int
) -> dict[str, ModelPlan]:
    """Per model; the queue size is one number for all, because TorchServe has one."""
    batches = {model.name: choose_batch(model, inputs, precisions[model.name].value) for model in models}
    queue = plan_queue(batches.values(), workers)
    return {
        model.name: ModelPlan(
            precision=precisions[model.name],
            batch_size=batches[model.name],
            max_batch_delay_ms=_choose_delay(inputs),
            workers=Setting(value=workers, reason="the layout's: one number for all models"),
            queue_size=queue,
            response_timeout_s=plan_response_timeout(model, batches[model.name].value, len(models)),
            startup_timeout_s=_plan_startup(len(models)),
            archive=Setting(value=f"{model.name}.mar", reason="the archive make models builds"),
            limits=plan_limits(model, precisions[model.name].value, batches[model.name].value, len(models)),
        )
        for model in models
    }


def plan_queue(batches: Iterable[Setting], workers: int) -> Setting:
    """Waiting requests beyond which TorchServe answers 503."""
    largest = max(batch.value for batch in batches)
    size = max(MIN_QUEUE, QUEUED_BATCHES * workers * largest)
    return Setting(
        value=size,
        reason=f"{QUEUED_BATCHES} batches of {largest} for each of {workers} workers, at least {MIN_QUEUE}: "
        "what waits longer is better refused (503) than answered late",
    )


def choose_batch(model: ModelDefinition, inputs: Inputs, precision: str) -> Setting:
    """Requests in one batch of a model that is served in `precision`."""
    if model.token_lengths and inputs.profile != "latency":
        return _choose_texts(THROUGHPUT_TOKENS[precision], precision)
    wanted = 1 if inputs.profile == "latency" else THROUGHPUT_BATCH[precision]
    fitting = [size for size in model.batch_sizes if size <= wanted]
    size = max(fitting) if fitting else min(model.batch_sizes)
    if inputs.profile == "latency":
        return Setting(value=size, reason="latency: a request waits for no other")
    return Setting(
        value=size,
        reason=f"throughput: the largest warmed size up to {wanted}, which on one core is about a third of a "
        f"second of ResNet50 in {precision}: a request waits for its whole batch",
    )


def _choose_texts(tokens: int, precision: str) -> Setting:
    return Setting(
        value=tokens // USUAL_TEXT_TOKENS,
        reason=f"throughput: {tokens} tokens, as texts of {USUAL_TEXT_TOKENS}, fill rows and take about a "
        f"third of a second of BERT-base in {precision} on one core: a request waits for its whole batch",
    )


def _choose_delay(inputs: Inputs) -> Setting:
    if inputs.profile == "latency":
        return Setting(
            value=LATENCY_DELAY_MS, reason="latency: the least TorchServe takes (0 would mean 100)"
        )
    return Setting(
        value=THROUGHPUT_DELAY_MS, reason="fills a batch, and is short beside the time the batch takes"
    )


def _plan_startup(models: int) -> Setting:
    reason = f"{LOAD_S} s × {models} models that load on the same cores at the same time"
    return Setting(value=LOAD_S * models, reason=reason)
