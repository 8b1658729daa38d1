"""What is asked of a tuning: the limit, the default plan and its neighbours, and the memory that is there."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from config.__main__ import KNOBS, build_parser, parse_number, split_words
from config.definitions import read_definition
from config.knobs.table import find
from config.plan import Plan
from config.rules.batching import DEFAULT_SLO_P99_MS
from config.rules.engines import find_need
from config.rules.service import list_sizes
from config.topology import read_topology
from handlers.engines import ENGINES, name_variant
from handlers.engines.backend import find_missing
from handlers.engines.sets import SETS
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.experiment import USABLE_MEMORY
from loadtest.experiments.tune.candidate import (
    DEFAULT,
    Candidate,
    list_candidates,
    read_candidate,
    variant_arguments,
)
from loadtest.experiments.tune.curve import Limit
from loadtest.experiments.tune.experiment import REQUESTS_TIMES, Course, Windows, make_experiment
from loadtest.experiments.tune.outcome import name_plans
from loadtest.payloads import make_payloads, name_mix
from loadtest.results.host import read_host
from loadtest.scenarios.scenario import list_scenarios, read_scenario
from loadtest.systems.fleet import Member, Site
from loadtest.systems.kit import kit, write_plan
from loadtest.systems.system import ROOT
from loadtest.trials.block import Experiment
from server.archives import Archive, read_archive
from server.supervisor.moving import read_available_mib

OWN = ("MODELS", "PORT", "SLO_P99_MS")
"""Knobs of a plan that have a value of their own here."""
NOT_TUNED = {
    **dict.fromkeys(("BATCH", "DELAY_MS"), "it is what `make tune` finds"),
    **dict.fromkeys(("TOPOLOGY", "TLS_CERT", "TLS_KEY"), "plans on all of this machine are tuned"),
}
PERCENTILE, DEFAULT_MINUTES = 99.0, 15.0
LEAST_MINUTES = 5.0
"""The default alone, three plans at three rates, and the final A/B take nearly as long."""
EXAMPLE = "resnet50:0.7,bert:0.3"


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
    """Where the plan that is found is kept."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of the requests by model, where all are tuned together."""

    @property
    def arguments(self) -> list[str]:
        """Of `python -m config`."""
        limit = f"{1000 * self.limit.seconds:.0f}"
        given = (part for name, value in self.given.items() for part in (find(name).option, value))
        return [*given, find("SLO_P99_MS").option, limit, "--timings", self.timings]

    @property
    def free_layout(self) -> bool:
        """Whether workers and their cores may be chosen: nobody named them, and all models are tuned
        together."""
        together = len(self.models) == 1 or bool(self.shares)
        return together and not {"WORKERS", "CORES_PER_WORKER"} & {*self.given}


def read_wish(options: Sequence[str], *, minutes: float, payloads: str, mix: str) -> Wish:
    """From options of `python -m config`, as make gives them; LoadTestError for what cannot be fixed here."""
    asked = build_parser().parse_args(options)
    given = {name: getattr(asked, name.lower()) for name in KNOBS if name not in OWN}
    for name, why in NOT_TUNED.items():
        if given[name]:
            raise LoadTestError(f"{name} must be left out, {why}: got {given[name]}")
    if mix and payloads:
        what = "PAYLOADS must be left out with MIX, which sends each model's own"
        raise LoadTestError(f"{what}: got {payloads}")
    limit_ms = parse_number("SLO_P99_MS", asked.slo_p99_ms or str(DEFAULT_SLO_P99_MS)) or 0
    if limit_ms <= 0:
        raise LoadTestError(f"SLO_P99_MS must be 1 or more: got {limit_ms:g}")
    if minutes < LEAST_MINUTES:
        raise LoadTestError(f"BUDGET_MINUTES must be at least {LEAST_MINUTES:g}: got {minutes:g}")
    run_dir, models = Path(asked.run_dir).resolve(), tuple(split_words(asked.models))
    return Wish(
        models=models,
        limit=Limit(percentile=PERCENTILE, seconds=limit_ms / 1000),
        minutes=minutes,
        payloads=payloads,
        given={name: value for name, value in given.items() if value},
        timings=str(Path(asked.timings or run_dir / "timings.json").resolve()),
        run_dir=run_dir,
        shares=parse_mix(mix, models) if mix else {},
    )


def parse_mix(text: str, models: Sequence[str]) -> dict[str, float]:
    """Model → share of the requests, 1 in sum; LoadTestError for what is none."""
    pairs = [part.partition(":") for part in text.replace(",", " ").split()]
    named = [name for name, _, _ in pairs]
    if len(models) < 2 or sorted(named) != sorted(models):
        raise LoadTestError(
            f"MIX must give each of MODELS its share, two or more, as {EXAMPLE}: got {text} for "
            f"{', '.join(models)}"
        )
    try:
        parts = {name: float(share) for name, _, share in pairs}
    except ValueError:
        parts = {}
    if not parts or not all(0 < part < math.inf for part in parts.values()):
        raise LoadTestError(f"MIX must be numbers above 0 by model, as {EXAMPLE}: got {text}")
    return {name: part / sum(parts.values()) for name, part in sorted(parts.items())}


def plan_all(wish: Wish, site: Site) -> Plan:
    """The default plan of all models together: it has the workers that each of them gets."""
    folder, port = site.place("plan")
    arguments = [*wish.arguments, "--model-store", str(site.store)]
    return write_plan(folder, port=port, model=" ".join(wish.models), arguments=arguments, instances=None)


def prepare(wish: Wish, models: Sequence[str], plan: Plan, site: Site) -> Experiment:
    """The experiment of one model, or of all together."""
    default = read_candidate(plan, models)
    sizes = {name: list_sizes(read_definition(ROOT / "models" / name / "model.yaml")) for name in models}
    read = {one: read_archive(site.store / f"{one}.mar") for one in models}
    candidates = [
        *list_in_other_variants(wish, models, plan, read, site),
        *list_candidates(default, sizes, free_layout=wish.free_layout),
    ]
    name, shares = " ".join(models), dict(wish.shares)
    payloads = name_mix(shares) if shares else wish.payloads or find_payloads(name)
    archives = {one: site.store / f"{one}.mar" for one in models}
    sent = make_payloads(payloads, model=name, archives=archives) if shares else []
    fixed = fix_variants(plan, models)

    def make_member(server: str, one: Candidate) -> Member:
        own = ["--workers", str(one.workers), "--cores-per-worker", str(one.cores_per_worker)]
        asked = [*wish.arguments, *fixed, *(own if server == DEFAULT else one.arguments)]
        return kit(server, name, asked, instances=None)

    asked = {
        "models": list(models),
        "shares": shares,
        "variants": {one: _name_variant(plan, one) for one in models},
        "limit": {"percentile": wish.limit.percentile, "ms": 1000 * wish.limit.seconds},
        "budget_minutes": wish.minutes,
        "payloads": payloads,
        "payload_models": [one.model for one in sent],
        "given": dict(wish.given),
        "candidates": [asdict(one) for one in (default, *candidates)],
        "archives": {one: archive.archive_id for one, archive in read.items()},
        "weights": {one: archive.weights for one, archive in read.items()},
        "host": {key: value for key, value in read_host().items() if key != "load_average"},
    }
    windows = Windows(
        model=name,
        payloads=payloads,
        limit=wish.limit,
        times=REQUESTS_TIMES[-1 if shares else 0],
        least_share=min(shares.values(), default=1.0),
    )
    course = Course(
        windows=windows,
        plans=name_plans([default, *candidates]),
        instances=len(plan.instances),
        budget_s=60 * wish.minutes,
        memory_mib=USABLE_MEMORY * read_available_mib(),
        make_member=make_member,
    )
    return make_experiment(course, asked)


def list_in_other_variants(
    wish: Wish, models: Sequence[str], plan: Plan, archives: Mapping[str, Archive], site: Site
) -> list[Candidate]:
    """The plans of the other engines and precisions that one model's archive holds, each with the batch that
    the rules give it by its own batch profile; of what a person named none but that."""
    if len(models) > 1:
        return []
    (model,) = models
    there = {*SETS[plan.inputs.package_set]} - find_missing()
    if absent := [engine for engine in ENGINES if engine not in there]:
        site.say(f"{model}: not installed beside these, so not measured: {', '.join(absent)} (BACKEND=…)")
    topology, found = read_topology(), []
    default = _name_variant(plan, model)
    fixed = [
        word
        for name, word in zip(("BACKEND", "PRECISION"), default.split(), strict=True)
        if name in wish.given
    ]
    for variant in sorted(archives[model].accuracy):
        engine, precision = variant.split()
        held = engine in there and variant not in archives[model].lost and {*fixed} <= {engine, precision}
        if not held or variant == default or find_need(topology, engine, precision):
            continue
        arguments = [*wish.arguments, *variant_arguments(variant), "--model-store", str(site.store)]
        time_batches(model, arguments, wish, site)
        folder, port = site.place("plan")
        own = write_plan(folder, port=port, model=model, arguments=arguments)
        found.append(replace(read_candidate(own, models), variant=variant))
    return found


def time_batches(model: str, arguments: Sequence[str], wish: Wish, site: Site) -> None:
    """As `make timings` does; what was timed before is not timed again."""
    job = _run(["config", "--models", model, *arguments, "--timing-job"])
    site.say(_run(["models", "time", "--job", job, "--store", str(site.store), "--output", wish.timings]))


def _run(arguments: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LoadTestError(f"python -m {arguments[0]} failed: {done.stderr[-1500:].strip()}")
    return done.stdout.strip()


def fix_variants(plan: Plan, models: Sequence[str]) -> list[str]:
    """Where one word can say it; BACKEND may name models that are not in this one's plans."""
    engines = {name: str(plan.models[name].engine.value) for name in models}
    precisions = {str(plan.models[name].precision.value) for name in models}
    backend = ",".join(f"{name}={engine}" for name, engine in engines.items())
    return ["--backend", backend, "--precision", *precisions] if len(precisions) == 1 else []


def _name_variant(plan: Plan, model: str) -> str:
    return name_variant(str(plan.models[model].engine.value), str(plan.models[model].precision.value))


def find_payloads(model: str) -> str:
    """Of the model's own open loop."""
    for name in list_scenarios():
        one = read_scenario(name)
        if one.is_open and one.model == model:
            return one.payloads
    raise LoadTestError(f"no open scenario of {model}: PAYLOADS= names a set or a folder to send")
