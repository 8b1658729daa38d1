"""The command line: check-plan, start, status, verify, curl, stop, clean."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from config.__main__ import build_parser, read_and_plan
from config.errors import ConfigError
from config.plan import Plan, read_plan
from server import verify
from server.archives import check_chosen, read_archives, write_samples
from server.call import make_client, render_calls
from server.clean import clean
from server.errors import ServerError
from server.health import Health, keep_health
from server.launch import confine
from server.processes import GRACEFUL_SECONDS
from server.progress import Progress
from server.ready import StartFailed
from server.rundir import RunDir
from server.running import check_may_plan, hold_lock, is_running
from server.start import Interrupted, catch_signals, start, stay
from server.status import render_failure, render_status
from server.stop import stop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 good, 1 failed or different, 2 wrong usage."""
    options = _make_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # In the foreground the process stays: lines held back in a pipe's buffer would never be seen.
        sys.stdout.reconfigure(line_buffering=True)
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
    except Interrupted as signalled:
        print(f"interrupted by {signalled}", file=sys.stderr)
        return signalled.exit_code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m server", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "refuse values that differ from those of a running server (arguments of python -m config)"
    commands.add_parser(
        "check-plan", help=text, description=text, parents=[build_parser()], conflict_handler="resolve"
    )
    helps = {
        "start": "start TorchServe, wait until every model answers right, verify",
        "status": "what runs",
        "verify": "compare the plan with the live workers",
        "curl": "print lines that call the models",
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
            "--graceful-seconds",
            type=float,
            default=GRACEFUL_SECONDS,
            help=f"with --foreground: time to end after a signal (default {GRACEFUL_SECONDS:g})",
        )
        command.add_argument("--hide-token", action="store_true", help="print $TOKEN in its place")
    if name in ("start", "verify"):
        command.add_argument("--format", default="text", choices=("text", "json"), help="of the comparison")


def _find_model_store(options: argparse.Namespace, plan: Plan) -> Path:
    return Path(options.model_store or plan.inputs.model_store).resolve()


def _check_plan(run: RunDir, options: argparse.Namespace) -> int:
    check_may_plan(run, lambda: read_and_plan(options))
    return 0


def _start(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    store = _find_model_store(options, plan)
    with catch_signals(), contextlib.ExitStack() as at_end:
        progress = Progress(stream=sys.stdout)
        with hold_lock(run):
            archives = read_archives(plan, store)
            if is_running(run, archives, progress.report):
                return _stay_out(run, options)
            if options.foreground:
                check_chosen(archives.values())
                confine(plan)  # what stays beside the server counts against a quota too
                at_end.callback(_end, run, options.graceful_seconds)
            try:
                process = start(run, store, progress.report, progress.tick)
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
    code = _verify(run, options)
    return _curl(run, options) or code


def _stay(process: subprocess.Popen[bytes], run: RunDir, options: argparse.Namespace) -> int:
    """Stay until the end, and not at all with a server that is not what was asked for."""
    try:
        code = _introduce(run, options)
        if code == 0:
            with keep_health(_make_health(run, options)):
                return stay(process, run, print)
        print("error: the server is not as asked for (see above): FOREGROUND=1 ends it", file=sys.stderr)
        return code
    except Interrupted as signalled:
        print(signalled)
        return 0


def _make_health(run: RunDir, options: argparse.Namespace) -> Health:
    plan = read_plan(run.plan)
    archives = read_archives(plan, _find_model_store(options, plan))
    return Health(plan=plan, archives=archives, client=make_client(plan, run), run=run)


def _end(run: RunDir, graceful_seconds: float = GRACEFUL_SECONDS) -> None:
    stopped = stop(run, graceful_seconds)
    if stopped.ended:
        print(stopped.describe())


def _status(run: RunDir, options: argparse.Namespace) -> int:
    text, serving = render_status(run, Path(options.model_store) if options.model_store else None)
    print(text)
    return 0 if serving else 1


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


def _curl(run: RunDir, options: argparse.Namespace) -> int:
    plan = read_plan(run.plan)
    archives = read_archives(plan, _find_model_store(options, plan))
    samples = write_samples(archives, run.samples)
    hide = getattr(options, "hide_token", False)
    print(render_calls(plan, archives, samples, make_client(plan, run), hide_token=hide))
    return 0


_COMMANDS: dict[str, Callable[[RunDir, argparse.Namespace], int]] = {
    "check-plan": _check_plan,
    "start": _start,
    "status": _status,
    "verify": _verify,
    "curl": _curl,
    "stop": _stop,
    "clean": _clean,
}
