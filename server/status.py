"""Says what serves where, since when, how busy it is, what is wrong and what to do; or why nothing runs."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.plan import Plan, read_plan
from config.proxy import render_address
from config.settings import is_loopback
from handlers.backends.catalogue import name_variant
from server.api import count_waiting, make_instance_client, read_queue_size
from server.archives import read_archives_left
from server.call import shorten
from server.errors import RESTART, ApiError
from server.haproxy import HaproxyError, Runtime
from server.ports import inference_url, list_ports
from server.processes import Process, find_marked, read_age, read_environment, read_resident_mib, read_status
from server.rundir import MARK, RunDir
from server.state import Failure, Part, Phase, read_failure, read_record, read_state

WIDTH = 100


def render_status(run: RunDir) -> tuple[str, bool]:
    """What a person reads, and whether everything serves that was planned."""
    processes = find_marked(run.path)
    if any(process.is_supervisor or process.is_java for process in processes):
        status = Status(run, processes)
        problems = (f"what: {what}; do: {do}" for what, do in status.find_problems())
        lines = [status.render_head(), *status.render_models(), *status.render_parts(), *problems]
        return "\n".join(map(_wrap, lines)), status.serving
    lines = [f"not running ({run.path})"]
    if processes:
        lines.append(f"what: {len(processes)} process(es) of an earlier server are left; do: make stop")
    if failure := read_failure(run.failure):
        lines += ["the last start failed:", *render_failure(failure)]
    return "\n".join(lines), False


def render_failure(failure: Failure) -> list[str]:
    """A failure as lines: where, why, what to do, where to read more."""
    lines = [f"  what: {failure.describe()}", *(f"    | {line}" for line in failure.lines)]
    more = {"do": failure.fix, "log": failure.log}
    return [*lines, *(f"  {name}: {text}" for name, text in more.items() if text)]


@dataclass(kw_only=True)
class Served:
    """One model in one instance, all versions together, as TorchServe has it."""

    planned: int  # workers
    workers: list[Mapping[str, Any]] = field(default_factory=list)
    ready: int = 0  # of them
    waiting: int = 0  # requests in TorchServe's queue
    differences: list[str] = field(default_factory=list)  # numbers that are not the plan's
    problem: str = ""  # why nothing is known


def ask(plan: Plan, instance: str, name: str) -> Served:
    """TorchServe about one model, compared with the plan."""
    own, client = plan.instances[instance], make_instance_client(plan, instance)
    model = own.models[name]
    served = Served(planned=model.workers * len(model.archives))
    planned = {
        ("batch", "batchSize"): model.batch_size,
        ("delay in ms", "maxBatchDelay"): model.max_batch_delay_ms,
        ("response time-out in s", "responseTimeout"): model.response_timeout_s,
        ("startup time-out in s", "startupTimeout"): model.startup_timeout_s,
        ("queue", "queue"): own.queue_size,
    }
    try:
        for version in model.archives:
            path = name if model.kit else f"{name}/{version}"
            described = client.describe(path)
            live = {**described, "queue": read_queue_size(path, client, described, own.queue_size)}
            served.workers += described.get("workers", [])
            served.waiting += count_waiting(described)
            served.differences += [
                f"{what} {live.get(key)} (planned {expected})"
                for (what, key), expected in planned.items()
                if live.get(key) != expected
            ]
    except ApiError as problem:
        served.problem = str(problem)
    served.ready = sum(worker.get("status") == "READY" for worker in served.workers)
    return served


class Status:
    """All that is seen of a server, once; and what is said of it."""

    def __init__(self, run: RunDir, processes: list[Process]) -> None:
        self.run, self.plan, self.state = run, read_plan(run.plan), read_state(run.state)
        self.watched = any(process.is_supervisor for process in processes)
        self.record = read_record(run.record) if self.watched else None
        parts = {"proxy": self.record.proxy, **self.record.instances} if self.record else {}
        self.parts = defaultdict(Part, parts)
        self.java = {(read_environment(one.pid) or {}).get(MARK): one.pid for one in processes if one.is_java}
        self.haproxy = next((one.pid for one in processes if one.role == "HAProxy"), None)
        self.archives = read_archives_left(self.plan)
        places = [(name, model) for name, one in self.plan.instances.items() for model in one.models]
        with ThreadPoolExecutor(len(places)) as pool:  # one that hangs must not delay the others
            found = pool.map(lambda place: ask(self.plan, *place), places)
            self.served = dict(zip(places, found, strict=True))
        try:
            stats = Runtime(Path(run.proxy_files.admin_socket)).read_stats()
        except HaproxyError:  # the supervisor, or the row of HAProxy, says it
            stats = {}
        self.queued = {name: stat.queued for name, stat in stats.items()}
        ready = self.record is not None and self.record.phase == Phase.READY
        self.serving = ready and all(one.ready == one.planned for one in self.served.values())

    def render_head(self) -> str:
        url, count = inference_url(self.plan), len(self.plan.instances)
        if not self.watched:
            left = "what is left serves on, and nothing is restarted"
            return f"{url}: supervisor not running; {left}: {RESTART}"
        phase = f"{self.record.phase.value} since {_short(self.record.since)}" if self.record else "starting"
        seconds = self.state.seconds_to_ready if self.state else None
        took = f", started in {seconds:g} s" if seconds else ""
        return f"{url}: {phase}{took}; {count} instance{'s' * (count > 1)}"

    def render_models(self) -> Iterator[str]:
        """A row for each: workers of all instances, batch, requests that wait, what computes, weights."""
        for name, model in self.plan.models.items():
            here = [one for (_, served), one in self.served.items() if served == name]
            how = name_variant(model.backend, model.precision) if model.kit else "an archive that others made"
            ready, planned = sum(one.ready for one in here), sum(one.planned for one in here)
            waiting = self.queued.get(name, 0) + sum(one.waiting for one in here)
            batch = f"batch {model.batch_size} within {model.max_batch_delay_ms} ms"
            yield f"{name}: {ready}/{planned} workers, {how}, {batch}, {waiting} waiting"
            if name in self.archives:
                definition = self.archives[name].definition
                mark = "  <-- NOT TRAINED" if definition.weights.startswith("random") else ""
                yield f"  weights: {definition.weights}{mark}"
                yield from (f"  note: {note}" for note in definition.notes)

    def render_parts(self) -> Iterator[str]:
        """HAProxy, then each instance with its workers."""
        yield self._render_part("proxy", "HAProxy", self.haproxy)
        proxy = self.plan.proxy
        if not is_loopback(proxy.host) and not proxy.tls_cert:
            yield "  INSECURE=1: other machines send the token and their requests without TLS"
        if not is_loopback(proxy.metrics_host):
            yield "  METRICS: other machines read the metrics, without a token"
        for name, instance in self.plan.instances.items():
            yield self._render_part(name, "TorchServe", self.java.get(str(self.run.instance(name).path)))
            for model in instance.models:
                one = self.served[name, model]
                workers = "; ".join(map(_render_worker, one.workers)) or (
                    "unknown" if one.problem else "none"
                )
                yield f"  {model}: {one.ready}/{one.planned} workers: {workers}"

    def _render_part(self, name: str, what: str, pid: int | None) -> str:
        part = self.parts[name]
        phase = f"{part.phase.value} since {_short(part.since)}" if self.watched else "not watched"
        if part.restarts:
            last = f" (last at {_short(part.causes[-1].at)}: {part.causes[-1].cause})" if part.causes else ""
            phase += f", restarted {part.restarts} ×{last}"
        if name == "proxy":
            listened = list_ports(self.plan).items()
            ports = ", ".join(
                f"{port if is_loopback(host) else render_address(host, port)} {purpose}"
                for purpose, (host, port) in listened
            )
        else:
            ports = "gRPC " + ", ".join(str(port) for _, port in list_ports(self.plan, name).values())
        return f"{name}: {what} {phase}, {_render_mib(pid)}, ports: {ports}"

    def find_problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong, and what to do."""
        if self.state is None:
            yield "server.json is missing or damaged", RESTART
        if self.record and self.record.message:
            yield self.record.message, f"read {shorten(self.run.supervisor_log)}"
        if self.record and self.record.reload.startswith("failed"):
            yield f"the last reload {self.record.reload}", "make reload, once that is mended"
        logs = {name: shorten(self.run.instance(name).model_log) for name in self.plan.instances}
        for name, log in {"proxy": shorten(self.run.proxy_log), **logs}.items():
            part = self.parts[name]
            if part.phase in (Phase.UNWELL, Phase.BACKING_OFF):
                why = part.health or (part.causes[-1].cause if part.causes else "see its log")
                yield f"{name} {part.phase.value}: {why}", f"it is restarted by itself; read {log}"
        for (name, model), one in self.served.items():
            ready = self.parts[name].phase == Phase.READY
            if one.ready < one.planned and (ready or not self.watched):  # else the cause stands above
                lack = one.problem or f"{one.ready} of {one.planned} workers of {model}"
                do = f"TorchServe restarts it; if it stays so, read {logs[name]}" if self.watched else RESTART
                yield f"{name}: {lack}", do
            if one.differences:
                yield f"TorchServe of {name} has of {model}: {', '.join(one.differences)}", RESTART
        for name, planned in self.plan.models.items():
            if planned.kit and name not in self.archives:
                file = planned.archives[planned.version]
                yield f"{file} is gone from the model store, or damaged", f"make models MODELS={name}"


def _wrap(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    wrapper = textwrap.TextWrapper(WIDTH, "", indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(line)


def _short(at: str) -> str:
    return at.replace("+00:00", "Z") or "?"


def _render_worker(worker: Mapping[str, Any]) -> str:
    pid = int(worker.get("pid", -1))
    if pid <= 0:
        return "one has no process yet"
    state = "" if worker.get("status") == "READY" else "not ready, "
    cpus, age = read_status(pid).get("Cpus_allowed_list", "?"), read_age(pid)
    up = "?" if age is None else f"{age / 60:.0f} min" if age >= 60 else f"{age:.0f} s"
    return f"{pid} {state}CPUs {cpus}, {_render_mib(pid)}, up {up}"


def _render_mib(pid: int | None) -> str:
    found = read_resident_mib(pid) if pid else None
    return "not running" if found is None else f"{found} MiB"
