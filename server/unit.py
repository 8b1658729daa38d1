"""Prints a systemd unit that serves what is planned in a run directory (systemd.service(5), systemd.exec(5)).

The plan must be there: the time-outs, the addresses and the folders come from it. Nothing is written but the
allocator's link, which a start makes where it is missing, and which it could not make below ProtectSystem=.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from config.__main__ import build_parser, parse_inputs, split_words
from config.errors import ConfigError
from config.folders import explain_os_error, name_user
from config.plan import Inputs, Plan, read_plan
from config.terminal import print_in_any_locale
from server.errors import ServerError
from server.launch import make_allocator_link
from server.processes import GRACEFUL_SECONDS, KILL_SECONDS, TERMINATE_SECONDS
from server.rundir import RunDir
from server.unit_text import ROOT, Facts, render_unit

CHECKOUT = Path(__file__).resolve().parent.parent
BESIDE_LOADING_S = 180
"""Of a start: what server/ready.py allows on top of the workers' own time-out, and a minute for verify."""
STOP_MARGIN_S = 10
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NO_OTHER_ASKED = frozenset({"generation"})
"""A reload changes it by itself."""


def read_facts(run: RunDir, plan: Plan) -> Facts:
    """From the plan and from who owns the checkout."""
    prefix = Path(plan.inputs.prefix)
    loading_s = max(int(model.startup_timeout_s.value) for model in plan.models.values())
    # The supervisor, then a TorchServe without one, each as long as accepted requests may take (end_all).
    stop_s = 2 * GRACEFUL_SECONDS + TERMINATE_SECONDS + KILL_SECONDS + STOP_MARGIN_S
    return Facts(
        checkout=CHECKOUT,
        run=run.path,
        user=name_owner(CHECKOUT),
        python=prefix / "bin" / "python",
        needed=_list_needed(prefix, plan),
        temporary=run.temporary,
        models=tuple(plan.models),
        supervised=bool(getattr(plan, "instances", ())),
        bind=plan.inputs.bind,
        start_s=loading_s + BESIDE_LOADING_S,
        stop_s=round(stop_s),
        path=_find_path(),
        java_home=os.environ.get("JAVA_HOME", ""),
    )


def name_owner(path: Path) -> str:
    """A user's name, or the number where it has none."""
    uid = path.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _list_needed(prefix: Path, plan: Plan) -> tuple[Path, ...]:
    """With what links lead to: a link's folder may be hidden while its target is not."""
    interpreter = (prefix / "bin" / "python").resolve().parent.parent
    files = [getattr(plan.inputs, name, "") for name in ("token_file", "tls_cert", "tls_key")]
    java = shutil.which("java")
    homes = [str(Path(java).resolve().parent.parent) if java else "", os.environ.get("JAVA_HOME", "")]
    named = [CHECKOUT, prefix, interpreter, *_find_base(prefix), Path(plan.inputs.model_store)]
    both = [
        way for path in (*named, *map(Path, filter(None, files + homes))) for way in (path, path.resolve())
    ]
    return tuple(dict.fromkeys(both))


def _find_base(prefix: Path) -> list[Path]:
    """The interpreter's home as the environment spells it (`home = …/bin`): it may be a link itself."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    pairs = [line.partition("=") for line in lines]
    return [Path(value.strip()).parent for name, _, value in pairs if name.strip() == "home"]


def _find_path() -> str:
    java = shutil.which("java")
    folders = [str(Path(java).parent)] if java else []
    return ":".join(dict.fromkeys([*folders, *SYSTEM_PATH.split(":")]))


def check(run: RunDir, plan: Plan, asked: Inputs | None) -> None:
    """Raise where a unit of this plan could not serve, or would serve something else than is asked for."""
    if plan.inputs.topology != "live":
        raise ServerError(
            f"a unit serves on this machine: {run.plan} is for the machine recorded in "
            f"{plan.inputs.topology}; run: make config"
        )
    python = Path(plan.inputs.prefix) / "bin" / "python"
    if not os.access(python, os.X_OK):
        said = f", a link to {python.readlink()}, which is gone" if python.is_symlink() else ""
        raise ServerError(f"no Python to serve with: {python}{said}; run: make setup && make config")
    _check_asked(run, plan, asked)
    owners = [folder.stat().st_uid for folder in (CHECKOUT, run.path)]
    if owners[0] != owners[1]:
        raise ServerError(
            f"RUN_DIR must be of the checkout's owner, whom the unit runs as: {run.path} is of "
            f"{name_user(owners[1])}, {CHECKOUT} of {name_user(owners[0])}; give another RUN_DIR, or chown it"
        )


def _check_asked(run: RunDir, plan: Plan, asked: Inputs | None) -> None:
    names = [field.name for field in fields(Inputs) if field.name not in NO_OTHER_ASKED]
    for name in names if asked else ():
        if (got := getattr(asked, name)) != (planned := getattr(plan.inputs, name)):
            raise ServerError(
                f"a unit serves what is planned: {run.plan} has {name} {planned!r}, asked for is {got!r}; "
                "give the values that were planned with, or run `make config` with these first"
            )


def _warn(line: str) -> None:
    """Not into the unit."""
    print(f"# {line}", file=sys.stderr)


def parse_asked(words: Sequence[str], plan: Plan) -> Inputs | None:
    """What the knobs ask for; without any, whatever is planned is meant."""
    if not words:
        return None
    options = build_parser().parse_args(words)
    return parse_inputs(options, tuple(sorted(split_words(options.models))) or plan.inputs.models)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it; 0 good, 1 refused."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="python -m server.unit", description=__doc__)
    parser.add_argument("--run-dir", default="run", help="folder with plan.json (default: run)")
    text = "arguments of python -m config: refuse any other plan"
    parser.add_argument("asked", nargs="*", metavar="-- …", help=text)
    options = parser.parse_args(arguments)
    try:
        _print_unit(RunDir.at(options.run_dir), options.asked)
    except (ServerError, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"error: {explain_os_error(problem)}", file=sys.stderr)
        return 1
    return 0


def _print_unit(run: RunDir, asked: Sequence[str]) -> None:
    plan = read_plan(run.plan)
    check(run, plan, parse_asked(asked, plan))
    facts = read_facts(run, plan)
    text = render_unit(facts)
    link = make_allocator_link(plan)
    if link:
        _warn(f"{link}: the unit may not write there")
    if facts.user in ROOT:
        _warn(f"{CHECKOUT} is root's, so TorchServe and its workers would run as root; better: chown -R USER")
    print(text, end="")


if __name__ == "__main__":
    sys.exit(main())
