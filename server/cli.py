"""The command line: check-ports, check-plan, check-reload, start, supervise, reload, status, stop …"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from config.__main__ import build_parser, list_models, parse_inputs, plan_and_say
from config.errors import ConfigError
from config.folders import check_run_folder, explain_os_error, hold_lock
from config.plan import Plan, read_plan
from config.rules.network import plan_proxy_addresses
from config.terminal import print_in_any_locale, say
from server import verify
from server.archives import check_chosen, find_samples, read_archives, read_archives_left, write_samples
from server.call import make_client, render_calls, write_authorization
from server.errors import ServerError
from server.keeper import keep_instance
from server.launch import PRIVATE_UMASK, confine
from server.ports import check_ports_free
from server.processes import GRACEFUL_SECONDS, find_marked
from server.ready import StartFailed
from server.reload import check_reloadable, check_same_door, choose_generation, reload
from server.rundir import RunDir
from server.running import check_is_plan, check_may_plan, is_running
from server.start import Interrupted, catch_signals, count_told, follow, start, stay
from server.status import render_failure, render_status
from server.stop import clean, stop
from server.supervisor.command import supervise

INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 good, 1 failed or different, 2 wrong usage."""
    print_in_any_locale()
    options = _make_parser().parse_args(arguments)
    run = RunDir.at(options.run_dir)
    try:
        code = _COMMANDS[options.command](run, options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left must not raise again
        return 1
    except (ServerError, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:  # another user's folder, a full disk: nothing a traceback would explain
        print(f"error: {explain_os_error(problem)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted: `{options.command}` was not finished; run it again", file=sys.stderr)
        return INTERRUPTED
    except Interrupted as signalled:
        print(f"interrupted by {signalled}", file=sys.stderr)
        return signalled.exit_code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m server", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    planning = {
        "check-ports": "refuse ports that others listen on",
        "check-plan": "refuse values that differ from those of a running server",
        "check-reload": "refuse values that a reload cannot change",
    }
    for name, text in planning.items():
        text = f"{text} (arguments of python -m config)"
        commands.add_parser(
            name, help=text, description=text, parents=[build_parser()], conflict_handler="resolve"
        )
    helps = {
        "start": "start the server, wait until every model answers right, verify",
        "supervise": "own a server (start runs it)",
        "keep": "own one instance (its supervisor runs it)",
        "reload": "move to new archives or another plan without losing a request",
        "status": "what runs, its ports, and lines that call the models",
        "verify": "compare the plan with the live workers",
        "stop": "end every process of the run directory",
        "clean": "stop, then delete what the kit put into the run directory",
    }
    for name, text in helps.items():
        _add_options(commands.add_parser(name, help=text, description=text), name)
    return parser


def _add_options(command: argparse.ArgumentParser, name: str) -> None:
    command.add_argument("--run-dir", default="run", help="folder with plan.json (default: run)")
    command.add_argument("--model-store", default=None, help="folder with the archives (default: the plan's)")
    if name == "start":
        command.add_argument(
            "--foreground",
            action="store_true",
            help="stay; a signal stops the server, and so does any difference that verify finds",
        )
        command.add_argument(
            "asked", nargs="*", metavar="-- …", help="arguments of python -m config: refuse any other plan"
        )
    if name == "reload":
        command.add_argument("asked", nargs="*", metavar="-- …", help="arguments of python -m config")
    if name in ("start", "status"):
        text = "the lines are pasted elsewhere: name $TOKEN, not the file that has it"
        command.add_argument("--hide-token", action="store_true", help=text)
    if name == "verify":
        command.add_argument("--format", default="text", choices=("text", "json"), help="of the comparison")


def _find_model_store(options: argparse.Namespace, plan: Plan) -> Path:
    return Path(options.model_store or plan.inputs.model_store).resolve()


def _check_ports(run: RunDir, options: argparse.Namespace) -> int:
    """What PORT and RUN_DIR alone can tell, before anything long runs."""
    if not find_marked(run.path):  # else the ports may be its own; check-plan and start judge that
        check_ports_free(plan_proxy_addresses(parse_inputs(options, ())))
    return 0


def _check_plan(run: RunDir, options: argparse.Namespace) -> int:
    check_may_plan(run, lambda: plan_and_say(options)[0].plan)
    return 0


def _check_reload(run: RunDir, options: argparse.Namespace) -> int:
    """Before anything is installed or built for it."""
    plan = read_plan(run.plan)
    check_reloadable(run)
    check_same_door(plan.inputs, parse_inputs(options, list_models(options)))
    return 0


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """All that is written meanwhile is this user's alone."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def _start(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    check_run_folder(run.path)
    store = _find_model_store(options, plan)
    with catch_signals(), _private_files(), contextlib.ExitStack() as at_end:
        with hold_lock(run.path):
            if options.asked:
                check_is_plan(run, plan_and_say(build_parser().parse_args(options.asked))[0].plan)
            archives = read_archives(plan, store)
            if is_running(run, archives, say):
                return _stay_out(run, options)
            if options.foreground:
                check_chosen(archives.values())
                confine(plan)  # what stays beside the server counts against a quota too
                at_end.callback(_end, run)
            try:
                process = start(run, store, say)
            except StartFailed as problem:
                print("\n".join(["start failed:", *render_failure(problem.failure)]), file=sys.stderr)
                return 1
        return _stay(process, run, options) if options.foreground else _introduce(run, options)


def _stay_out(run: RunDir, options: argparse.Namespace) -> int:
    """The server that is asked for runs already."""
    if options.foreground:  # to leave at once would look like a server that ended
        raise ServerError(
            f"a server already runs from {run.path} in the background; for FOREGROUND=1 run `make stop` first"
        )
    print("already running with this plan")
    return _introduce(run, options)


def _introduce(run: RunDir, options: argparse.Namespace) -> int:
    """What a person sees of a server that is ready."""
    code = _sum_up(run, options)
    return _print_calls(run, options) or code


def _sum_up(run: RunDir, options: argparse.Namespace) -> int:
    """A line per model and what differs; the table of all checks is `make verify`'s."""
    print("looking at each setting in the live workers", flush=True)
    plan = read_plan(run.plan)
    result = verify.verify(plan, run, _find_model_store(options, plan))
    print(verify.render_summary(plan, result))
    print(f"# every check as a table: {'kit verify' if options.hide_token else 'make verify'}\n", flush=True)
    return 0 if result.good else 1


def _stay(process: subprocess.Popen[bytes], run: RunDir, options: argparse.Namespace) -> int:
    """Stay until the end, and not at all with a server that is not what was asked for."""
    told = count_told(run.supervisor_log)
    try:
        code = _introduce(run, options)
        if code == 0:
            return stay(process, run, print, told)
        print("error: the server is not as asked for (see above): FOREGROUND=1 ends it", file=sys.stderr)
        return code
    except Interrupted as signalled:
        limit = f"{GRACEFUL_SECONDS:g} s"
        print(f"{signalled}: stopping; accepted requests are answered first, for at most {limit}")
        return 0


def _end(run: RunDir) -> None:
    with contextlib.ExitStack() as heard:
        if told := count_told(run.supervisor_log):  # it says how many requests were left unanswered
            heard.enter_context(follow(run.supervisor_log, print, told=told))
        stopped = stop(run)
    if stopped.ended:
        print(stopped.describe())


def _supervise(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    with _private_files():
        return supervise(run, _find_model_store(options, plan), say)


def _keep(run: RunDir, options: argparse.Namespace) -> int:
    with catch_signals(), _private_files():
        return keep_instance(run, _find_model_store(options, read_plan(run.plan)))


def _reload(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    check_reloadable(run)
    asked = build_parser().parse_args([*options.asked, "--generation", choose_generation(plan)])
    with _private_files(), hold_lock(run.path):
        return reload(run, plan, plan_and_say(asked)[0], say)


def _status(run: RunDir, options: argparse.Namespace) -> int:
    text, serving = render_status(run, Path(options.model_store) if options.model_store else None)
    print(text)
    if not serving:
        return 1
    print(flush=True)
    return _print_calls(run, options)


def _verify(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    result = verify.verify(plan, run, _find_model_store(options, plan))
    print(verify.render(result, options.format))
    return 0 if result.good else 1


def _stop(run: RunDir, _options: argparse.Namespace) -> int:
    print(stop(run).describe())
    return 0


def _clean(run: RunDir, _options: argparse.Namespace) -> int:
    _end(run)
    print(clean(run))
    return 0


def _print_calls(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    archives = read_archives_left(plan, _find_model_store(options, plan))
    samples = {**find_samples(plan, run.samples), **write_samples(archives, run.samples)}
    client = make_client(plan, run)
    authorization = write_authorization(run, client)
    print(render_calls(plan, archives, samples, client, authorization, elsewhere=options.hide_token))
    return 0


_COMMANDS: dict[str, Callable[[RunDir, argparse.Namespace], int]] = {
    "check-ports": _check_ports,
    "check-plan": _check_plan,
    "check-reload": _check_reload,
    "start": _start,
    "supervise": _supervise,
    "keep": _keep,
    "reload": _reload,
    "status": _status,
    "verify": _verify,
    "stop": _stop,
    "clean": _clean,
}
