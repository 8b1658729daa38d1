"""Says what runs, from which weights, on which CPUs and how busy it is, or why nothing does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.plan import ModelPlan, Plan, read_plan
from handlers.backends.catalogue import name_variant
from server.api import Client, count_waiting, read_sizes
from server.archives import read_archives_left
from server.call import make_instance_client, read_instances
from server.errors import ApiError
from server.ports import inference_url, list_ports
from server.processes import find_marked, read_age, read_resident_mib, read_status
from server.rundir import RunDir
from server.state import Failure, State, read_failure, read_state
from server.supervisor.record import READY as PHASE_READY
from server.supervisor.record import Part, Record, read_record
from server.verify.collect import describe_workers
from server.verify.server_checks import plan_timeouts, render_batch, render_timeouts

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Packed

TOLD_WITHIN_S = 1.0
"""An idle worker tells in milliseconds; behind a queue that is longer nobody shall wait for it."""


def render_instance(run: RunDir, model_store: Path | None) -> tuple[str, bool]:
    """One TorchServe."""
    state = read_state(run.state)
    failure = read_failure(run.failure)
    processes = find_marked(run.path)
    java = [process.pid for process in processes if process.is_java]
    if not java:
        return _render_absence(run, len(processes), failure), False
    plan = read_plan(run.plan)
    archives = read_archives_left(plan, model_store or Path(plan.inputs.model_store))
    client = make_instance_client(plan)
    blocks = [render_model(plan, name, archives.get(name), client) for name in plan.models]
    lines = [_render_head(client, state, java[0]), *(line for block, _ in blocks for line in block)]
    return "\n".join(lines), all(serving for _, serving in blocks)


def render_status(run: RunDir, model_store: Path | None) -> tuple[str, bool]:
    """HAProxy and the supervisor, then each instance; and whether every model is served."""
    processes = find_marked(run.path)
    if not any(process.is_supervisor or process.is_java for process in processes):
        return _render_absence(run, len(processes), read_failure(run.failure)), False
    plan, record = read_plan(run.plan), read_record(run.record)
    watched = any(process.is_supervisor for process in processes)
    lines = [_render_server_head(plan, read_state(run.state), record, watched=watched)]
    if record:
        lines.append(_render_part("door", "HAProxy", record.door))
    lines.append(render_ports(plan))
    all_serve = watched and record is not None and record.phase == PHASE_READY
    for name, (folder, own) in read_instances(run, plan).items():
        text, serves = render_instance(folder, model_store)
        all_serve = all_serve and serves
        if record and name in record.instances:
            lines.append(_render_part(name, "TorchServe", record.instances[name]))
        lines += [f"  {line}" for line in text.splitlines()]
        lines.append(f"  {render_ports(own)}")
    return "\n".join(lines), all_serve


def _render_server_head(plan: Plan, state: State | None, record: Record | None, *, watched: bool) -> str:
    url = inference_url(plan)
    if not watched:
        cure = "what is left serves on, and nothing is restarted: make stop && make serve"
        return f"{url}: NOBODY WATCHES: the supervisor is gone; {cure}"
    ready = f", ready in {state.seconds_to_ready} s" if state and state.seconds_to_ready is not None else ""
    started = f", started {state.started_at}" if state else ""
    phase = f"{record.phase} since {record.since}" if record else "starting"
    count = len(plan.instances)
    return f"{url}: {phase}{started}{ready}; {count} instance{'s' * (count > 1)} behind HAProxy"


def render_ports(plan: Plan) -> str:
    """What listens where."""
    ports = list_ports(plan.properties)
    return f"ports: {', '.join(f'{port} {what}' for what, (_, port) in ports.items())}"


def _render_part(name: str, what: str, part: Part) -> str:
    """With what was the matter, the last cause first."""
    times = "never restarted" if not part.restarts else f"restarted {part.restarts} ×"
    causes = "".join(f"\n  {cause.at}: {cause.cause}" for cause in reversed(part.causes))
    health = f", {part.health}" if part.health and part.health != part.phase else ""
    return f"{name}: {what} {part.phase}{health}, {times}{causes}"


def _render_absence(run: RunDir, leftovers: int, failure: Failure | None) -> str:
    lines = [f"not running ({run.path})"]
    if leftovers:
        lines.append(f"{leftovers} process(es) of an earlier server are left: make stop")
    if failure:
        lines += ["the last one failed:", *render_failure(failure)]
    return "\n".join(lines)


def render_failure(failure: Failure) -> list[str]:
    """A failure as lines: where, why, what to do, where to read more."""
    lines = [f"  {failure.describe()}", *(f"    | {line}" for line in failure.lines)]
    if failure.cure:
        lines.append(f"  cure: {failure.cure}")
    if failure.log:
        lines.append(f"  log: {failure.log}")
    return lines


def _render_head(client: Client, state: State | None, java: int) -> str:
    if state is None:
        return (
            f"{client.inference_url}: running, but server.json is missing or damaged: make stop && make serve"
        )
    ready = f", ready in {state.seconds_to_ready} s" if state.seconds_to_ready is not None else ""
    memory = f"TorchServe {_render_resident_mib(java)} MiB"
    return f"{client.inference_url}: {state.phase}, started {state.started_at}{ready}; {memory}"


def render_model(plan: Plan, name: str, archive: Packed | None, client: Client) -> tuple[list[str], bool]:
    """One model's lines, and whether all its workers serve."""
    model = plan.models[name]
    try:
        described = client.describe(name)
        sizes = read_sizes(name, client, described)
    except ApiError as problem:
        return [f"{name}: {problem}"], False
    workers = described.get("workers", [])
    up = [worker for worker in workers if worker.get("status") == "READY"]
    pids = {pid for worker in up if (pid := int(worker.get("pid", -1))) > 0}
    computing = render_computing(model, name, client, pids)
    lines = [
        f"{name}: {len(up)} of {model.workers.value} workers ready, {computing}",
        *(f"  {line}" for line in render_live(model, described, sizes)),
        *(f"  {line}" for line in _render_archive(model, archive)),
        *(f"  {_render_worker(worker)}" for worker in workers),
    ]
    return lines, len(up) == int(model.workers.value)


def render_computing(model: ModelPlan, name: str, client: Client, pids: set[int]) -> str:
    """Backend and precision by the workers' own account; the plan's, and so said, where none gives any."""
    planned = name_variant(str(model.backend.value), str(model.precision.value))
    told = describe_workers(name, client, pids, seconds=TOLD_WITHIN_S).answers.values()
    live = {
        name_variant((one.get("backend") or {}).get("name", "?"), one.get("precision", "?")) for one in told
    }
    return _mark(" and ".join(sorted(live)), planned) if live else f"{planned} (planned; not told)"


def render_live(model: ModelPlan, described: Mapping[str, Any], sizes: Sequence[int]) -> list[str]:
    """Batch, queue and time-outs as TorchServe has them; what the plan has otherwise is marked."""
    batch = render_batch(model.batch_size.value, model.max_batch_delay_ms.value)
    queue = int(model.queue_size.value)
    size = queue if queue in sizes else next(iter(sizes), "?")
    live_batch = render_batch(described.get("batchSize", "?"), described.get("maxBatchDelay", "?"))
    live_times = render_timeouts(described.get("responseTimeout", "?"), described.get("startupTimeout", "?"))
    return [
        _mark(f"batch {live_batch}", f"batch {batch}"),
        f"{count_waiting(described)} requests wait, {_mark(f'queue of {size}', f'queue of {queue}')}",
        _mark(f"time-outs: {live_times}", f"time-outs: {plan_timeouts(model)}"),
    ]


def _mark(live: str, planned: str) -> str:
    return live if live == planned else f"{live}  <-- NOT AS PLANNED: {planned}"


def _render_archive(model: ModelPlan, archive: Packed | None) -> list[str]:
    if archive is None:
        return [
            f"weights: unknown, {model.archive.value} is gone from the model store, or damaged: make models"
        ]
    trained = "  <-- NOT TRAINED" if archive.definition.weights.startswith("random") else ""
    return [
        f"weights: {archive.definition.weights}{trained}",
        *(f"note: {note}" for note in archive.definition.notes),
    ]


def _render_worker(worker: Mapping[str, object]) -> str:
    pid = int(str(worker.get("pid", -1)))
    if pid <= 0:
        return "worker: has no process yet"
    status = worker.get("status")
    state = "ready" if status == "READY" else "not ready"
    age = read_age(pid)
    up = "?" if age is None else _render_age(age)
    cpus = read_status(pid).get("Cpus_allowed_list", "?")
    return f"worker {pid}: {state}, cpus {cpus}, {_render_resident_mib(pid)} MiB, up {up}"


def _render_age(seconds: float) -> str:
    """A worker younger than its server was started again."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def _render_resident_mib(pid: int) -> str:
    found = read_resident_mib(pid)
    return "?" if found is None else str(found)
