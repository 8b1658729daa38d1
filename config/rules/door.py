"""What HAProxy does in front of the instances: how many wait, how many are handed over, and for how long.

What each figure does in HAProxy 2.6 was measured with servers that hang, reset and die (tests/door/).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from config.errors import ConfigError
from config.plan import Inputs, Plan, Setting, Settings
from config.rules.instances import GENERATIONS, MAX_INSTANCES, find_port
from config.rules.network import MAX_REQUEST_BYTES

BUFFER_BYTES = 384 << 10
"""HAProxy sends a request again only if it holds the whole of it in one buffer: a photograph of 300 kB and
its headers."""

REWRITE_BYTES = 8 << 10
"""Of each buffer, kept free for the headers that the door adds."""

HEADER_BYTES = 16 << 10
"""Headers of one request: twice what usual servers take."""

SMALL_BYTES = BUFFER_BYTES - REWRITE_BYTES - HEADER_BYTES
"""Bodies up to here fit into a buffer beside their headers, and so can be sent again."""

BUFFERS_OF_LARGE = 4.5
"""Of a large body, two in each hop and one between them are full, or nearly, while it waits: 4.2 were
measured (200 bodies of 8 MB took 315 MiB)."""

LARGE_SHARE = 0.55
SMALL_SHARE = 0.4
"""Of the door's memory; the rest is HAProxy itself, and its connections."""

CONNECTIONS = 2000
"""A thousand idle ones leave as many for others; an idle one takes a few KiB."""

CORES_OF_THREAD = 16
MAX_THREADS = 4
"""One thread passes on about a gigabyte a second; 16 cores ask for less than a tenth of that."""

IN_FLIGHT_BATCHES = 2
"""For each worker: the batch that it computes, and the next one, so that it never waits for the door. With
1.25 a saturated server lost 9 % (measured); more would wait in the instance, where nothing orders them."""

LARGE_PART = 7 / 8
"""Of the memory for bodies, that large ones may fill."""

NAME = re.compile(r"[A-Za-z0-9_.-]+")
RESERVED = (".door", ".queue", ".large")

LARGEST_DEADLINE_MS = 300_000

RETRIES = 3

CHECK_MS = 1000
HEADERS_S = 10
BODY_S = 60
IDLE_S = 60
"""As long as load balancers keep connections, at least."""


def plan_door(inputs: Inputs, instances: Mapping[str, Plan], memory_mib: int) -> Settings:
    """Of HAProxy, by name; what differs by model and instance is `<model>.<instance>.<what>`."""
    _check_names(instances)
    return {
        **_plan_process(instances, memory_mib),
        **_plan_places(instances, memory_mib),
        **_plan_times(inputs),
        **_plan_slots(instances),
    }


def _check_names(instances: Mapping[str, Plan]) -> None:
    """Sections of HAProxy are named after models."""
    for name in {name: None for plan in instances.values() for name in plan.models}:
        if not NAME.fullmatch(name) or name.endswith(RESERVED):
            raise ConfigError(
                "a model's name must be of letters, digits and any of _ . -, and not end with "
                f"{', '.join(RESERVED)}: got {name} (models/{name}); rename it"
            )


def _plan_process(instances: Mapping[str, Plan], memory_mib: int) -> dict[str, Setting]:
    layouts = [plan.layout for plan in instances.values()]
    cores = sum(layout.workers_per_model.value * layout.cores_per_worker.value for layout in layouts)
    return {
        "memory_mib": Setting(value=memory_mib, reason="what the door may take, kept free of the workers'"),
        "threads": Setting(
            value=max(1, min(MAX_THREADS, cores // CORES_OF_THREAD)),
            reason=f"one thread passes on more than {CORES_OF_THREAD} cores ask for",
        ),
        "connections": Setting(
            value=CONNECTIONS,
            reason="of clients: a thousand idle ones leave as many for others; the next waits in the kernel",
        ),
        "buffer_bytes": Setting(
            value=BUFFER_BYTES,
            reason="a request is sent again only if all of it is in one buffer: a photograph of 300 kB and "
            "its headers are",
        ),
        "rewrite_bytes": Setting(
            value=REWRITE_BYTES, reason="of each buffer, kept free for the headers the door adds"
        ),
        "header_bytes": Setting(value=HEADER_BYTES, reason="twice what usual servers take"),
        "small_bytes": Setting(
            value=SMALL_BYTES,
            reason="what fits into a buffer beside the headers, and so can be sent again; larger bodies have "
            "slots of their own",
        ),
        "max_request_bytes": Setting(
            value=MAX_REQUEST_BYTES,
            reason="as TorchServe's max_request_size: a phone's photo, also as base64",
        ),
    }


def _plan_places(instances: Mapping[str, Plan], memory_mib: int) -> dict[str, Setting]:
    """For how many requests there is room in the door, per model."""
    models = len({name for plan in instances.values() for name in plan.models})
    buffers = (memory_mib << 20) / BUFFER_BYTES / models
    return {
        "places": Setting(
            value=max(1, int(buffers * SMALL_SHARE)),
            reason=f"requests of one model in the door, each in a buffer: {SMALL_SHARE:.0%} of its "
            f"{memory_mib} MiB for {models} models; the next one is refused at once",
        ),
        "large_places": Setting(
            value=max(1, int(buffers * LARGE_SHARE / BUFFERS_OF_LARGE)),
            reason=f"the same of large bodies, each in {BUFFERS_OF_LARGE} buffers while the rest of it waits "
            f"in the kernel: {LARGE_SHARE:.0%} of the memory",
        ),
    }


def _plan_times(inputs: Inputs) -> dict[str, Setting]:
    return {
        "deadline_ms": Setting(
            value=inputs.deadline_ms, reason="of a request without X-Deadline-Ms: answered, or 504, by then"
        ),
        "largest_deadline_ms": Setting(
            value=LARGEST_DEADLINE_MS, reason="what X-Deadline-Ms may ask for: nobody waits longer"
        ),
        "headers_s": Setting(value=HEADERS_S, reason="a request's line and headers come within this, or 408"),
        "body_s": Setting(
            value=BODY_S, reason="a body stands still for so long at most: 16 MiB are 280 KB/s"
        ),
        "idle_s": Setting(value=IDLE_S, reason="a connection nobody asks anything on is closed then"),
        "check_ms": Setting(value=CHECK_MS, reason="how often each instance is asked whether it lives"),
        "retries": Setting(
            value=RETRIES,
            reason="one try each for a killed process that closes this connection, one that waits in its "
            "listener, then the listener; the fourth goes elsewhere. More would let a request that kills "
            "workers kill another one",
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Requests of one model that an instance has at once."""

    wanted: int
    """IN_FLIGHT_BATCHES of each worker."""
    small: int
    """That HAProxy hands over."""
    large: int
    """The same of bodies above SMALL_BYTES, each counted as the largest."""
    left: int
    """Whose clients have left: TorchServe computes them all the same."""

    @property
    def places(self) -> int:
        """In TorchServe's queue, beyond which it answers 503; one is the health check's."""
        return self.small + self.large + self.left + 1


def count_slots(workers: int, batches: Mapping[str, int], bodies_mib: int) -> dict[str, Slots]:
    """By model; `batches`: the largest batch of each; `bodies_mib`: what an instance has for bodies."""
    room, models = bodies_mib << 20, len(batches)
    wanted = {name: IN_FLIGHT_BATCHES * workers * batch for name, batch in batches.items()}
    small = {name: max(1, min(count, room // 2 // SMALL_BYTES // models)) for name, count in wanted.items()}
    rest = int(room * LARGE_PART) - sum(small.values()) * SMALL_BYTES
    large, left = (size // MAX_REQUEST_BYTES // models for size in (rest, room))
    return {
        name: Slots(
            wanted=count, small=small[name], large=max(1, min(count, large)), left=max(1, min(count, left))
        )
        for name, count in wanted.items()
    }


def _plan_slots(instances: Mapping[str, Plan]) -> dict[str, Setting]:
    """What each instance is handed at once."""
    settings: dict[str, Setting] = {}
    for instance, plan in instances.items():
        bodies_mib = plan.java.bodies_mib.value
        workers = plan.layout.workers_per_model.value
        slots = count_slots(
            workers, {name: model.batch_size.value for name, model in plan.models.items()}, bodies_mib
        )
        for model, count in slots.items():
            batch = plan.models[model].batch_size.value
            reason = (
                f"{workers} × {batch} computed, and the next batches: workers × batch × {IN_FLIGHT_BATCHES}"
            )
            if count.small < count.wanted:
                reason = f"half of the {bodies_mib} MiB the instance has for bodies: {reason} is more"
            settings[f"{model}.{instance}.maxconn"] = Setting(
                value=count.small, reason=f"{reason}; the others wait in the door"
            )
            settings[f"{model}.{instance}.large_maxconn"] = Setting(
                value=count.large,
                reason=f"bodies above {SMALL_BYTES} bytes at once, each counted as the largest: what small "
                f"ones leave of {LARGE_PART:.0%} of the instance's {bodies_mib} MiB holds them",
            )
    return settings


def list_places(inputs: Inputs) -> list[tuple[str, int]]:
    """Name and port of every instance there may ever be behind this door, of both generations."""
    return [
        (f"{generation}{number}", find_port(replace(inputs, generation=generation), number))
        for generation in GENERATIONS
        for number in range(1, MAX_INSTANCES + 1)
    ]
