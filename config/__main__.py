"""`python -m config`: reads the machine, decides, and writes the plan and what servers start from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from config.certificate import read_certificate
from config.definitions import ModelDefinition, read_definitions
from config.errors import ConfigError
from config.folders import check_run_folder, explain_os_error
from config.installed import Installed, read_installed
from config.knobs.table import add_knobs, find
from config.plan import PLAN_FILE, Inputs, read_plan
from config.rules.backends import parse_backend
from config.rules.batching import parse_by_model, render_by_model
from config.rules.requests import SWITCHES, check_inputs, check_machine
from config.rules.site import Site, make_site, make_timing_job
from config.terminal import print_in_any_locale
from config.timings import NO_TIMINGS, read_timings
from config.topology import Topology, read_topology
from config.tuned import NOT_TUNED, TUNED_FILE, Tuned, judge_tuned
from config.write import render_site, summarize, write_site
from handlers.backends.catalogue import choose_set, name_store, read_set, render_backend

CHECKOUT = Path(__file__).resolve().parent.parent
USAGE_ERROR = 2
NUMBERS = ("WORKERS", "CORES_PER_WORKER", "PORT", "SLO_P99_MS", "INSTANCES", "DEADLINE_MS")
BY_MODEL = ("BATCH", "DELAY_MS")
KNOBS = (
    *("MODELS", "PRECISION", "BACKEND", "PROFILE", "ALLOCATOR", "OPENMP", "TLS_CERT", "TLS_KEY", "TOPOLOGY"),
    *(*NUMBERS, *BY_MODEL),
)
TEXTS = ("PRECISION", "PROFILE", "ALLOCATOR", "OPENMP", "TOPOLOGY", "bind", "token_file")
"""Taken as they are."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 planned, 2 a value that cannot be planned with."""
    print_in_any_locale()
    options = build_parser().parse_args(arguments)
    try:
        if options.check:
            check_values(options)
            return 0
        if options.timing_job:
            facts = read_facts(options)
            tuned, _ = read_tuned_plan(options, facts[0], facts[2])
            print(make_timing_job(*facts, tuned).to_json())
            return 0
        site, said = plan_and_say(options)
        if options.dry_run:
            print(render_site(site, Path(options.run_dir)), end="")
        else:
            write_site(site, Path(options.run_dir))
            print(f"{summarize(site)} → {Path(options.run_dir) / PLAN_FILE}")
        print("".join(f"{line}\n" for line in said), end="")
    except ConfigError as problem:
        print(f"config: {problem}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as problem:
        print(f"config: {explain_os_error(problem)}", file=sys.stderr)
        return USAGE_ERROR
    return 0


def build_parser() -> argparse.ArgumentParser:
    """An empty value means "not given", because make passes its unset variables so."""
    parser = argparse.ArgumentParser(prog="python -m config", description=__doc__)
    add_knobs(parser, KNOBS)
    parser.add_argument(
        "--timings", default="", help="the file that `python -m models time` wrote on this machine"
    )
    parser.add_argument("--tuned", default="", help=f"the file that `make tune` wrote ({TUNED_FILE})")
    parser.add_argument("--bind", default="", help="IPv4 address of predictions alone (default: loopback)")
    parser.add_argument("--token-file", default="", help="the inference token (default: one is made)")
    parser.add_argument(
        "--generation", default="", help="a or b: names and ports of the instances (default a)"
    )
    parser.add_argument("--no-pinning", action="store_true", help="cpu_launcher_enable=false: a baseline")
    parser.add_argument(
        "--off", default="", help=f"what the handlers leave out, of {', '.join(SWITCHES)}: a baseline"
    )
    parser.add_argument(
        "--prefix", default="", help="the virtual environment (default: the one running this)"
    )
    parser.add_argument("--model-store", default="", help="the archives (default: model-store/)")
    parser.add_argument("--run-dir", default=str(CHECKOUT / "run"), help="where to write (default: run/)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print all that would be written, write nothing"
    )
    parser.add_argument("--check", action="store_true", help="only judge the values, before the set-up")
    parser.add_argument(
        "--timing-job", action="store_true", help="print only what `python -m models time` is to time"
    )
    return parser


def check_values(options: argparse.Namespace) -> None:
    """What values and machine alone can tell: before the set-up, with the standard library."""
    inputs = parse_inputs(options, ())
    check_inputs(inputs)
    check_machine(read_topology(options.topology or "/"), inputs)
    check_run_folder(Path(options.run_dir))


def plan_and_say(options: argparse.Namespace) -> tuple[Site, list[str]]:
    """Read, then decide; with lines on what became of a tuned plan, where there is one."""
    facts = topology, _, inputs, _ = read_facts(options)
    timings = read_timings(options.timings) if options.timings else NO_TIMINGS
    tuned, said = read_tuned_plan(options, topology, inputs)
    return make_site(*facts, timings, tuned), said


def read_tuned_plan(
    options: argparse.Namespace, topology: Topology, inputs: Inputs
) -> tuple[Tuned, list[str]]:
    """The one that is named, where it holds; and a line about it, or about one that is left out."""
    if options.tuned:
        return judge_tuned(Path(options.tuned), topology, inputs)
    left = Path(options.run_dir) / TUNED_FILE
    return NOT_TUNED, [f"tuned: not used, TUNED=0: {left}"] if left.exists() else []


def read_facts(
    options: argparse.Namespace,
) -> tuple[Topology, Sequence[ModelDefinition], Inputs, Installed]:
    """All that the rules go by, but for timings."""
    inputs = parse_inputs(options, list_models(options))
    check_inputs(inputs)  # before what may be missing only because a value is wrong
    asked = {"BACKEND": inputs.backend, "PRECISION": inputs.precision}
    build = " ".join(["make models", *(f"{name}={value}" for name, value in asked.items() if value)])
    models = read_definitions(Path(inputs.model_store), inputs.models, build)
    return read_topology(options.topology or "/"), models, inputs, read_installed(Path(inputs.prefix))


def list_models(options: argparse.Namespace) -> tuple[str, ...]:
    """MODELS, or its default, in alphabetical order."""
    return tuple(sorted({*split_words(options.models or find("MODELS").default)}))


def split_words(text: str) -> list[str]:
    """A list as people write it: with blanks or commas."""
    return text.replace(",", " ").split()


def parse_inputs(options: argparse.Namespace, models: tuple[str, ...]) -> Inputs:
    """Texts to values; what is empty keeps its default."""
    prefix = Path(options.prefix or sys.prefix).absolute()
    try:
        named = choose_set(options.backend)  # a mix of two is refused in every environment
    except ValueError as problem:
        raise ConfigError(str(problem)) from problem
    package_set = read_set(prefix) or named
    tls_cert, tls_key = read_certificate(options.tls_cert, options.tls_key)
    given = {name.lower(): getattr(options, name.lower()) for name in (*NUMBERS, *BY_MODEL, *TEXTS)}
    for name in NUMBERS:
        given[name.lower()] = parse_number(name, given[name.lower()])
    for name in BY_MODEL:
        given[name.lower()] = render_by_model(parse_by_model(name, given[name.lower()]))
    return Inputs(
        **{name: value for name, value in given.items() if value not in ("", None)},
        models=models,
        backend=render_backend(parse_backend(options.backend)),
        package_set=package_set,
        tls_cert=tls_cert,
        tls_key=tls_key,
        generation=options.generation or read_generation(Path(options.run_dir)),
        pinning=not options.no_pinning,
        off=tuple(sorted(set(split_words(options.off)))),
        prefix=str(prefix),
        model_store=str(Path(options.model_store or CHECKOUT / name_store(package_set)).absolute()),
        run_dir=str(Path(options.run_dir).resolve()),
    )


def read_generation(run_dir: Path) -> str:
    """That of the plan which is there: after a reload it is not the first one, and the names would differ."""
    try:
        return read_plan(run_dir / PLAN_FILE).inputs.generation
    except ConfigError:
        return Inputs.generation


def parse_number(name: str, text: str) -> int | None:
    """A whole number; empty is "not given"."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number: got {text}") from None


if __name__ == "__main__":
    sys.exit(main())
