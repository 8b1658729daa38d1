"""Refuses what cannot be planned: values outside their lists, and machines that lack what was asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from config.definitions import ModelDefinition
from config.errors import ConfigError, must_be_one_of
from config.knobs.table import find
from config.plan import Inputs
from config.rules.backends import (
    check_backends,
    check_switches,
    find_asked,
    list_named,
    parse_backend,
)
from config.rules.batching import check_by_model
from config.rules.instances import GENERATIONS, MAX_INSTANCES
from config.rules.network import HOST
from config.topology import Topology
from handlers.backends.catalogue import BACKENDS

PRECISIONS, DEFAULT_PRECISION = find("PRECISION").choices, find("PRECISION").default
"""The most exact first."""

SWITCHES = ("channels_last", "trace", "freeze", "packing", "buckets")
"""What the handlers can leave out (handlers/shared/options.py)."""

MAX_PORT = 64000
"""PORT + 920 and upwards name the workers' sockets and must stay below 65535; instances begin up to 80
higher."""

MIN_DEADLINE_MS = 1_000
"""A batch of one takes tens of milliseconds, one that is full a third of a second: less is answered by
chance."""
MAX_DEADLINE_MS = 300_000
"""Five minutes: no batch may take one; the door's queue orders by up to 524 s."""

MAX_BATCH = 128
"""A worker cuts a batch into the shapes it warmed; the largest that any of the models gains by is 32."""
MIN_DELAY_MS = 1
"""TorchServe reads 0 as "not given" and waits 100 ms (ConfigManager.getJsonIntValue)."""
MAX_DELAY_MS = 10_000


def check_request(topology: Topology, inputs: Inputs) -> None:
    """What was asked for, before it is looked at what the archives hold."""
    check_inputs(inputs)
    asked = find_asked(inputs)
    check_backends(topology, asked.values(), inputs.precision or DEFAULT_PRECISION)
    check_switches(asked, inputs.off)


def check_inputs(inputs: Inputs) -> None:
    """Each value against what is allowed."""
    for name, value in (
        ("PRECISION", inputs.precision or None),
        ("PROFILE", inputs.profile),
        ("ALLOCATOR", inputs.allocator),
        ("OPENMP", inputs.openmp),
    ):
        if value not in (None, *find(name).choices):
            raise must_be_one_of(name, value, find(name).choices)
    parse_backend(inputs.backend)
    for switch in inputs.off:
        if switch not in SWITCHES:
            raise ConfigError(f"--off must be among {', '.join(SWITCHES)}: got {switch}")
    if not 1 <= inputs.port <= MAX_PORT:
        raise ConfigError(
            f"PORT must be 1 to {MAX_PORT} (PORT + 920 names the workers' sockets): got {inputs.port}"
        )
    check_numbers(inputs)
    check_door(inputs)


def check_numbers(inputs: Inputs) -> None:
    """How requests are gathered; of models that are served, where these are known yet."""
    check_by_model("BATCH", inputs.batch, inputs.models, 1, MAX_BATCH)
    check_by_model("DELAY_MS", inputs.delay_ms, inputs.models, MIN_DELAY_MS, MAX_DELAY_MS)
    limit = inputs.slo_p99_ms
    if limit is not None and not 1 <= limit <= MAX_DEADLINE_MS:
        raise ConfigError(f"SLO_P99_MS must be 1 to {MAX_DEADLINE_MS}: got {limit}")


def check_door(inputs: Inputs) -> None:
    """What HAProxy does, and how many instances are behind it."""
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", inputs.bind):
        raise ConfigError(f"--bind must be an IPv4 address such as 0.0.0.0 or {HOST}: got {inputs.bind}")
    if inputs.instances is not None and not 1 <= inputs.instances <= MAX_INSTANCES:
        raise ConfigError(f"INSTANCES must be 1 to {MAX_INSTANCES}: got {inputs.instances}")
    if not MIN_DEADLINE_MS <= inputs.deadline_ms <= MAX_DEADLINE_MS:
        raise ConfigError(
            f"DEADLINE_MS must be {MIN_DEADLINE_MS} to {MAX_DEADLINE_MS}: got {inputs.deadline_ms}"
        )
    if bool(inputs.tls_cert) != bool(inputs.tls_key):
        given = "TLS_CERT" if inputs.tls_cert else "TLS_KEY"
        raise ConfigError(f"TLS_CERT and TLS_KEY must be given together: got {given} alone")
    if inputs.generation not in GENERATIONS:
        raise must_be_one_of("--generation", inputs.generation, GENERATIONS)


def check_machine(topology: Topology, inputs: Inputs) -> None:
    """What the CPU must have for the backends that are named: before models are known."""
    check_backends(topology, list_named(inputs), inputs.precision or DEFAULT_PRECISION)


def check_models(models: Sequence[ModelDefinition], variants: Mapping[str, str]) -> None:
    """What the archives must hold to be served as these variants."""
    for model in models:
        variant = variants[model.name]
        backend, precision = variant.split()
        if precision not in model.precisions:
            raise must_be_one_of(f"PRECISION of {model.name}", precision, model.precisions)
        able = [one.name for one in BACKENDS.values() if "trace" in one.switches]
        if not model.freeze and backend not in able:
            raise ConfigError(
                f"BACKEND of {model.name} must be one of {', '.join(able)}, because its handler has "
                f"freeze = False: got {backend}, which needs a graph of the model"
            )
        if variant not in model.memory:
            why = model.lost.get(variant, "no build was asked for it")
            raise ConfigError(
                f"{variant} is not in the archive of {model.name}: {why}; got {', '.join(model.memory)}; "
                f"do: make models MODELS={model.name} BACKEND={backend} PRECISION={precision}"
            )
