"""Checks of TorchServe and its models as a whole: plan, processes, addresses, sizes, batches, time-outs."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from config.files import render_id_list
from config.plan import ModelPlan, Plan
from config.render import render_properties
from config.rules.network import SOCKETS
from handlers.sums import render_changes
from server.ports import list_ports
from server.verify.evidence import (
    RECONFIGURE,
    RESTART,
    Finding,
    FrontendEvidence,
    ModelEvidence,
    ServerEvidence,
    cannot_check,
    compare,
)
from server.verify.placement import find_rank, render_cpus, union_of_cpus
from server.verify.probes import GRPC, LARGER_REQUEST, LARGEST_REQUEST, REGISTER, render_address


def check_workers(plan: Plan, seen: ModelEvidence) -> Finding:
    """As many workers are ready as planned."""
    asked = f"{plan.models[seen.name].workers.value} ready"
    got = seen.problem or (
        f"{seen.ready} ready" + (f" of {seen.listed}" if seen.listed != seen.ready else "")
    )
    cure = f"a worker died or was scaled: see make status; TorchServe restarts it within 30 s, else {RESTART}"
    return compare("workers", asked, got, evidence="GET /models/<name>", cure=cure)


def check_ranks(plan: Plan, seen: ModelEvidence) -> Finding:
    """Each rank's CPUs have exactly one worker of the model."""
    if not plan.pinned:
        return compare("ranks", "not pinned", "not pinned", evidence="the plan", cure="")
    cpus = plan.layout.worker_cpus.value
    ranks = Counter(
        rank
        for worker in seen.workers
        if (rank := find_rank(plan, worker)) is not None and union_of_cpus(worker) == set(cpus[rank])
    )
    asked = ", ".join(f"{rank} on CPU {render_id_list(cpus[rank])}" for rank in range(len(cpus)))
    found = [f"{rank} on CPU {render_id_list(cpus[rank])}" for rank in sorted(ranks.elements())]
    got = ", ".join(found) or "none"
    cure = f"workers share cores while others idle (a scale call changes ranks): {RESTART}"
    return compare("ranks", asked, got, evidence="launcher's --rank and thread affinity", cure=cure)


def check_files(_plan: Plan, seen: ModelEvidence) -> Finding:
    """The files that TorchServe unpacked, which the workers load, are those that were built."""
    changed = seen.changed_files
    got = "not unpacked" if changed is None else render_changes(list(changed)) or "as built"
    cure = f"they changed after the start: {RESTART} unpacks the archive anew"
    return compare("archive files", "as built", got, evidence="RUN_DIR/tmp/models, SHA256SUMS", cure=cure)


def check_running(_plan: Plan, seen: ServerEvidence) -> Finding:
    """TorchServe runs."""
    got = "running" if seen.running else "not running"
    return compare("TorchServe", "running", got, evidence="/proc/*/environ (CPU_KIT_RUN)", cure="make serve")


def check_plan(_plan: Plan, seen: ServerEvidence) -> Finding:
    """The server was started from this very plan.json."""
    if not seen.running or seen.plan_unchanged is None:
        reason = "server.json does not say what it was started from"
        cure = "make stop && make serve writes it again"
        return cannot_check("plan", "as started", reason, evidence="server.json", cure=cure)
    got = "as started" if seen.plan_unchanged else "plan.json has changed since"
    cure = f"the running server follows the old plan: {RESTART}"
    return compare("plan", "as started", got, evidence="server.json, plan.json", cure=cure)


def check_server_cpus(plan: Plan, seen: ServerEvidence) -> Finding:
    """TorchServe itself stays on the CPUs it is confined to; beyond them a quota would be overdrawn. Else it
    may use all there are."""
    planned = plan.layout.server_cpus.value
    got = render_cpus(seen.server_cpus) if seen.server_cpus else "cannot be read"
    everywhere = not seen.running or {*plan.machine["cpus_allowed"]} <= {*(seen.server_cpus or ())}
    if not planned and everywhere:
        got = "not confined"
    return compare(
        "server's CPUs",
        render_cpus(planned) if planned else "not confined",
        got,
        evidence="/proc/PID/task/*/status of java",
        cure=RESTART,
    )


def check_strays(_plan: Plan, seen: ServerEvidence) -> Finding:
    """No worker process runs that TorchServe has lost; one would keep its cores and memory."""
    if seen.stray_workers is None:
        reason = "TorchServe does not say which workers it knows"
        return cannot_check("lost workers", "none", reason, evidence="GET /models/<name>", cure="see workers")
    got = ", ".join(f"pid {pid}" for pid in seen.stray_workers) or "none"
    pids = " ".join(str(pid) for pid in seen.stray_workers)
    cure = f"TorchServe has started others in their place: kill -9 {pids}, or {RESTART}"
    return compare("lost workers", "none", got, evidence="/proc/*/environ (CPU_KIT_RUN)", cure=cure)


# The JVM reads them besides its command line (the java launcher's documentation); the last one wins over it.
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_TORCHSERVES_RESPONSE_BYTES = 6553500


def check_properties(plan: Plan, seen: FrontendEvidence) -> Finding:
    """config.properties is what the plan renders: when TorchServe read it, and now."""
    planned = hashlib.sha256(render_properties(plan).encode("utf-8")).hexdigest()
    evidence = "digests: of plan.json's rendering, in server.json, of the file"
    asked = "as planned"
    if seen.properties_at_start is None:
        reason = "server.json does not say what TorchServe read"
        return cannot_check("config.properties", asked, reason, evidence=evidence, cure=RESTART)
    wrong = []
    if seen.properties_at_start != planned:
        wrong.append("not the plan's when TorchServe read it")
    if seen.properties_now != seen.properties_at_start:
        wrong.append("gone" if seen.properties_now is None else "changed since the start")
    return compare("config.properties", asked, "; ".join(wrong) or asked, evidence=evidence, cure=RECONFIGURE)


def check_jvm_flags(plan: Plan, seen: FrontendEvidence) -> Finding:
    """The JVM has the plan's flags and no others, from its command line or its environment."""
    asked = str(plan.java.vmargs.value).split()
    live = seen.flags
    evidence = f"/proc/PID/cmdline and environ ({', '.join(JAVA_VARIABLES)}) of java"
    cure = f"{RECONFIGURE}; and unset {', '.join(JAVA_VARIABLES)}"
    if seen.environment is None:
        return compare(
            "JVM flags", " ".join(asked), "cannot be read", evidence=evidence, cure="run as its user"
        )
    beside = {name: seen.environment[name] for name in JAVA_VARIABLES if seen.environment.get(name)}
    got = " ".join(asked) if sorted(live) == sorted(asked) else " ".join(live) or "none"
    got = "; ".join([got, *(f"{name}={value}" for name, value in beside.items())])
    return compare("JVM flags", " ".join(asked), got, evidence=evidence, cure=cure)


def check_allowed_urls(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Archives come from where the plan says; a call cannot try it while the model API is off."""
    asked = str(plan.properties["allowed_urls"].value)
    # A Java list of what stood between the commas.
    return _compare_configured("allowed_urls", "Allowed Urls", asked, f"[{asked.replace(',', ', ')}]", seen)


def check_installing(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Whether an archive may install packages of its own."""
    asked = str(plan.properties["install_py_dep_per_model"].value)
    name = "Custom python dependency for model allowed"
    return _compare_configured("archives install", name, asked, asked, seen)


def check_response_size(plan: Plan, seen: FrontendEvidence) -> Finding:
    """The largest answer a worker may give."""
    setting = plan.properties.get("max_response_size")
    asked = str(setting.value if setting else _TORCHSERVES_RESPONSE_BYTES)
    return _compare_configured("response size", "Maximum Response Size", asked, asked, seen)


def _compare_configured(item: str, name: str, asked: str, printed: str, seen: FrontendEvidence) -> Finding:
    evidence = f"`{name}`, as TorchServe logged at its start (server.json)"
    if not seen.configuration:
        reason = "server.json does not say what TorchServe logged"
        return cannot_check(item, asked, reason, evidence=evidence, cure=RESTART)
    live = seen.configuration.get(name, "not logged")
    got = asked if live == printed else live
    return compare(item, asked, got, evidence=evidence, cure=RECONFIGURE)


# Not a word about the question: there was no room for it.
_BUSY = ("429", "503")
_CONTINUE, _TOO_LARGE = "100", "413"
_UNIMPLEMENTED = "12"
_TORCHSERVE = "TorchServe"


def check_addresses(plan: Plan, seen: FrontendEvidence) -> Finding:
    """TorchServe listens on TCP where the plan says and nowhere else."""
    asked = sorted(render_address(host, port) for host, port in list_ports(plan.properties).values())
    found = seen.listening
    evidence = "/proc/PID/fd and /proc/PID/net/tcp{,6} of every process of the server"
    if found is None:
        return compare(
            "addresses", ", ".join(asked), "cannot be read", evidence=evidence, cure="run as its user"
        )
    got = [at if role == _TORCHSERVE else f"{at} ({role})" for at, role in found.items()]
    return compare("addresses", ", ".join(asked), ", ".join(sorted(got)), evidence=evidence, cure=RECONFIGURE)


def check_sockets(_: Plan, seen: FrontendEvidence) -> Finding:
    """REST is on Unix sockets that no other user reaches: predictions need no token there."""
    asked = f"{', '.join(SOCKETS)} in a folder of mode 700"
    got = f"{', '.join(seen.sockets) or 'none'} in a folder of mode {seen.sockets_mode:o}"
    got += "" if seen.sockets_own else " of another user"
    evidence = "the temporary folder of the instance"
    return compare("sockets", asked, got, evidence=evidence, cure=f"chmod 700 that folder, or {RESTART}")


def check_grpc(_: Plan, seen: FrontendEvidence) -> Finding:
    """gRPC, which anybody on this machine can call, rejects every call."""
    answers = {name: seen.answers.get(name, "not asked") for name in GRPC}
    passed = [f"{name}: status {answer}" for name, answer in answers.items() if answer != _UNIMPLEMENTED]
    got = "; ".join(passed) or "rejected"
    evidence = "a call of each without a token: grpc-status 12 is UNIMPLEMENTED"
    return compare("gRPC", "rejected", got, evidence=evidence, cure=f"make setup && {RESTART}")


def check_model_api(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Nobody registers models in the running server, unless that is planned."""
    enabled = str(plan.properties["enable_model_api"].value).lower() == "true"
    answer = seen.answers.get(REGISTER, "not asked")
    evidence = f"POST /models: {answer}"
    asked = "taken" if enabled else "refused"
    if answer in _BUSY:
        return cannot_check("model API", asked, f"answered {answer}", evidence=evidence, cure="try again")
    got = {"403": "refused", "405": "refused", "400": "taken"}.get(answer, answer)
    return compare("model API", asked, got, evidence=evidence, cure=RECONFIGURE)


def check_request_size(plan: Plan, seen: FrontendEvidence) -> Finding:
    """A request as large as planned is let in, one byte more is too large."""
    size = plan.properties["max_request_size"].value
    answers = {name: seen.answers.get(name, "not asked") for name in (LARGEST_REQUEST, LARGER_REQUEST)}
    evidence = "POST with Content-Length and Expect: 100-continue, no body"
    asked = _render_sizes(size, _CONTINUE, _TOO_LARGE)
    if busy := "; ".join(f"{name}: {answer}" for name, answer in answers.items() if answer in _BUSY):
        return cannot_check("request size", asked, busy, evidence=evidence, cure="try again")
    got = _render_sizes(size, *answers.values())
    return compare("request size", asked, got, evidence=evidence, cure=RECONFIGURE)


def _render_sizes(size: object, answer: str, answer_to_more: str) -> str:
    return f"{size} bytes: {answer}; one more: {answer_to_more}"


_EVIDENCE = "GET /models/<name>"
_UNKNOWN = "unknown: TorchServe does not describe the model"
_CURE = (
    "config.properties, or a YAML file in the archive, says something else than the plan: "
    "make plan && make stop && make serve"
)


def check_batch(plan: Plan, seen: ModelEvidence) -> Finding:
    """Requests of one batch, and how long it waits to fill."""
    model = plan.models[seen.name]
    asked = render_batch(model.batch_size.value, model.max_batch_delay_ms.value)
    live = render_batch(seen.settings.get("batchSize"), seen.settings.get("maxBatchDelay"))
    return compare("batch", asked, live if seen.settings else _UNKNOWN, evidence=_EVIDENCE, cure=_CURE)


def render_batch(size: Any, delay_ms: Any) -> str:
    """For a person."""
    return f"{size} within {delay_ms} ms"


def check_queue(plan: Plan, seen: ModelEvidence) -> Finding:
    """Requests that may wait: of several looks at a busy queue, one with the planned size is proof."""
    asked = int(plan.models[seen.name].queue_size.value)
    got = asked if asked in seen.queue_sizes else max(seen.queue_sizes, default=0)
    return compare(
        "queue",
        f"{asked} requests",
        f"{got} requests" if seen.queue_sizes else _UNKNOWN,
        evidence=f"{_EVIDENCE}: jobQueueStatus",
        cure=_CURE,
    )


def check_timeouts(plan: Plan, seen: ModelEvidence) -> Finding:
    """When TorchServe gives a worker up that does not answer, or does not load."""
    live = render_timeouts(seen.settings.get("responseTimeout"), seen.settings.get("startupTimeout"))
    asked = plan_timeouts(plan.models[seen.name])
    return compare("time-outs", asked, live if seen.settings else _UNKNOWN, evidence=_EVIDENCE, cure=_CURE)


def plan_timeouts(model: ModelPlan) -> str:
    """As render_timeouts writes them."""
    return render_timeouts(model.response_timeout_s.value, model.startup_timeout_s.value)


def render_timeouts(response_s: Any, startup_s: Any) -> str:
    """For a person."""
    return f"response {response_s} s, startup {startup_s} s"
