"""The plan: every decided value with its reason, as frozen dataclasses that become plan.json and come back
from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.folders import PLAN_FILE, write_text_atomically
from handlers.backends.catalogue import DEFAULT_SET

SCHEMA = 4
PROPERTIES_FILE = "config.properties"
ENVIRONMENT_FILE = "environment"
HAPROXY_FILE = "haproxy.cfg"
INSTANCES_FOLDER = "instances"
"""Each instance has a run directory of its own in it."""
NEXT_FOLDER = "next"
"""What a reload moves to."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One decided value and why it is what it is."""

    value: Any
    """The decision: a JSON value (string, number, boolean, list, mapping or None)."""
    reason: str
    """One sentence a person can check; rendered as the comment above the generated line."""


Settings = Mapping[str, Setting]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What was asked for; None means "decide for me"."""

    models: tuple[str, ...]
    """Names of the folders in models/, in alphabetical order."""
    precision: str = ""
    """Arithmetic of the models: fp32, bf16 or int8; "" is what `make tune` found, else fp32."""
    backend: str = ""
    """Backends of the models: a name, "bert=eager,resnet50=openvino", or "" for what
    `make tune` found, else the default."""
    package_set: str = DEFAULT_SET
    """What the environment was made for: which backends it can have, and which of them is the default."""
    profile: str = "throughput"
    """What to favour: throughput or latency."""
    workers: int | None = None
    """Workers per model."""
    cores_per_worker: int | None = None
    """Physical cores per worker."""
    allocator: str | None = None
    """jemalloc, tcmalloc or system."""
    openmp: str | None = None
    """intel or gnu."""
    batch: str | None = None
    """Requests in a batch: one number, or by model as "bert=8,resnet50=4"."""
    delay_ms: str | None = None
    """How long a batch waits to fill, likewise."""
    slo_p99_ms: int | None = None
    """What 99 of 100 requests shall be answered within; None is the tuned plan's limit, else 200."""
    port: int = 8080
    """The inference port; all others are counted from it."""
    bind: str = "127.0.0.1"
    """The IPv4 address that HAProxy serves predictions on; everything else stays on loopback."""
    token_file: str = ""
    """A file with the inference token; "" makes one."""
    instances: int | None = None
    """TorchServes behind HAProxy, in all."""
    deadline_ms: int = 60_000
    """When the door answers at the latest, for requests that name no time of their own."""
    tls_cert: str = ""
    """The door's certificate with its chain (PEM, absolute); "" serves without TLS."""
    tls_key: str = ""
    """Its private key (PEM, absolute)."""
    generation: str = "a"
    """Which of the two sets of instances' names and ports, a or b: a reload starts the other one beside."""
    pinning: bool = True
    """False writes cpu_launcher_enable=false: the baseline without the launcher."""
    off: tuple[str, ...] = ()
    """What the handlers shall leave out, of requests.SWITCHES: the baselines without it."""
    topology: str = "live"
    """"live" or the folder of a recorded machine."""
    prefix: str
    """The virtual environment TorchServe runs in (absolute)."""
    model_store: str
    """The folder with the archives (absolute)."""
    run_dir: str = "/nowhere"
    """The run directory (absolute): TorchServe's Unix sockets are below it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which CPUs do the work, and for whom."""

    workers_per_model: Setting
    """int: worker processes of each model; one number for all, because cpu_launcher_args is one global
    string."""
    cores_per_worker: Setting
    """int: physical cores, and OpenMP threads, of one worker."""
    core_list: Setting
    """[cpu …]: all CPUs that work, one per physical core, in rank order; where workers are not pinned, all
    that they may run on."""
    worker_cpus: Setting
    """[[cpu …] per rank]: the CPUs worker `rank` of every model may run on."""
    memory_nodes: Setting
    """[[node …] or None per rank]: the NUMA nodes `numactl -m` binds worker `rank` to; None = not bound."""
    server_cpus: Setting
    """[cpu …] TorchServe itself is confined to before it starts anything; None = not confined."""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """The two libraries that are preloaded into the workers."""

    allocator: Setting
    """"jemalloc", "tcmalloc" or "system"."""
    allocator_path: Setting
    """The real file, or None (system allocator, or not found on this machine)."""
    allocator_link: Setting
    """The name under <prefix>/lib the launcher looks up; a link to allocator_path. None for system."""
    openmp: Setting
    """"intel" or "gnu"."""
    openmp_path: Setting
    """<prefix>/lib/libiomp5.so, the name the launcher looks up; None for gnu."""


@dataclass(frozen=True, kw_only=True)
class Java:
    """The JVM of TorchServe's frontend."""

    bodies_mib: Setting
    """int: what the bodies of all unanswered requests may take together, MiB."""
    heap_mib: Setting
    """int: fixed heap (-Xms = -Xmx), MiB."""
    direct_mib: Setting
    """int: memory outside the heap for buffers (-XX:MaxDirectMemorySize), MiB."""
    vmargs: Setting
    """The flags as one string, split by blanks."""


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """What one model's workers do."""

    backend: Setting
    """What computes it, of handlers.backends.catalogue.BACKENDS."""
    precision: Setting
    """fp32, bf16 or int8."""
    batch_size: Setting
    """int: requests TorchServe puts into one batch; one of the sizes the handler warms."""
    max_batch_delay_ms: Setting
    """int: how long a batch waits to fill."""
    workers: Setting
    """int: worker processes."""
    queue_size: Setting
    """int: requests that may wait; the next one is answered 503."""
    response_timeout_s: Setting
    """int: a batch that takes longer gets its worker killed."""
    startup_timeout_s: Setting
    """int: a load that takes longer gets its worker killed."""
    archive: Setting
    """File name in the model store."""
    limits: Settings = field(default_factory=dict)
    """What one request may cost, by name (config/rules/limits.py): whole numbers, the unit in the name."""


@dataclass(frozen=True, kw_only=True)
class InstancePlan:
    """One TorchServe behind HAProxy; its own plan is in its own folder."""

    port: int
    """Where it takes predictions, on loopback; the four after it are its other ports."""
    models: tuple[str, ...]
    """What it serves."""
    cpus: tuple[int, ...]
    """The CPUs of its share of the machine."""
    workers: int
    """Of each of its models."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that was decided: for the whole server, all instances together, or for one instance."""

    schema: int = SCHEMA
    """Version of this format."""
    inputs: Inputs
    """What was asked for."""
    machine: Mapping[str, Any]
    """The machine as it was seen: Topology.to_dict()."""
    layout: Layout
    """Workers and CPUs."""
    libraries: Libraries
    """Allocator and OpenMP."""
    environment: Settings
    """Variables to set on the TorchServe process; workers inherit them."""
    worker_environment: Settings
    """Variables the workers must be seen with besides; the launcher sets them. LD_PRELOAD is a list of
    paths."""
    properties: Settings
    """config.properties without `models`."""
    java: Java
    """JVM flags."""
    models: Mapping[str, ModelPlan]
    """By model name."""
    timings: Mapping[str, Any] = field(default_factory=dict)
    """What batches were planned by, as `python -m models time` wrote it; empty where there are none that
    hold."""
    door: Settings = field(default_factory=dict)
    """What HAProxy does; empty in an instance's own plan."""
    instances: Mapping[str, InstancePlan] = field(default_factory=dict)
    """What is behind HAProxy, by name; empty in an instance's own plan."""

    @property
    def launched(self) -> bool:
        """Whether the launcher starts the workers; it may not on a machine that it cannot read."""
        return str(self.properties["cpu_launcher_enable"].value).lower() == "true"

    @property
    def pinned(self) -> bool:
        """Whether it binds them to CPUs, too; asked of an instance's plan."""
        args = self.properties["cpu_launcher_args"].value if self.launched else "--disable_taskset"
        return "--disable_taskset" not in args.split(" ")

    def to_json(self) -> str:
        """Sorted keys, so the same plan is the same bytes."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str, source: str = PLAN_FILE) -> Plan:
        """The plan back from its JSON; `source` is named in errors."""
        raw = _parse_object(text, source)
        if raw.get("schema") != SCHEMA:
            raise ConfigError(
                f"{source}: schema must be {SCHEMA}: got {raw.get('schema')}; run `make plan` again"
            )
        try:
            return _parse_plan(raw)
        except (KeyError, TypeError) as problem:
            raise ConfigError(f"{source}: not a plan: {problem}; run `make plan` again") from problem


def read_plan(path: Path | str) -> Plan:
    """The plan in a file, or in the run directory that holds one."""
    file = Path(path) / PLAN_FILE if Path(path).is_dir() else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(f"no plan: {file}: {problem.strerror}; run `make plan` first") from problem
    return Plan.from_json(text, str(file))


def write_plan(plan: Plan, path: Path) -> None:
    """Whole or not at all: a half-written plan must never be read."""
    write_text_atomically(path, plan.to_json())


def _parse_object(text: str, source: str) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as problem:
        raise ConfigError(f"{source}: not JSON: {problem}; run `make plan` again") from problem
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: must be a JSON object: got {type(raw).__name__}; run `make plan` again")
    return raw


def _parse_plan(raw: dict[str, Any]) -> Plan:
    asked = raw["inputs"]
    return Plan(
        schema=raw["schema"],
        inputs=Inputs(**{**asked, "models": tuple(asked["models"]), "off": tuple(asked.get("off", ()))}),
        machine=raw["machine"],
        layout=Layout(**_parse_settings(raw["layout"])),
        libraries=Libraries(**_parse_settings(raw["libraries"])),
        environment=_parse_settings(raw["environment"]),
        worker_environment=_parse_settings(raw["worker_environment"]),
        properties=_parse_settings(raw["properties"]),
        java=Java(**_parse_settings(raw["java"])),
        models={name: _parse_model(model) for name, model in raw["models"].items()},
        timings=raw.get("timings", {}),
        door=_parse_settings(raw["door"]),
        instances={
            name: InstancePlan(**{**one, "models": tuple(one["models"]), "cpus": tuple(one["cpus"])})
            for name, one in raw["instances"].items()
        },
    )


def _parse_model(raw: Mapping[str, Any]) -> ModelPlan:
    own = {name: value for name, value in raw.items() if name != "limits"}
    return ModelPlan(**_parse_settings(own), limits=_parse_settings(raw["limits"]))


def _parse_settings(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Setting]:
    return {name: Setting(**setting) for name, setting in raw.items()}
