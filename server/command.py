"""One command of the command line: what it was given, and what several of them do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from config.commands import COMMANDS, list_read, take_own
from config.folders import write_text_atomically
from config.plan import Plan
from config.settings import Settings, read_settings
from server.rundir import RunDir
from server.state import tell_time

# What only some commands need is imported by them: `make status` must be quick.

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
"""Exit codes; the last is what shells expect of a program that Ctrl-C ended."""
OF_START = ("RUN_DIR", "FOREGROUND", "VERBOSE")
FLAGS = {
    "--hide-token": "the lines that call are pasted elsewhere: they name $TOKEN, not the file that has it",
    "--built": "serve and reload take archives and batch profile as they are, as in a container",
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One command with what it was given."""

    command: str
    settings: Settings
    arguments: tuple[str, ...]
    """NAME=VALUE, for programs that read the same."""
    hide_token: bool = False
    built: bool = False

    @property
    def run(self) -> RunDir:
        return RunDir.at(self.settings.run_dir)


def read_call(command: str, rest: Sequence[str]) -> Call:
    """Environment and kit.toml count for what the command reads; `supervise` goes by its arguments alone."""
    target = command.removeprefix("check-")
    arguments = take_own([word for word in rest if word not in FLAGS], target)
    names = list_read(target) if target in COMMANDS else OF_START if command == "start" else ()
    return Call(
        command=command, settings=read_settings(arguments, names), arguments=tuple(arguments),
        hide_token="--hide-token" in rest, built="--built" in rest,
    )  # fmt: skip


def print_comparison(plan: Plan, call: Call) -> int:
    """What verify finds; 1 where anything differs."""
    from server.verify import render, verify

    result = verify(plan, call.run)
    with contextlib.suppress(OSError):  # for the metrics page; who may only look leaves it as it is
        found = {"at": tell_time(), "items": result.by_row()}
        write_text_atomically(call.run.verified, json.dumps(found) + "\n", mode=0o600)
    print(render(result, plan, call.settings.format, call.settings.verbose), flush=True)
    return 0 if result.good else FAILED


def end(run: RunDir) -> None:
    """Stop the server, and tell what its supervisor says meanwhile: how many requests got no response."""
    from server.start import count_told, follow
    from server.stop import stop

    with contextlib.ExitStack() as heard:
        if told := count_told(run.supervisor_log):
            heard.enter_context(follow(run.supervisor_log, print, told=told))
        stopped = stop(run)
    if stopped.ended:
        print(stopped.describe())
