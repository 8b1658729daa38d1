"""From settings to a server that is ready, in one process: build, measure, plan, write, start, verify; and to
another set of its instances (`make reload`)."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError
from config.folders import check_run_folder, claim_run_folder, hold_lock
from config.plan import Plan, read_plan
from config.planning import NO_PROFILE, make_plan, make_profile_job, read_facts, read_profile
from config.planning.backends import DEFAULT_PRECISION, check_cpu
from config.planning.proxy import find_metrics_address
from config.proxy import GENERATIONS, render_address
from config.render import describe_plan, summarize, write_next, write_plan_files
from config.settings import FIELDS, Settings, about
from config.terminal import Report, say
from config.topology import read_topology
from config.tuned import judge_tuned
from handlers.backends.catalogue import SETS, choose_set
from server.api import UNIX, Connection
from server.archives import check_chosen, read_archives, read_archives_left
from server.call import render_calls
from server.command import FAILED, Call, end, print_comparison
from server.errors import ServerError
from server.launch import PRIVATE_UMASK, confine, list_server_cpus
from server.ports import check_ports_free
from server.processes import GRACEFUL_SECONDS, Process, find_marked
from server.ready import StartFailed
from server.rundir import RunDir
from server.start import Interrupted, catch_signals, count_told, follow, start, stay
from server.state import Phase, digest_plan, identify_archives, read_record, read_state
from server.status import render_failure
from server.stop import stop
from server.supervisor.reload import DONE

if TYPE_CHECKING:
    from handlers.definition import Packed

CHECKOUT = Path(__file__).resolve().parent.parent
FIXED = ("MODELS", "PORT", "HOST", "METRICS", "CORS_ORIGIN", "TLS_CERT", "TLS_KEY")
"""What the running HAProxy has for good: it listens, and asks by these names."""
POLL_S = 0.2
TIMEOUT_S = 5.0


def _prepared(command: Callable[[Call, contextlib.ExitStack], int]) -> Callable[[Call], int]:
    """All that is written meanwhile is this user's alone, and a signal ends it in order."""

    def run(call: Call) -> int:
        before = os.umask(PRIVATE_UMASK)
        try:
            with catch_signals(), contextlib.ExitStack() as at_end:
                return command(call, at_end)
        except Interrupted as signalled:
            print(f"interrupted by {signalled}", file=sys.stderr)
            return signalled.exit_code
        finally:
            os.umask(before)

    return run


@_prepared
def serve(call: Call, at_end: contextlib.ExitStack) -> int:
    """The lock of RUN_DIR is held from planning to the end of the start."""
    check_serve(call)
    claim_run_folder(call.run.path)
    with hold_lock(call.run.path):
        if plan := find_running(call):
            return _stay_out(plan, call)
        _build(call)
        plan, lines = make_server_plan(call.settings, measure=not call.built)
        write_plan_files(plan)
        print(*(f"{summarize(plan)} → {call.run.plan}", *lines), sep="\n", flush=True)
        process = _start(plan, call, at_end)
    return _stay(process, plan, call)


@_prepared
def start_plan(call: Call, at_end: contextlib.ExitStack) -> int:
    """The plan that is there."""
    plan = read_plan(call.run.plan)
    check_run_folder(call.run.path)
    with hold_lock(call.run.path):
        if is_running(call.run, plan, read_archives(plan)):
            return _stay_out(plan, call)
        process = _start(plan, call, at_end)
    return _stay(process, plan, call)


@_prepared
def reload_plan(call: Call, _: contextlib.ExitStack) -> int:
    """New archives and a new plan, to which the running server moves."""
    check_reload(call)
    with hold_lock(call.run.path):
        _build(call)
        now = read_plan(call.run.plan)
        (generation,) = set(GENERATIONS) - {now.generation}
        following, lines = make_server_plan(call.settings, generation)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        return reload(call.run, now, following, say)


def print_plan(call: Call) -> int:
    """All of it with reasons; nothing is written or built."""
    plan, lines = make_server_plan(call.settings)
    print("\n".join([describe_plan(plan), *lines]))
    return 0


def check_serve(call: Call) -> int:
    """What values, machine and what runs can tell: before anything is installed, built or measured."""
    check_run_folder(call.run.path)
    settings, machine = call.settings, read_topology("/")
    for backend in {*settings.backend.values()} or {SETS[choose_set("")][0]}:
        check_cpu(machine, backend, settings.precision or DEFAULT_PRECISION)
    if not find_marked(call.run.path):  # else the ports may be its own
        check_ports_free(
            {"predictions": (settings.host, settings.port), "metrics": find_metrics_address(settings)}
        )
    elif call.command == "check-serve":
        with hold_lock(call.run.path):
            find_running(call)
    return 0


def check_reload(call: Call) -> int:
    """What proxy and supervisor have for good: before anything is installed or built."""
    check_reloadable(call.run)
    plan = read_plan(call.run.plan)
    changed = [name for name in list_changes(plan.settings, call.settings) if name in FIXED]
    if plan.package_set != call.settings.package_set:
        changed.append("the package set of BACKEND")
    if changed:
        do = "leave it as it is, or: make stop && make serve"
        raise ServerError(f"a reload cannot change {', '.join(changed)}; {do}")
    return 0


def make_server_plan(
    settings: Settings, generation: str = "a", *, measure: bool = False
) -> tuple[Plan, list[str]]:
    """By RUN_DIR's batch profile and tuned plan, where they hold; and a line on what became of the tuned one.

    `measure`: the batch profile is taken as far as it is lacking.
    """
    run, facts = RunDir.at(settings.run_dir), read_facts(settings)
    tuned, lines = judge_tuned(run.tuned, facts)
    job = make_profile_job(facts, tuned)
    if measure and job.models:
        words = ("time", "--job", job.to_json(), "--output", str(run.timings))
        _call("models", *words, f"MODEL_STORE={facts.model_store}")
    profile = NO_PROFILE if settings.topology else read_profile(run.timings)
    return make_plan(facts, profile=profile, tuned=tuned, generation=generation), lines


def list_changes(then: Mapping[str, Any], settings: Settings) -> list[str]:
    """Names of settings by which a server would be another than that of the plan with `then` (Plan.settings).

    What it is built from counts where it is given now: else archives stay as they are.
    """
    before, changed = Settings(**then), []
    for name, field in FIELDS.items():
        group, now = about(field)["group"], getattr(settings, field)
        given = now != Settings.model_fields[field].default
        counts = given if group == "building" else group not in ("running", "load", "args")
        if counts and now != getattr(before, field):
            changed.append(name)
    return changed


def find_running(call: Call) -> Plan | None:
    """The plan of the server that runs, of the same settings; ServerError where it has others.

    Call it with the lock held: what an earlier start left behind is ended.
    """
    if not (processes := find_marked(call.run.path)):
        return None
    try:
        plan = read_plan(call.run.plan)
    except ConfigError as problem:
        if any(process.is_supervisor for process in processes):
            raise ServerError(
                f"a server runs from {call.run.path}, but {problem}; do: make stop"
            ) from problem
        _end_left(call.run, processes)
        return None
    if not is_running(call.run, plan, read_archives_left(plan)):
        return None
    if changed := list_changes(plan.settings, call.settings):
        raise ServerError(
            f"a server with other settings runs from {call.run.path}: other {', '.join(changed)}; "
            "do: make reload, or make stop && make serve"
        )
    return plan


def is_running(run: RunDir, plan: Plan, archives: Mapping[str, Packed]) -> bool:
    """Whether a server of this plan and these archives runs, and ServerError when it is another one.

    Call it with the lock held, before the plan is written: what an earlier start left behind is ended.
    """
    if not (processes := find_marked(run.path)):
        return False
    state, why = read_state(run.state), ""
    if not any(process.is_supervisor for process in processes) or (state and state.phase == Phase.STARTING):
        _end_left(run, processes)
        return False
    ids = identify_archives(plan, archives)
    if state is None:
        why = "nothing says from which plan: server.json is missing or damaged"
    elif state.plan_sha256 != digest_plan(plan):
        why = "it has another plan"
    elif rebuilt := [name for name, known in state.archives.items() if ids.get(name) != known]:
        why = f"the archives of {', '.join(rebuilt)} were rebuilt since it was started"
    if why:
        raise ServerError(
            f"a server already runs from {run.path}, and {why}; run `make stop` first, then `make serve`"
        )
    return True


def _end_left(run: RunDir, processes: list[Process]) -> None:
    say(f"an earlier start left {len(processes)} process(es) behind: {stop(run).describe()}")


def check_reloadable(run: RunDir) -> None:
    """ServerError where nothing runs that could be reloaded."""
    if not any(process.is_supervisor for process in find_marked(run.path)):
        raise ServerError(f"no server runs from {run.path}: start one: make serve")


def check_same_proxy(running: Plan, following: Plan) -> None:
    """ServerError for what the running server has for good: FIXED, and the supervisor's environment, from
    which it starts the instances."""

    def list_fixed(plan: Plan) -> dict[str, object]:
        one, models = plan.proxy, " ".join(sorted(plan.models))
        metrics = render_address(one.metrics_host, one.metrics_port)
        values = (models, one.port, one.host, metrics, one.cors_origin, one.tls_cert, one.tls_key)
        return dict(zip((*FIXED, "package set"), (*values, plan.package_set), strict=True))

    now, planned = list_fixed(running), list_fixed(following)
    if changed := [name for name in now if now[name] != planned[name]]:
        was, got = (", ".join(str(fixed[name]) for name in changed) for fixed in (now, planned))
        raise ServerError(
            f"a reload cannot change {', '.join(changed)}: got {got}, running with {was}; leave it as it "
            "is, or: make stop && make serve"
        )


def reload(run: RunDir, plan_now: Plan, plan_next: Plan, report: Report) -> int:
    """Has the supervisor move to another set of instances; 1 when nothing was changed."""
    check_same_proxy(plan_now, plan_next)
    write_next(plan_next)

    def count() -> int:
        record = read_record(run.record)
        return record.reloads if record else 0

    before = count()
    with follow(run.supervisor_log, report, told=count_told(run.supervisor_log)) as read_lines:
        ask_reload(Path(run.proxy_files.supervisor_socket))
        while count() == before:
            time.sleep(POLL_S)
            read_lines()
            check_reloadable(run)
    record = read_record(run.record)
    return 0 if record and record.reload == DONE else 1


def ask_reload(path: Path) -> None:
    """ServerError where the supervisor does not take it."""
    connection = Connection(f"{UNIX}{path}", "", TIMEOUT_S)
    try:
        connection.request("POST", "/reload")
        answer = connection.getresponse()
        said = json.loads(answer.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise ServerError(f"the supervisor does not answer: {path}: {problem}") from problem
    if answer.status != HTTPStatus.ACCEPTED:
        raise ServerError(f"the supervisor rejects the reload: {said.get('rejected')}")


def _build(call: Call) -> None:
    if not call.built:
        _call("models", "build", *call.arguments)


def _call(*words: str) -> None:
    """A program of this environment, whose words are shown; CalledProcessError where it fails."""
    subprocess.run([sys.executable, "-m", *words], cwd=CHECKOUT, check=True)


def _start(plan: Plan, call: Call, at_end: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    """In the foreground, the end of this program is the server's."""
    if call.settings.foreground:
        check_chosen(read_archives(plan).values())
        confine(list_server_cpus(plan))  # what stays beside the server counts against a quota too
        at_end.callback(end, call.run)
    try:
        return start(call.run, plan, say)
    except StartFailed as problem:
        raise ServerError("\n".join(["start failed:", *render_failure(problem.failure)])) from problem


def _stay_out(plan: Plan, call: Call) -> int:
    """The server runs already."""
    if call.settings.foreground:  # to leave at once would look like a server that ended
        raise ServerError(
            f"a server already runs from {call.run.path} in the background; for FOREGROUND=1 "
            "run `make stop` first"
        )
    print("already running with these settings")
    return _introduce(plan, call)


def _introduce(plan: Plan, call: Call) -> int:
    """What a person sees of a server that is ready: what verify finds, and how to call it."""
    print("comparing each setting with the live workers", flush=True)
    code = print_comparison(plan, call)
    print(f"# every row: {'kit' if call.hide_token else 'make'} verify VERBOSE=1\n")
    print(render_calls(plan, call.run, elsewhere=call.hide_token), flush=True)
    return code


def _stay(process: subprocess.Popen[bytes], plan: Plan, call: Call) -> int:
    """In the foreground until the end, and not at all with a server that differs from its plan."""
    if not call.settings.foreground:
        return _introduce(plan, call)
    told = count_told(call.run.supervisor_log)
    try:
        if _introduce(plan, call) == 0:
            return stay(process, call.run, print, told)
        print("error: the server differs from its plan (see above): FOREGROUND=1 ends it", file=sys.stderr)
        return FAILED
    except Interrupted as signalled:
        limit = f"{GRACEFUL_SECONDS:g} s"
        print(f"{signalled}: stopping; accepted requests are answered first, for at most {limit}")
        return 0
