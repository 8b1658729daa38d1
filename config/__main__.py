"""`python -m config`: reads the machine, decides, and writes plan.json, config.properties and environment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from config.atomic import write_text_atomically
from config.definitions import ModelDefinition, read_definitions
from config.errors import ConfigError
from config.folders import claim_run_folder, explain_os_error, hold_lock
from config.installed import Installed, read_installed
from config.knobs.table import add_knobs
from config.plan import ENVIRONMENT_FILE, PLAN_FILE, PROPERTIES_FILE, Inputs, Plan, write_plan
from config.render import render_environment, render_properties
from config.rules import NO_TIMINGS, make_plan, make_timing_job
from config.rules.requests import AUTO, SWITCHES
from config.table import render_table
from config.terminal import print_in_any_locale
from config.timings import read_timings
from config.topology import Topology, read_topology

CHECKOUT = Path(__file__).resolve().parent.parent
USAGE_ERROR = 2
KNOBS = (
    *("MODELS", "PRECISION", "PROFILE", "WORKERS", "CORES_PER_WORKER", "ALLOCATOR", "OPENMP", "PORT"),
    "TOPOLOGY",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 planned, 2 a value that cannot be planned with."""
    print_in_any_locale()
    options = build_parser().parse_args(arguments)
    try:
        if options.timing_job:
            print(make_timing_job(*read_facts(options)).to_json())
            return 0
        plan = read_and_plan(options)
        if options.dry_run:
            print(render_table(plan), render_properties(plan), sep="\n", end="")
        else:
            write_all(plan, Path(options.run_dir))
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
        "--timings", default="", help=f"for {AUTO}: the file that `python -m models time` wrote on this host"
    )
    parser.add_argument("--bind", default="", help="IPv4 address of predictions alone (default: loopback)")
    parser.add_argument(
        "--token-file", default="", help="the inference token (default: TorchServe makes one)"
    )
    parser.add_argument(
        "--drain-seconds", default="", help="to answer what was accepted at a stop (default 35)"
    )
    parser.add_argument("--no-ipex", action="store_true", help="ipex_enable=false: a baseline")
    parser.add_argument("--no-pinning", action="store_true", help="cpu_launcher_enable=false: a baseline")
    parser.add_argument(
        "--off", default="", help=f"what the handlers leave out, of {', '.join(SWITCHES)}: a baseline"
    )
    parser.add_argument(
        "--prefix", default="", help="the virtual environment (default: the one running this)"
    )
    parser.add_argument("--models-dir", default="", help="the models' definitions (default: models/)")
    parser.add_argument("--model-store", default="", help="the archives (default: model-store/)")
    parser.add_argument("--run-dir", default=str(CHECKOUT / "run"), help="where to write (default: run/)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and config.properties, write nothing"
    )
    parser.add_argument(
        "--timing-job", action="store_true", help="print only what `python -m models time` is to time"
    )
    return parser


def read_and_plan(options: argparse.Namespace) -> Plan:
    """Read, then decide."""
    facts = read_facts(options)
    return make_plan(*facts, read_timings(options.timings) if options.timings else NO_TIMINGS)


def read_facts(
    options: argparse.Namespace,
) -> tuple[Topology, Sequence[ModelDefinition], Inputs, Installed]:
    """All that the rules go by, but for timings."""
    models = read_definitions(Path(options.models_dir or CHECKOUT / "models"), split_words(options.models))
    inputs = parse_inputs(options, tuple(model.name for model in models))
    return read_topology(options.topology or "/"), models, inputs, read_installed(Path(inputs.prefix))


def split_words(text: str) -> list[str]:
    """A list as people write it: with blanks or commas."""
    return text.replace(",", " ").split()


def parse_inputs(options: argparse.Namespace, models: tuple[str, ...]) -> Inputs:
    """Texts to values."""
    port = parse_number("PORT", options.port)
    drain_s = parse_number("--drain-seconds", options.drain_seconds)
    return Inputs(
        models=models,
        precision=options.precision or Inputs.precision,
        profile=options.profile or Inputs.profile,
        workers=parse_number("WORKERS", options.workers),
        cores_per_worker=parse_number("CORES_PER_WORKER", options.cores_per_worker),
        allocator=options.allocator or None,
        openmp=options.openmp or None,
        port=Inputs.port if port is None else port,
        bind=options.bind or Inputs.bind,
        token_file=options.token_file,
        drain_s=Inputs.drain_s if drain_s is None else drain_s,
        ipex=not options.no_ipex,
        pinning=not options.no_pinning,
        off=tuple(sorted(set(split_words(options.off)))),
        topology=options.topology or "live",
        prefix=str(Path(options.prefix or sys.prefix).absolute()),
        model_store=str(Path(options.model_store or CHECKOUT / "model-store").absolute()),
    )


def parse_number(name: str, text: str) -> int | None:
    """A whole number; empty is "not given"."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number: got {text}") from None


def write_all(plan: Plan, run_dir: Path) -> None:
    """The three files the server starts from; a start that is under way keeps its own."""
    claim_run_folder(run_dir)
    with hold_lock(run_dir):
        write_text_atomically(run_dir / PROPERTIES_FILE, render_properties(plan))
        write_text_atomically(run_dir / ENVIRONMENT_FILE, render_environment(plan))
        write_plan(plan, run_dir / PLAN_FILE)
    print(
        f"planned: {', '.join(plan.models)} · workers {plan.layout.workers_per_model.value} × "
        f"cores {plan.layout.cores_per_worker.value}{render_pinning(plan)} · {render_precision(plan)} · "
        f"{plan.libraries.allocator.value} · {plan.libraries.openmp.value} OpenMP → {run_dir / PLAN_FILE}"
    )


def render_pinning(plan: Plan) -> str:
    """Nothing where the workers are pinned; else that they are not, and why."""
    launcher = plan.properties["cpu_launcher_enable"]
    return "" if launcher.value == "true" else f" · NOT PINNED: {launcher.reason}"


def render_precision(plan: Plan) -> str:
    """The one that was named, or what auto chose."""
    if plan.inputs.precision != AUTO:
        return plan.inputs.precision
    chosen = ", ".join(f"{name} {model.precision.value}" for name, model in sorted(plan.models.items()))
    return f"{AUTO}: {chosen}"


if __name__ == "__main__":
    sys.exit(main())
