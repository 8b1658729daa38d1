"""Says what runs, from which weights, on which CPUs, or why nothing does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from config.plan import Plan, read_plan
from server.api import Client
from server.archives import Archive, read_archives
from server.call import make_client
from server.errors import ApiError
from server.processes import PROC, find_marked
from server.rundir import RunDir
from server.state import Failure, State, read_failure, read_state


def render_status(run: RunDir, model_store: Path | None) -> tuple[str, bool]:
    """The text, and whether every model is served."""
    state = read_state(run.state)
    failure = read_failure(run.failure)
    processes = find_marked(run.path)
    if not any(process.is_java for process in processes):
        return _render_absence(run, len(processes), failure), False
    plan = read_plan(run.plan)
    archives = read_archives(plan, model_store or Path(plan.inputs.model_store))
    client = make_client(plan, run)
    blocks = [render_model(plan, archives[name], client) for name in plan.models]
    lines = [_render_head(client, state), *(line for block, _ in blocks for line in block)]
    return "\n".join(lines), all(serving for _, serving in blocks)


def _render_absence(run: RunDir, leftovers: int, failure: Failure | None) -> str:
    lines = [f"not running ({run.path})"]
    if leftovers:
        lines.append(f"{leftovers} process(es) of an earlier server are left: make stop")
    if failure:
        lines += ["the last one failed:", *render_failure(failure)]
    return "\n".join(lines)


def render_failure(failure: Failure) -> list[str]:
    """A failure as lines: where, why, what to do, where to read more."""
    where = [part for part in (failure.model, failure.step) if part]
    lines = [f"  {': '.join([*where, failure.cause])}"]
    lines += [f"    | {line}" for line in failure.lines]
    if failure.cure:
        lines.append(f"  cure: {failure.cure}")
    if failure.log:
        lines.append(f"  log: {failure.log}")
    return lines


def _render_head(client: Client, state: State | None) -> str:
    if state is None:
        return (
            f"{client.inference_url}: running, but server.json is missing or damaged: make stop && make serve"
        )
    ready = f", ready in {state.seconds_to_ready} s" if state.seconds_to_ready is not None else ""
    return f"{client.inference_url}: {state.phase}, started {state.started_at}{ready}"


def render_model(plan: Plan, archive: Archive, client: Client) -> tuple[list[str], bool]:
    """One model's lines, and whether all its workers serve."""
    model = plan.models[archive.name]
    try:
        workers = client.describe(archive.name).get("workers", [])
    except ApiError as problem:
        return [f"{archive.name}: {problem}"], False
    up = [worker for worker in workers if worker.get("status") == "READY"]
    serving = len(up) == int(model.workers.value)
    lines = [
        f"{archive.name}: {len(up)} of {model.workers.value} workers ready, {model.precision.value}, "
        f"batch {model.batch_size.value} within {model.max_batch_delay_ms.value} ms",
        f"  weights: {archive.weights}"
        + ("  <-- NOT TRAINED" if archive.weights.startswith("random") else ""),
        *(f"  note: {note}" for note in archive.notes),
        *(f"  {_render_worker(worker)}" for worker in workers),
    ]
    return lines, serving


def _render_worker(worker: Mapping[str, object]) -> str:
    pid = int(str(worker.get("pid", -1)))
    if pid <= 0:
        return "worker: has no process yet"
    status = worker.get("status")
    state = "ready" if status == "READY" else "not ready"
    return f"worker {pid}: {state}, cpus {_read_cpus(pid)}, {_read_resident_mib(pid)} MiB"


def _read_cpus(pid: int) -> str:
    return _read_status(pid).get("Cpus_allowed_list", "?")


def _read_resident_mib(pid: int) -> str:
    words = _read_status(pid).get("VmRSS", "").split()
    return str(int(words[0]) // 1024) if words else "?"


def _read_status(pid: int, proc: Path = PROC) -> dict[str, str]:
    try:
        text = (proc / str(pid) / "status").read_text()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
