"""The plan: a machine, its instances, the models of each. Values are plain, their reasons in `reasons`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from config.errors import ConfigError, explain_invalid
from config.folders import PLAN_FILE, write_text_atomically

PROPERTIES_FILE = "config.properties"
PROXY_FILE = "haproxy.cfg"
INSTANCES_FOLDER = "instances"
"""In the run directory: a folder for each instance, with its config.properties, logs and sockets."""
STORE_FOLDER = "store"
"""In the folder of an instance of archives that others made: a link to each, as model store."""
NEXT_FOLDER = "next"
"""In the run directory: plan and haproxy.cfg that a reload moves to."""


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model in one instance."""

    kit: bool = True
    """Its archive was built by this kit. False: an archive that others made. It is sent no describe and no
    smoke request, and has no backend, precision, limits or steps."""
    version: str = "1.0"
    """The one that is asked where a request names none."""
    archives: Mapping[str, str]
    """Version → file name in the model store (of a foreign archive: its absolute path)."""
    backend: str = ""
    """A name of handlers.backends.catalogue.BACKENDS."""
    precision: str = ""
    """fp32, bf16 or int8."""
    workers: int
    """Worker processes of each version."""
    batch_size: int
    """Requests in a batch."""
    max_batch_delay_ms: int
    response_timeout_s: int
    """A batch that takes longer gets its worker killed."""
    startup_timeout_s: int
    """A load that takes longer gets its worker killed."""
    maxconn: int
    """Requests that the reverse proxy hands over at once."""
    large_maxconn: int
    """The same of bodies above ProxyPlan.small_bytes."""
    rate: float = 0.0
    """Requests a second that its workers here answer, by the batch profile; 0 where nothing is known."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """What one request may cost, by the handler's name for it."""
    off: tuple[str, ...] = ()
    """Load steps that are left out."""
    handler: str = ""
    """The handler's file, without `.py`."""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """`inputs` and `outputs` as the Open Inference Protocol describes them: name, datatype, shape."""


@dataclass(frozen=True, kw_only=True)
class JavaPlan:
    """The JVM of an instance's TorchServe."""

    bodies_mib: int
    """What the bodies of all requests in the instance may take together."""
    heap_mib: int
    """-Xms and -Xmx."""
    direct_mib: int
    """-XX:MaxDirectMemorySize."""
    flags: tuple[str, ...]
    """All of vmargs."""


@dataclass(frozen=True, kw_only=True)
class InstancePlan:
    """One TorchServe behind the reverse proxy."""

    port: int
    """The first of its ports, on loopback: + 3 and + 4 are gRPC, + 920 upwards name the workers' sockets."""
    kit: bool = True
    """Its archives were built by this kit. False: archives that others made, with
    TorchServe's own defaults."""
    models: Mapping[str, ModelPlan]
    cpus: tuple[int, ...]
    """CPUs of its share of the machine."""
    memory_mib: int
    """Memory of its share: what all its processes may hold together."""
    cores_per_worker: int
    """Physical cores, and OpenMP threads, of one worker."""
    worker_cpus: tuple[tuple[int, ...], ...]
    """By rank: the CPUs that worker `rank` of each model may run on."""
    memory_nodes: tuple[tuple[int, ...] | None, ...]
    """By rank: the NUMA nodes that `numactl -m` binds it to; None: not bound."""
    server_cpus: tuple[int, ...] | None
    """CPUs that TorchServe itself is confined to; None: not confined."""
    launched: bool
    """The launcher starts the workers (cpu_launcher_enable)."""
    pinned: bool
    """And keeps each on CPUs of its own."""
    queue_size: int
    """Requests of each model that may wait in TorchServe (job_queue_size)."""
    java: JavaPlan
    environment: Mapping[str, str]
    """Variables of the TorchServe process; workers inherit them."""
    worker_environment: Mapping[str, str | tuple[str, ...]]
    """Variables that the workers must be seen with besides. LD_PRELOAD is a tuple of paths."""
    properties: Mapping[str, str]
    """config.properties, whole: key → value."""


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """What the workers preload."""

    allocator: str
    """jemalloc, tcmalloc or system."""
    allocator_path: str | None
    """The real file; None for system, or where a recorded machine has none."""
    allocator_link: str | None
    """<prefix>/lib/lib<name>.so, which the launcher looks for; a link to allocator_path. None for system."""
    openmp: str
    """intel or gnu."""
    openmp_path: str | None
    """<prefix>/lib/libiomp5.so; None for gnu."""


@dataclass(frozen=True, kw_only=True)
class ProxyPlan:
    """HAProxy in front of the instances."""

    host: str
    """IPv4 or IPv6; `::` serves both."""
    port: int
    """Of predictions, /ready and /live."""
    metrics_host: str
    metrics_port: int
    """Of the metrics page."""
    cors_origin: str = ""
    """Whose pages may send requests from a browser; "": nobody's."""
    tls_cert: str = ""
    """PEM files, absolute; "" serves without TLS."""
    tls_key: str = ""
    token_file: str = ""
    """A file with the token; "": one is made."""
    threads: int
    connections: int
    memory_mib: int
    buffer_bytes: int
    rewrite_bytes: int
    header_bytes: int
    small_bytes: int
    max_request_bytes: int
    places: int
    """Requests of one model that may wait."""
    large_places: int
    deadline_ms: int
    largest_deadline_ms: int
    headers_s: int
    body_s: int
    idle_s: int
    check_ms: int
    retries: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that was decided."""

    schema: Literal[5] = 5
    """Of plan.json: another is not read."""
    settings: Mapping[str, Any]
    """What was asked for: Settings.model_dump(mode="json", exclude_defaults=True)."""
    machine: Mapping[str, Any]
    """The machine as it was seen: Topology.to_dict()."""
    live: bool = True
    """It is for this machine, not for a recorded one."""
    package_set: str
    """ipex or current (handlers.backends.catalogue.SETS)."""
    prefix: str
    """The virtual environment that TorchServe runs in, absolute."""
    model_store: str
    """The folder with the archives, absolute."""
    run_dir: str
    """The run directory, absolute."""
    generation: str = "a"
    """a or b: a reload starts the other set of instances beside."""
    slo_p99_ms: int
    """What batches are planned for."""
    libraries: Libraries
    proxy: ProxyPlan
    instances: Mapping[str, InstancePlan]
    """By name: a1, a2 … or b1, b2 …; in order."""
    profile: Mapping[str, Any] = field(default_factory=dict)
    """The batch profile that batches were planned by; empty where there is none that holds."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Path of a value → one short sentence: "a1.cores_per_worker", "a1.bert.batch_size", "proxy.retries",
    "libraries.allocator", "a1.properties.job_queue_size"."""

    @property
    def log(self) -> str:
        """Format of the logs: text or json."""
        return str(self.settings.get("log", "text"))

    @property
    def models(self) -> dict[str, ModelPlan]:
        """By name, of the first instance that serves each; workers and slots are that instance's alone."""
        found: dict[str, ModelPlan] = {}
        for instance in self.instances.values():
            for name, model in instance.models.items():
                found.setdefault(name, model)
        return dict(sorted(found.items()))

    def list_serving(self, model: str) -> list[str]:
        """Names of the instances that serve a model."""
        return [name for name, instance in self.instances.items() if model in instance.models]

    def count_workers(self, model: str) -> int:
        """Of all instances together."""
        return sum(one.models[model].workers for one in self.instances.values() if model in one.models)

    def to_json(self) -> str:
        """Sorted keys, so the same plan is the same bytes."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, source: object = PLAN_FILE) -> Plan:
        """The plan back from its JSON; errors name `source`. ConfigError where it is of another schema."""
        try:
            return TypeAdapter(Plan).validate_json(text)
        except ValidationError as problem:
            text = explain_invalid(problem)
            raise ConfigError(f"{source}: not a plan: {text}; run `make serve` again") from problem


def read_plan(path: Path | str) -> Plan:
    """The plan in a file, or in the run directory that holds one."""
    file = Path(path) / PLAN_FILE if Path(path).is_dir() else Path(path)
    try:
        return Plan.from_json(file.read_bytes(), file)
    except OSError as problem:
        raise ConfigError(f"no plan: {file}: {problem.strerror}; run `make serve` first") from problem


def write_plan(plan: Plan, path: Path) -> None:
    """Whole or not at all: a half-written plan must never be read."""
    write_text_atomically(path, plan.to_json())
