"""python3 -m setup: system packages, virtual environment, preflight; does only what is missing."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from setup import agent, environment, packages, requirements, torch_wheel
from setup.errors import Problem, SetupError
from setup.facts import Facts, read_facts, read_versions
from setup.preflight import MACHINE_CHECKS, find_problems
from setup.progress import human_size

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
# Seen: an environment with the CUDA build is 7.1 GB, and pip keeps the downloaded wheels beside it meanwhile.
FREE_BYTES_DEFAULT, FREE_BYTES_CPU = 12_000_000_000, 3_000_000_000


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    try:
        folder = requirements.find_stack(REQUIREMENTS, options.stack)
        if options.check:
            return report(find_problems(read_facts(options.venv, requirements.read_pins(folder))))
        if options.unused:
            check_unused(options.venv.absolute(), "it was to be removed")
            return 0
        torch_wheel.check_index(options.torch_index)
        if options.inputs:
            return check_inputs(options)
        with only_one(ROOT):
            return set_up(options)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again: it continues where it stopped", file=sys.stderr)
        return 130


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    sets = [name for name in requirements.read_sets(REQUIREMENTS) if name != requirements.SERVE]
    parser = argparse.ArgumentParser(prog="python3 -m setup", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only look for conflicts; install nothing")
    parser.add_argument("--unused", action="store_true", help="only refuse while a server runs on it")
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        choices=sets,
        help="packages of requirements/<set>.txt too",
    )
    parser.add_argument(
        "--backend",
        default="",
        help="engines, as BACKEND names them: packages of requirements/<engine>.txt, where there is one, too",
    )
    parser.add_argument(
        "--torch-index",
        default="",
        metavar="URL",
        help="where torch comes from: an index's address, or `default` for pip's own "
        "(when not given: PyTorch's CPU-only wheels if they can be reached, else pip's own)",
    )
    parser.add_argument("--no-agent", action="store_true", help="leave the Java agent to another stage")
    parser.add_argument("--inputs", action="store_true", help="only judge the values given; install nothing")
    parser.add_argument("--foreground", default="", help="with --inputs: 0 or 1")
    parser.add_argument("--dry-run", default="", help="with --inputs: 0 or 1")
    parser.add_argument("--tuned", default="", help="with --inputs: 0 or 1")
    parser.add_argument(
        "plan", nargs="*", metavar="-- …", help="with --inputs: arguments of `python -m config`"
    )
    parser.add_argument("--stack", default="", help=f"{' | '.join(requirements.STACKS)} (default: the first)")
    parser.add_argument("--venv", type=Path, help="the environment (default: .venv, or .venv-STACK)")
    parser.add_argument("--log", type=Path, default=ROOT / "run/setup.log", help="full output of apt and pip")
    options = parser.parse_args(arguments)
    options.stack = options.stack or requirements.STACKS[0]
    suffix = "" if options.stack == requirements.STACKS[0] else f"-{options.stack}"
    options.venv = options.venv or ROOT / f".venv{suffix}"
    return options


def check_inputs(options: argparse.Namespace) -> int:
    from setup import inputs  # reads config, which nothing else of the set-up needs

    inputs.check_place(ROOT)
    inputs.check_switch("FOREGROUND", options.foreground)
    inputs.check_switch("DRY_RUN", options.dry_run)
    inputs.check_switch("TUNED", options.tuned)
    inputs.check_plan(options.plan, options.stack)
    return 0


def set_up(options: argparse.Namespace) -> int:
    pins = requirements.read_pins(requirements.find_stack(REQUIREMENTS, options.stack))
    facts = read_facts(options.venv, pins)
    # The environment's own Python is judged when it is compared with this one.
    hopeless = find_problems(replace(facts, venv_python=None), MACHINE_CHECKS)
    if hopeless:
        return report(hopeless)
    packages.install_missing(facts, lambda: read_facts(options.venv, pins), options.log)
    complete_environment(options, facts)
    if not options.no_agent:
        agent.complete_agent(options.venv.absolute(), options.log)
    complete = read_facts(options.venv, pins)
    problems = find_problems(complete)
    if not problems and not options.extra:
        print(f"  set-up complete: {describe(options.venv, complete)}", flush=True)
    return report(problems)


def describe(venv: Path, facts: Facts) -> str:
    """What is there, in one line; the torch build is named because it decides the size."""
    stamp, java = environment.read_stamp(venv), facts.java.text if facts.java else "none"
    build = "CUDA build" if environment.is_cuda_build(venv) else "CPU-only build"
    size = human_size(stamp.torch_bytes) if stamp else "?"
    python = ".".join(str(part) for part in facts.venv_python or facts.python)
    return f"Python {python}, Java {java}, torch {facts.versions.get('torch')} ({build}, {size})"


def complete_environment(options: argparse.Namespace, facts: Facts) -> None:
    venv: Path = options.venv.absolute()
    stamp = environment.read_stamp(venv)
    folder = requirements.find_stack(REQUIREMENTS, options.stack)
    named = [requirements.SERVE, *options.extra, *list_engine_sets(folder, options.backend)]
    wanted = requirements.digests(folder, existing_sets(folder, environment.all_sets(stamp, named)))
    verdict = environment.judge(venv, wanted, facts.python, options.torch_index)
    if verdict.reason:
        print(f"  {venv.name}: {verdict.reason}", flush=True)
    if not verdict.install:
        return
    if verdict.rebuild or requirements.SERVE in verdict.install:
        check_unused(venv, verdict.reason)
    if verdict.rebuild and venv.is_symlink():
        venv.unlink()  # what it leads to is another checkout's, with a stamp of its own
    (venv / environment.STAMP).unlink(missing_ok=True)
    if verdict.rebuild:
        environment.create(venv, options.log)
        stamp = None
    else:
        environment.repair(venv, options.log)
    fresh = stamp or environment.Stamp(location=str(venv), stack=options.stack)
    for name in verdict.install:
        environment.install_set(venv, folder, name, options.log)
    if requirements.SERVE in verdict.install:
        # Last: what torch needs is there by then, by its hash.
        fresh = install_serving(options, venv, facts, fresh)
    environment.write_stamp(venv, replace(fresh, digests=wanted))


def check_unused(venv: Path, reason: str) -> None:
    """Raise when a server runs on the environment: a worker that comes back would load other packages.

    Tools on top of the serving set, such as the load test's, change none of its packages and may come.
    """
    if not venv.exists():  # nor are there any other files of ours yet where an image is built
        return
    from server.processes import find_users_of, name_run

    users = find_users_of(venv)
    if users:
        names = ", ".join(sorted({name_run(process) for process in users}))
        raise SetupError(
            f"{venv.name} must not change under a running server ({reason or 'packages are missing'}): "
            f"got {names}\n  do: stop it (make stop RUN_DIR=…), then run this again"
        )


def install_serving(
    options: argparse.Namespace, venv: Path, facts: Facts, stamp: environment.Stamp
) -> environment.Stamp:
    """torch on its own, because where it comes from is a choice."""
    folder = requirements.find_stack(REQUIREMENTS, options.stack)
    pins = {name: facts.pins[name] for name in requirements.TORCH}
    if environment.torch_is_in_place(read_versions(venv, pins), pins):
        print(f"  torch {pins['torch']} is in place", flush=True)
        index = stamp.torch_index
    else:
        source = torch_wheel.choose_source(
            options.torch_index, pins["torch"], facts.python, torch_wheel.probe_index
        )
        check_free_space(venv, source)
        print(f"  torch from {describe_index(source.index)}: {source.reason}", flush=True)
        environment.install_torch(venv, folder, source, pins, options.log)
        index = torch_wheel.hide_credentials(source.index)
    size = environment.measure_torch(venv)
    build = (
        "CUDA build; the CPU-only one is far smaller" if environment.is_cuda_build(venv) else "CPU-only build"
    )
    print(f"  torch {pins['torch']} takes {human_size(size)} ({build})", flush=True)
    return replace(stamp, torch_index=index, torch_bytes=size)


def describe_index(index: str) -> str:
    return "pip's own index" if index == torch_wheel.DEFAULT else torch_wheel.hide_credentials(index)


def check_free_space(venv: Path, source: torch_wheel.TorchSource) -> None:
    needed = FREE_BYTES_CPU if source.suffix == "+cpu" else FREE_BYTES_DEFAULT
    free = shutil.disk_usage(venv).free
    if free < needed:
        raise SetupError(
            f"free disk space must be at least {human_size(needed)} for this torch: "
            f"got {human_size(free)} at {venv}\n"
            "  do: free some, or give TORCH_INDEX an index with CPU-only wheels"
        )


def list_engine_sets(folder: Path, backend: str) -> list[str]:
    """Of the engines that BACKEND names; without the engines' own files, which a stage of the image lacks."""
    return existing_sets(folder, re.split(r"[\s,=]+", backend))


def existing_sets(folder: Path, names: Sequence[str]) -> list[str]:
    known = requirements.read_sets(folder)
    return [name for name in names if name in known]


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two set-ups at once would write into one environment: the second waits for the first.

    The programs we start inherit the lock, so that a pip that outlives a killed set-up is waited for too.
    """
    handle = os.open(folder, os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("  another set-up is running in this checkout: waiting for it", flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def report(problems: Sequence[Problem]) -> int:
    for problem in problems:
        print(f"setup: {problem.render()}", file=sys.stderr)
    return 1 if problems else 0
