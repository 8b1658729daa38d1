"""Says what serves where, since when, how busy it is, what is wrong and what to do; or why nothing runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.plan import Plan, read_plan
from handlers.backends.catalogue import name_variant
from handlers.definition import Packed
from server.api import count_waiting, make_instance_client, read_sizes
from server.archives import read_archives_left
from server.call import shorten
from server.errors import ApiError
from server.haproxy import HaproxyError, Runtime
from server.ports import inference_url, list_ports
from server.processes import find_marked, read_age, read_environment, read_resident_mib, read_status
from server.rundir import MARK, RunDir
from server.state import Failure, State, read_failure, read_state
from server.supervisor.record import Part, Phase, Record, read_record

WIDTH = 100
RESTART = "make stop && make serve"


@dataclass(frozen=True, kw_only=True)
class Served:
    """One model in one instance, all versions together, as TorchServe has it."""

    planned: int
    """Workers."""
    workers: Sequence[Mapping[str, Any]] = ()
    waiting: int = 0
    """Requests in TorchServe's queue."""
    differences: tuple[str, ...] = ()
    """Its numbers that are not the plan's."""
    problem: str = ""
    """Why nothing is known."""

    @property
    def ready(self) -> int:
        """Workers."""
        return sum(worker.get("status") == "READY" for worker in self.workers)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that status tells."""

    run: RunDir
    plan: Plan
    state: State | None
    record: Record | None
    """None where no supervisor runs, whatever it wrote before it ended."""
    watched: bool
    """A supervisor runs."""
    java: Mapping[str, int]
    """Instance → process id of its TorchServe."""
    archives: Mapping[str, Packed]
    served: Mapping[tuple[str, str], Served]
    """By instance and model."""
    queued: Mapping[str, int]
    """Model → requests in HAProxy's queue."""

    def part(self, name: str) -> Part:
        """What the supervisor says of an instance, or of HAProxy as `proxy`."""
        parts = {"proxy": self.record.proxy, **self.record.instances} if self.record else {}
        return parts.get(name, Part())


def render_status(run: RunDir) -> tuple[str, bool]:
    """What a person reads, and whether everything serves that was planned."""
    processes = find_marked(run.path)
    watched = any(process.is_supervisor for process in processes)
    marks = {(read_environment(one.pid) or {}).get(MARK): one.pid for one in processes if one.is_java}
    if not watched and not marks:
        return _render_absence(run, len(processes)), False
    plan = read_plan(run.plan)
    places = [(name, model) for name, one in plan.instances.items() for model in one.models]
    with ThreadPoolExecutor(max(1, len(places))) as pool:  # one that hangs must not delay the others
        served = dict(zip(places, pool.map(lambda place: ask(plan, *place), places), strict=True))
    try:
        stats = Runtime(Path(run.proxy_files.admin_socket)).read_stats()
    except HaproxyError:  # the supervisor, or the row of HAProxy, says it
        stats = {}
    seen = Seen(
        run=run,
        plan=plan,
        state=read_state(run.state),
        record=read_record(run.record) if watched else None,
        watched=watched,
        java={name: pid for name in plan.instances if (pid := marks.get(str(run.instance(name).path)))},
        archives=read_archives_left(plan),
        served=served,
        queued={name: stat.queued for name, stat in stats.items()},
    )
    lines = [_render_head(seen), *_render_models(seen), *_render_parts(seen), *_render_problems(seen)]
    ready = seen.record is not None and seen.record.phase == Phase.READY
    serving = ready and all(one.ready == one.planned for one in served.values())
    return "\n".join(piece for line in lines for piece in _wrap(line)), serving


def _wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def ask(plan: Plan, instance: str, name: str) -> Served:
    """TorchServe about one model, compared with the plan."""
    model, client = plan.instances[instance].models[name], make_instance_client(plan, instance)
    queue = plan.instances[instance].queue_size
    planned = model.workers * len(model.archives)
    workers: list[Mapping[str, Any]] = []
    waiting, differences = 0, {}
    try:
        for version in model.archives if len(model.archives) > 1 else [""]:
            described = client.describe(name, version=version)
            sizes = read_sizes(name, client, described, version)
            workers += described.get("workers", [])
            waiting += count_waiting(described)
            pairs = {
                "batch": (described.get("batchSize"), model.batch_size),
                "delay in ms": (described.get("maxBatchDelay"), model.max_batch_delay_ms),
                "queue": (queue if queue in sizes else next(iter(sizes), None), queue),
                "response time-out in s": (described.get("responseTimeout"), model.response_timeout_s),
                "startup time-out in s": (described.get("startupTimeout"), model.startup_timeout_s),
            }
            for what, (actual, expected) in pairs.items():
                if actual != expected:
                    differences[what] = f"{what} {'?' if actual is None else actual} (planned {expected})"
    except ApiError as problem:
        return Served(planned=planned, problem=str(problem))
    found = tuple(differences.values())
    return Served(planned=planned, workers=workers, waiting=waiting, differences=found)


def _render_head(seen: Seen) -> str:
    url, record, state = inference_url(seen.plan), seen.record, seen.state
    if not seen.watched:
        left = "what is left serves on, and nothing is restarted"
        return f"{url}: supervisor not running; {left}: {RESTART}"
    phase = f"{record.phase.value} since {_render_time(record.since)}" if record else "starting"
    took = f", {state.seconds_to_ready:g} s after its start" if state and state.seconds_to_ready else ""
    count = len(seen.plan.instances)
    return f"{url}: {phase}{took}; {count} instance{'s' * (count > 1)} behind HAProxy"


def _render_models(seen: Seen) -> Iterator[str]:
    """A row for each: workers of all instances, what computes, batch, requests that wait, weights."""
    width = max(map(len, seen.plan.models))
    for name, model in seen.plan.models.items():
        here = [one for (_, served), one in seen.served.items() if served == name]
        waiting = sum(one.waiting for one in here) + seen.queued.get(name, 0)
        row = (
            f"{name:{width}}  {sum(one.ready for one in here)}/{sum(one.planned for one in here)} workers, "
            f"batch {model.batch_size} within {model.max_batch_delay_ms} ms, {waiting} waiting, "
        )
        definition = seen.archives[name].definition if name in seen.archives else None
        if not model.kit:
            yield f"{row}an archive that others made"
            continue
        weights = definition.weights if definition else "unknown"
        mark = "  <-- NOT TRAINED" if weights.startswith("random") else ""
        yield f"{row}{name_variant(model.backend, model.precision)}, weights {weights}{mark}"
        for note in definition.notes if definition else ():
            yield f"    note: {note}"


def _render_parts(seen: Seen) -> Iterator[str]:
    """HAProxy, then each instance with its workers."""
    pid = seen.part("proxy").pid
    memory = f", {_render_mib(pid)}" if pid else ""
    yield f"proxy: HAProxy {_render_part(seen, 'proxy')}{memory}, ports {_render_ports(seen.plan)}"
    for name, instance in seen.plan.instances.items():
        memory = _render_mib(seen.java[name]) if name in seen.java else "not running"
        ports = _render_ports(seen.plan, name)
        yield f"{name}: TorchServe {_render_part(seen, name)}, {memory}, ports {ports}"
        for model in instance.models:
            one = seen.served[name, model]
            workers = "; ".join(_render_worker(worker) for worker in one.workers)
            yield f"  {model}: {one.ready}/{one.planned} workers{workers and ': '}{workers}"


def _render_part(seen: Seen, name: str) -> str:
    """Its phase, and how often it was restarted, with the last cause."""
    part = seen.part(name)
    if not seen.watched:
        return "not watched"
    since = f"{part.phase.value} since {_render_time(part.since)}"
    last = f" (last at {_render_time(part.causes[-1].at)}: {part.causes[-1].cause})" if part.causes else ""
    return f"{since}, restarted {part.restarts} ×{last}" if part.restarts else f"{since}, never restarted"


def _render_ports(plan: Plan, instance: str = "") -> str:
    return ", ".join(f"{port} {purpose}" for purpose, (_, port) in list_ports(plan, instance).items())


def _render_worker(worker: Mapping[str, Any]) -> str:
    pid = int(worker.get("pid", -1))
    if pid <= 0:
        return "one has no process yet"
    state = "" if worker.get("status") == "READY" else "not ready, "
    cpus = read_status(pid).get("Cpus_allowed_list", "?")
    return f"{pid} {state}CPUs {cpus}, {_render_mib(pid)}, up {_render_age(read_age(pid))}"


def _render_age(seconds: float | None) -> str:
    """A worker younger than its server was started again."""
    if seconds is None:
        return "?"
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def _render_mib(pid: int) -> str:
    found = read_resident_mib(pid)
    return f"{'?' if found is None else found} MiB"


def _render_time(at: str) -> str:
    return at.replace("+00:00", "Z") or "?"


def _render_problems(seen: Seen) -> Iterator[str]:
    for what, do in dict.fromkeys(_find_problems(seen)):
        yield f"what: {what}; do: {do}"


def _find_problems(seen: Seen) -> Iterator[tuple[str, str]]:
    """What is wrong, and what to do."""
    if seen.state is None:
        yield "server.json is missing or damaged", RESTART
    if seen.record and seen.record.message:
        yield seen.record.message, f"read {shorten(seen.run.supervisor_log)}"
    if seen.record and seen.record.reload.startswith("failed"):
        yield f"the last reload {seen.record.reload}", "make reload again, without that cause"
    for name in ("proxy", *seen.plan.instances):
        part = seen.part(name)
        log = shorten(seen.run.proxy_log if name == "proxy" else seen.run.instance(name).model_log)
        if part.phase not in (Phase.READY, Phase.STARTING):
            why = part.health or (part.causes[-1].cause if part.causes else "")
            yield f"{name} {part.phase.value}{why and ': '}{why}", f"it is restarted by itself; read {log}"
    for (name, model), one in seen.served.items():
        log = shorten(seen.run.instance(name).model_log)
        do = f"TorchServe restarts it; if it stays so, read {log}" if seen.watched else RESTART
        if seen.part(name).phase == Phase.READY or not seen.watched:  # else the reason stands above
            if one.problem:
                yield f"{name}: {one.problem}", do
            elif one.ready < one.planned:
                yield f"{name} has {one.ready} of {one.planned} workers of {model}", do
        if one.differences:
            yield f"TorchServe of {name} has of {model}: {', '.join(one.differences)}", RESTART
    for name, model in seen.plan.models.items():
        if model.kit and name not in seen.archives:
            gone = model.archives[model.version]
            yield f"{gone} is gone from the model store, or damaged", f"make models MODELS={name}"


def _render_absence(run: RunDir, leftovers: int) -> str:
    lines = [f"not running ({run.path})"]
    if leftovers:
        lines.append(f"what: {leftovers} process(es) of an earlier server are left; do: make stop")
    if failure := read_failure(run.failure):
        lines += ["the last start failed:", *render_failure(failure)]
    return "\n".join(lines)


def render_failure(failure: Failure) -> list[str]:
    """A failure as lines: where, why, what to do, where to read more."""
    lines = [f"  what: {failure.describe()}", *(f"    | {line}" for line in failure.lines)]
    if failure.fix:
        lines.append(f"  do: {failure.fix}")
    if failure.log:
        lines.append(f"  log: {failure.log}")
    return lines
