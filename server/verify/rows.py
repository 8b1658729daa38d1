"""The one table of what verify compares: what is planned, what the live server shows, where, what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from config.proxy import SOCKETS
from handlers.sums import render_changes
from server.verify import judge
from server.verify.collect import Unknown
from server.verify.judge import Judged, Planned
from server.verify.probes import PROXY_PROBES

PROXY, INSTANCE, MODEL, WORKER = "proxy", "instance", "model", "worker"
"""What a row is about: HAProxy and the supervisor, a TorchServe, a version of a model in it, a worker."""
Text = Callable[[Planned, Any], str]


@dataclass(frozen=True)
class Row:
    """One comparison: of `expected` and `actual` as equal texts, or what `judge` says."""

    name: str
    scope: str
    expected: str | Callable[[Planned], str] = ""
    actual: Text | None = None
    judge: Callable[[Planned, Any], Judged] | None = None
    source: str = ""  # where the actual value is read
    fix: str | Text = ""  # what to do about a difference
    describe: bool = False  # of archives of this kit it needs the worker's own answer
    kit: bool | None = None  # True: of archives of this kit alone; False: of those alone that others made
    always: bool = False  # also where TorchServe does not run


RESTART = "make stop && make serve"
TRY_AGAIN = "try again when its workers are free to answer"
_RECONFIGURE = f"config.properties was changed behind the plan's back? {RESTART}"
_NEW_PROXY = f"haproxy.cfg was changed behind the plan's back? {RESTART}"
_YAML = f"config.properties, or a YAML file in the archive, says something else: {RESTART}"
_PINNING = (
    f"if the worker was moved: {RESTART}; if it never was pinned, look for `run_cpu is not available` in "
    "logs/ts_log.log and for the launcher's lines in logs/model_log.log"
)
_LINK = f"the launcher found no library to preload: {RESTART} makes the link again"
_OPTIONS = f"the plan's value did not reach the handler (CPU_KIT_OPTIONS), or the archive is older: {RESTART}"
_LOAD = f"see the worker's `loaded` line in logs/model_log.log, then {RESTART}"
_BATCH, _TIMEOUTS = "{} within {} ms", "response {} s, startup {} s"
_LOGGED = "what TorchServe logged at its start (server.json)"
_MODEL = "GET /models/<name>"
_UNPROVEN = (
    "precision, graph, channels_last, load steps, self-check: no describe is sent to an archive that others "
    "made. TorchServe applies ipex.optimize to eager models only; TorchScript archives are served as they are"
)


def _own(name: str, fix: str | Text, judge: Callable[[Planned, Any], Judged]) -> Row:
    """Of what a worker of this kit makes of its model, by its own account."""
    return Row(name, WORKER, judge=judge, source="describe", fix=fix, describe=True, kit=True)


# fmt: off
ROWS: tuple[Row, ...] = (
    Row("supervisor", PROXY, "ready", lambda p, s: s.phase,
        source="run/supervisor.json, and its process", fix=RESTART),
    Row("plan", PROXY, "as started", judge.see_plan, source="digests: of plan.json, in server.json",
        fix=f"the server follows the old plan: {RESTART}"),
    Row("haproxy.cfg", PROXY, "as rendered at the start", judge.see_proxy_config,
        source="digests: of the file, in server.json", fix=_NEW_PROXY),
    Row("proxy addresses", PROXY, judge.plan_addresses, judge.see_addresses,
        source="TCP sockets of HAProxy and the supervisor", fix=_NEW_PROXY),
    Row("proxy answers", PROXY,
        lambda p: judge.render({name: status for name, (status, _) in PROXY_PROBES.items()}),
        lambda p, s: judge.render(s.answers), source="8 calls, as of an untrusted client", fix=_NEW_PROXY),
    Row("maxconn", PROXY, judge=judge.maxconn, source="HAProxy's show stat", fix=RESTART),
    Row("token", PROXY, "mode 600", lambda p, s: "none" if s.token_mode is None else f"mode {s.token_mode:o}",
        source="run/token", fix="chmod 600 run/token"),

    Row("TorchServe", INSTANCE, "running", lambda p, s: "running" if s.running else "not running",
        source="/proc/*/environ (CPU_KIT_RUN)", fix="make serve", always=True),
    Row("server's CPUs", INSTANCE, judge=judge.server_cpus, source="affinity of java's threads", fix=RESTART),
    Row("orphaned workers", INSTANCE, "none", judge.see_orphans, always=True,
        source=f"/proc/*/environ (CPU_KIT_RUN), {_MODEL}",
        fix=lambda p, s: f"kill -9 {' '.join(map(str, s.orphans or ()))}, or {RESTART}"),
    Row("config.properties", INSTANCE, "as planned", judge.see_properties,
        source="digests: of plan.json's rendering, in server.json, of the file", fix=_RECONFIGURE),
    Row("JVM flags", INSTANCE, lambda p: " ".join(p.instance.java.flags), judge.see_flags,
        source=f"/proc/PID/cmdline and environ of java ({', '.join(judge.JAVA_VARIABLES)})",
        fix=f"{_RECONFIGURE}; and unset {', '.join(judge.JAVA_VARIABLES)}"),
    Row("addresses", INSTANCE, judge.plan_addresses, judge.see_addresses,
        source="TCP sockets of all its processes", fix=_RECONFIGURE),
    Row("sockets", INSTANCE, f"{', '.join(SOCKETS)}; folder of mode 700", lambda p, s: ", ".join(s.sockets)
        + f"; folder of mode {s.sockets_mode:o}{'' if s.sockets_own else ' of another user'}",
        source="the temporary folder of the instance", fix=f"chmod 700 that folder, or {RESTART}"),
    Row("gRPC", INSTANCE, "rejected", judge.see_grpc,
        source="a call of each: grpc-status 12 is UNIMPLEMENTED", fix=f"make setup && {RESTART}"),
    Row("model API", INSTANCE, judge=judge.model_api, source="POST /models", fix=_RECONFIGURE),
    Row("allowed_urls", INSTANCE, lambda p: p.instance.properties["allowed_urls"],
        lambda p, s: judge.see_logged(s, "Allowed Urls"), source=_LOGGED, fix=_RECONFIGURE),
    Row("archives install", INSTANCE, lambda p: p.instance.properties["install_py_dep_per_model"],
        lambda p, s: judge.see_logged(s, "Custom python dependency for model allowed"),
        source=_LOGGED, fix=_RECONFIGURE),
    Row("request size", INSTANCE, judge=judge.request_size,
        source="POST with Content-Length and Expect: 100-continue, no body", fix=_RECONFIGURE),
    Row("response size", INSTANCE,
        lambda p: p.instance.properties.get("max_response_size", judge.TORCHSERVES_RESPONSE_BYTES),
        lambda p, s: judge.see_logged(s, "Maximum Response Size"), source=_LOGGED, fix=_RECONFIGURE),

    Row("workers", MODEL, lambda p: f"{p.model.workers} ready",
        lambda p, s: s.problem or f"{s.ready} ready" + (f" of {s.listed}" if s.listed != s.ready else ""),
        source=_MODEL,
        fix=f"TorchServe starts a dead worker again within 30 s; else see make status, {RESTART}"),
    Row("ranks", MODEL, judge=judge.ranks, source="launcher's --rank and thread affinity",
        fix=f"workers share cores while others idle (a scale call changes ranks): {RESTART}"),
    Row("batch", MODEL, lambda p: _BATCH.format(p.model.batch_size, p.model.max_batch_delay_ms),
        lambda p, s: _BATCH.format(*map(s.described.get, ("batchSize", "maxBatchDelay"))),
        source=_MODEL, fix=_YAML),
    Row("queue", MODEL, lambda p: f"{p.instance.queue_size} requests", judge.see_queue,
        source=f"{_MODEL}: jobQueueStatus", fix=_YAML),
    Row("time-outs", MODEL, lambda p: _TIMEOUTS.format(p.model.response_timeout_s, p.model.startup_timeout_s),
        lambda p, s: _TIMEOUTS.format(*map(s.described.get, ("responseTimeout", "startupTimeout"))),
        source=_MODEL, fix=_YAML),
    Row("archive files", MODEL, "as built",
        lambda p, s: "not unpacked" if s.changed_files is None else
        render_changes([*s.changed_files]) or "as built",
        source="tmp/models of the instance, the archive", fix=f"{RESTART} unpacks the archive anew"),
    Row("computation", MODEL, "as planned", lambda p, s: Unknown(_UNPROVEN), source="nothing", kit=False),

    Row("process", WORKER, "alive",
        lambda p, s: "gone" if s.thread_cpus is None else "stopped" if s.stopped else "alive",
        source="/proc/PID/task, /proc/PID/stat", fix=lambda p, s:
        f"somebody stopped it: kill -CONT {s.pid}, or {RESTART}" if s.stopped else
        f"TorchServe starts a dead worker again within 30 s; if it does not: {RESTART}"),
    Row("describe", WORKER, "answered",
        lambda p, s: s.describe if isinstance(s.describe, str) else "answered",
        source=f"{_MODEL}?customized=true", kit=True, fix=lambda p, s:
        TRY_AGAIN if isinstance(s.describe, Unknown) else f"the worker is stuck: try again, else {RESTART}"),
    _own("archive", judge=judge.archive, fix=lambda p, s:
        f"the archive was built again after the start: {RESTART}" if s.archive_id else
        "the running workers have copies of their own, but nothing starts again: make models"),
    Row("launcher", WORKER, lambda p: "above the worker" if p.instance.launched else "none planned",
        lambda p, s: "none planned" if not p.instance.launched else "above the worker" if s.launcher else
        "none: the worker has lost it, or never had one",
        source="/proc/PID/stat (parent)", fix=f"TorchServe does not see such a worker end: {RESTART}"),
    Row("CPU affinity", WORKER, judge=judge.affinity, source="/proc/PID/task/*/status", fix=_PINNING),
    Row("memory policy", WORKER, judge=judge.memory, source="/proc/PID/numa_maps",
        fix=f"numactl needs set_mempolicy: give the container CAP_SYS_NICE, then {RESTART}"),
    Row("no throttling", WORKER, judge=judge.throttling, source="throttled time in cpu.stat",
        fix="fewer workers or cores (make serve WORKERS=…), or a larger CPU quota; others may share it"),
    Row("allocator", WORKER, judge=judge.allocator, describe=True,
        source="/proc/PID/maps, describe (dladdr of malloc)",
        fix=f"{_LINK}; or another library's malloc comes first: see LD_PRELOAD in the environment"),
    Row("allocator options", WORKER, judge=judge.allocator_options, source="describe (mallctl opt.*)",
        fix=f"MALLOC_CONF did not reach jemalloc, or it knows no such option: {RESTART}", describe=True),
    Row("OpenMP", WORKER, judge=judge.openmp, describe=True,
        source="/proc/PID/maps, describe (dladdr of GOMP_parallel)",
        fix=f"{_LINK}; libiomp5.so comes with the package intel-openmp: make setup"),
    Row("threads", WORKER, judge=judge.threads, source="/proc/PID/environ, describe", describe=True,
        fix=f"OMP_NUM_THREADS is set by the launcher, the others by the handler: {RESTART}"),
    Row("environment", WORKER, judge=judge.environment, source="/proc/PID/environ",
        fix=f"something between the plan and the worker changed them: {RESTART}"),
    _own("limits", _OPTIONS, judge.limits),
    _own("precision", _OPTIONS, lambda p, s: (p.model.precision, str(judge.get(s, "precision")), None)),
    _own("backend", _OPTIONS, judge.backend),
    _own("load steps", _LOAD, judge.steps),
    _own("channels_last", _LOAD, judge.channels_last),
    _own("packing", _LOAD, judge.packing),
    _own("graph", _LOAD, judge.graph),
    _own("self-check", "serve with PRECISION=fp32, or check the weights", judge.self_check),
)
"""First what makes the rest meaningless, then from the machine inwards to the model."""
# fmt: on
