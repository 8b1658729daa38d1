"""What one model's race needs: the default plan, profiles of the layouts, and the memory that is there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from config.__main__ import KNOBS, build_parser, parse_number, split_words
from config.definitions import ModelDefinition, read_definition
from config.knobs.table import find
from config.plan import Plan
from config.rules.batching import DEFAULT_SLO_P99_MS
from config.rules.service import list_sizes
from handlers.engines import name_variant
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.blocks import USABLE_MEMORY, read_available_mib
from loadtest.experiments.tune.candidate import Candidate, Layout, list_layouts, read_candidate
from loadtest.experiments.tune.experiment import Course, fit_windows, make_experiment
from loadtest.experiments.tune.grid import make_experiment as make_grid
from loadtest.experiments.tune.space import read_space
from loadtest.experiments.tune.windows import Windows
from loadtest.payloads import Payload, make_payloads
from loadtest.results.host import read_host
from loadtest.results.kept import Kept
from loadtest.results.stats import least_requests
from loadtest.scenarios.scenario import PERCENTILES, list_scenarios, read_scenario
from loadtest.simulation.search import Limit
from loadtest.systems.fleet import Member, Site
from loadtest.systems.kit import kit, write_plan
from loadtest.systems.system import ROOT
from loadtest.systems.timings import take_timings
from loadtest.trials.block import Experiment
from server.archives import read_archive

OWN = ("MODELS", "PORT", "SLO_P99_MS")
"""Knobs of a plan that have a value of their own here."""
CHOSEN_HERE = ("BATCH", "DELAY_MS", "QUEUE")
NOT_RACED = ("TOPOLOGY", "CORES", "TLS_CERT", "TLS_KEY")
FRONT = "FRONT"
DEFAULT_PERCENTILE, DEFAULT_MINUTES = 99.0, 15.0
LEAST_MINUTES = 5.0
"""The default alone, one round of three plans, and the finals take nearly as long."""
HIGHEST_PERCENTILE = 99.0
"""Beyond it every window would take ten times as long."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a person asked for."""

    models: tuple[str, ...]
    limit: Limit
    minutes: float
    payloads: str
    """Empty: those of the model's open loop."""
    given: Mapping[str, str]
    """Other knobs of the plan with their values, for every plan alike."""
    timings: str
    """The file of timings that plans go by."""
    run_dir: Path
    """Where profiles are kept, and the plan that is found."""
    grid: Kept | None = None
    """The race whose choice meets every plan of a grid; None is a race."""
    plans: tuple[str, ...] = ()
    """The plans alone that it meets."""

    @property
    def arguments(self) -> list[str]:
        """Of `python -m config`."""
        limit = f"{1000 * self.limit.seconds:.0f}"
        given = (part for name, value in self.given.items() for part in (find(name).option, value))
        return [*given, find("SLO_P99_MS").option, limit, "--timings", self.timings]

    @property
    def free_layout(self) -> bool:
        """Whether workers and their cores may be chosen: nobody named them, and they are one model's."""
        return len(self.models) == 1 and not {"WORKERS", "CORES_PER_WORKER"} & {*self.given}


def read_wish(options: Sequence[str], *, percentile: float, minutes: float, payloads: str) -> Wish:
    """From options of `python -m config`, as make gives them; LoadTestError for what cannot be fixed here."""
    asked = build_parser().parse_args(options)
    given = {name: getattr(asked, name.lower()) for name in KNOBS if name not in OWN}
    given[FRONT] = given[FRONT] or find(FRONT).default
    _check_given(given)
    limit_ms = parse_number("SLO_P99_MS", asked.slo_p99_ms or str(DEFAULT_SLO_P99_MS)) or 0
    run_dir = Path(asked.run_dir).resolve()
    return Wish(
        models=tuple(split_words(asked.models)),
        limit=Limit(percentile=percentile, seconds=limit_ms / 1000),
        minutes=minutes,
        payloads=payloads,
        given={name: value for name, value in given.items() if value},
        timings=str(Path(asked.timings or run_dir / "timings.json").resolve()),
        run_dir=run_dir,
    )


def _check_given(given: Mapping[str, str]) -> None:
    """What is chosen by the race, or cannot be raced."""
    for name in CHOSEN_HERE:
        if given[name]:
            raise LoadTestError(f"{name} is what `make tune` finds: got {given[name]}; leave it out")
    for name in NOT_RACED:
        if given[name]:
            what = "plans of a model on all of this machine are raced"
            raise LoadTestError(f"{name} must be left out, {what}: got {given[name]}")


def check_wish(wish: Wish) -> None:
    """Before minutes are spent on what gives no figures."""
    percentile = wish.limit.percentile
    if wish.limit.seconds <= 0:
        raise LoadTestError(f"SLO_P99_MS must be 1 or more: got {1000 * wish.limit.seconds:g}")
    if percentile not in PERCENTILES or percentile > HIGHEST_PERCENTILE:
        known = ", ".join(f"{one:g}" for one in PERCENTILES if one <= HIGHEST_PERCENTILE)
        raise LoadTestError(
            f"PERCENTILE must be one of {known}: got {percentile:g}, and p99.9 needs "
            f"{least_requests(99.9)} requests of every window"
        )
    if wish.minutes < LEAST_MINUTES:
        raise LoadTestError(f"BUDGET_MINUTES must be at least {LEAST_MINUTES:g}: got {wish.minutes:g}")


def plan_all(wish: Wish, site: Site) -> Plan:
    """The default plan of all models together: it has the workers that each of them gets."""
    folder, port = site.place("plan")
    arguments = [*wish.arguments, "--model-store", str(site.store)]
    return write_plan(folder, port=port, model=" ".join(wish.models), arguments=arguments)


def prepare(wish: Wish, model: str, plan: Plan, site: Site) -> Experiment:
    """The experiment of one model; takes its profiles, which are kept for the next time."""
    default = read_candidate(plan, model)
    fixed = fix_variant(plan, model)
    definition = read_definition(ROOT / "models" / model / "model.yaml")
    layouts = list_layouts(default, free=wish.free_layout)
    site.say(f"{model}: timing batches, all workers busy alike (kept in {wish.run_dir})")
    bodies = list_bodies([model], site.store, wish.payloads)
    profiles = [_profile(wish, model, plan, layout, site, bodies) for layout in layouts]
    asked = make_asked(wish, model, plan, definition, default=default, profiles=profiles, site=site)
    space = read_space(asked)
    layout_arguments = make_layout_arguments(default.layout)

    def make_member(name: str, one: Candidate) -> Member:
        own = layout_arguments if one == default else one.arguments
        # What `auto` chose for the default's workers holds for all of the race.
        return kit(name, model, [*wish.arguments, *fixed, *own])

    course = fit_windows(
        Course(
            windows=Windows(model=model, payloads=asked["payloads"], limit=wish.limit),
            space=space,
            budget_s=60 * wish.minutes,
            memory_mib=USABLE_MEMORY * read_available_mib(),
            make_member=make_member,
            libraries=(str(plan.libraries.allocator.value), str(plan.libraries.openmp.value)),
        )
    )
    if wish.grid is None and course.least_s > course.budget_s:
        site.say(
            f"{model}: at the rates of this machine the fewest plans and the finals take about "
            f"{math.ceil(course.least_s / 60)} minutes, not BUDGET_MINUTES={wish.minutes:g}"
        )
    if wish.grid is None:
        return make_experiment(course, asked)
    return make_grid(course, asked, wish.grid, wish.plans)


def make_layout_arguments(layout: Layout) -> list[str]:
    return ["--workers", str(layout[0]), "--cores-per-worker", str(layout[1])]


def fix_variant(plan: Plan, model: str) -> list[str]:
    """What `auto` became; and BACKEND may name models that are not in this one's plans."""
    one = plan.models[model]
    return ["--backend", str(one.engine.value), "--precision", str(one.precision.value)]


def _profile(
    wish: Wish, model: str, plan: Plan, layout: Layout, site: Site, bodies: Mapping[str, Sequence[Payload]]
) -> dict[str, Any]:
    workers, cores = layout
    one = plan.models[model]
    file = wish.run_dir / f"profile-{workers}x{cores}.json"
    arguments = [*wish.arguments, *fix_variant(plan, model), *make_layout_arguments(layout)]
    variant = name_variant(str(one.engine.value), str(one.precision.value))
    timed = take_timings(model, arguments, site.store, file, grid=True, payloads=bodies)
    service = find_service(timed, model, variant, file)
    return {"workers": workers, "cores_per_worker": cores, "service": service}


def find_service(
    timed: Mapping[str, Mapping[str, Any]], model: str, variant: str, file: Path
) -> dict[str, Any]:
    """By size of a batch; LoadTestError says why there is none."""
    entry = timed.get(model, {}).get(variant, {})
    if "service" not in entry:
        why = entry.get("problem", f"nothing of it in {file}")
        raise LoadTestError(f"{model} by {variant} could not be timed: {why}")
    return dict(entry["service"])


def make_asked(
    wish: Wish, model: str, plan: Plan, definition: ModelDefinition, *, default: Candidate,
    profiles: Sequence[dict[str, Any]], site: Site,
) -> dict[str, Any]:  # fmt: skip
    """All that decides what is measured; without paths."""
    archive = read_archive(site.store / f"{model}.mar")
    return {
        "model": model,
        "engine": str(plan.models[model].engine.value),
        "precision": str(plan.models[model].precision.value),
        "limit": {"percentile": wish.limit.percentile, "ms": 1000 * wish.limit.seconds},
        "budget_minutes": wish.minutes,
        "payloads": wish.payloads or find_payloads(model),
        "given": dict(wish.given),
        "default": asdict(default),
        "queue": int(plan.models[model].queue_size.value),
        "instances": len(plan.instances),
        "batches": sorted({*list_sizes(definition)} & {int(one) for p in profiles for one in p["service"]}),
        "profiles": list(profiles),
        "archive": {"id": archive.archive_id, "weights": archive.weights, "notes": list(archive.notes)},
        "host": {name: value for name, value in read_host().items() if name != "load_average"},
    }


def list_bodies(models: Sequence[str], store: Path, payloads: str = "") -> dict[str, list[Payload]]:
    """Of each model those of the race: a picture of a telephone takes as long to decode as to classify, and
    opinions of 42 tokens in the mean a third longer than the lengths that an archive's own timings have."""
    return {
        name: make_payloads(
            payloads or find_payloads(name), model=name, archives={name: store / f"{name}.mar"}
        )
        for name in models
    }


def find_payloads(model: str) -> str:
    """Of the model's own open loop."""
    for name in list_scenarios():
        one = read_scenario(name)
        if one.is_open and one.model == model:
            return one.payloads
    raise LoadTestError(f"no open scenario of {model}: PAYLOADS= names a set or a folder to send")
