"""From settings to a server that is ready, in one process: build, measure, plan, write, start, verify."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.folders import check_run_folder, claim_run_folder, hold_lock
from config.plan import Plan, read_plan
from config.planning import NO_PROFILE, make_plan, make_profile_job, read_facts, read_profile
from config.planning.backends import DEFAULT_PRECISION, check_cpu
from config.render import describe_plan, summarize, write_plan_files
from config.settings import FIELDS, Settings, about
from config.terminal import say
from config.topology import read_topology
from config.tuned import judge_tuned
from handlers.backends.catalogue import SETS, choose_set
from server.archives import check_chosen, read_archives, read_archives_left
from server.call import render_calls
from server.command import FAILED, Call, end, print_comparison
from server.errors import ServerError
from server.launch import PRIVATE_UMASK, confine, list_server_cpus
from server.ports import check_ports_free
from server.processes import GRACEFUL_SECONDS, find_marked
from server.ready import StartFailed
from server.reload import check_reloadable, choose_generation, reload
from server.rundir import RunDir
from server.running import is_running
from server.start import Interrupted, catch_signals, count_told, start, stay
from server.status import render_failure
from server.stop import stop

CHECKOUT = Path(__file__).resolve().parent.parent
FIXED = ("MODELS", "PORT", "HOST", "TLS_CERT", "TLS_KEY")
"""What the running HAProxy has for good."""


def serve(call: Call) -> int:
    """The lock of RUN_DIR is held from planning to the end of the start."""
    check_serve(call)

    def run(at_end: contextlib.ExitStack) -> int:
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

    return _run_prepared(run)


def start_plan(call: Call) -> int:
    """The plan that is there."""
    plan = read_plan(call.run.plan)
    check_run_folder(call.run.path)

    def run(at_end: contextlib.ExitStack) -> int:
        with hold_lock(call.run.path):
            if is_running(call.run, plan, read_archives(plan), say):
                return _stay_out(plan, call)
            process = _start(plan, call, at_end)
        return _stay(process, plan, call)

    return _run_prepared(run)


def print_plan(call: Call) -> int:
    """All of it with reasons; nothing is written or built."""
    plan, lines = make_server_plan(call.settings)
    print("\n".join([describe_plan(plan), *lines]))
    return 0


def reload_plan(call: Call) -> int:
    """New archives and a new plan, to which the running server moves."""
    check_reload(call)

    def run(_: contextlib.ExitStack) -> int:
        with hold_lock(call.run.path):
            _build(call)
            now = read_plan(call.run.plan)
            following, lines = make_server_plan(call.settings, choose_generation(now))
            print("".join(f"{line}\n" for line in lines), end="", flush=True)
            return reload(call.run, now, following, say)

    return _run_prepared(run)


def check_serve(call: Call) -> int:
    """What values, machine and what runs can tell: before anything is installed, built or measured."""
    check_run_folder(call.run.path)
    settings, machine = call.settings, read_topology("/")
    for backend in {*settings.backend.values()} or {SETS[choose_set("")][0]}:
        check_cpu(machine, backend, settings.precision or DEFAULT_PRECISION)
    if not find_marked(call.run.path):  # else the ports may be its own
        check_ports_free(
            {"predictions": (settings.host, settings.port), "metrics": ("127.0.0.1", settings.port + 2)}
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
        say(f"an earlier start left {len(processes)} process(es) behind: {stop(call.run).describe()}")
        return None
    if not is_running(call.run, plan, read_archives_left(plan), say):
        return None
    if changed := list_changes(plan.settings, call.settings):
        raise ServerError(
            f"a server with other settings runs from {call.run.path}: other {', '.join(changed)}; "
            "do: make reload, or make stop && make serve"
        )
    return plan


def _run_prepared(body: Callable[[contextlib.ExitStack], int]) -> int:
    """All that is written meanwhile is this user's alone, and a signal ends it in order."""
    before = os.umask(PRIVATE_UMASK)
    try:
        with catch_signals(), contextlib.ExitStack() as at_end:
            return body(at_end)
    except Interrupted as signalled:
        print(f"interrupted by {signalled}", file=sys.stderr)
        return signalled.exit_code
    finally:
        os.umask(before)


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
