"""What the race of a mix needs: times of each model's batches, the splits that are worth it, their plans."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from config.definitions import read_definition
from config.knobs.table import find
from config.plan import Plan
from config.rules.layout import choose_cores
from config.topology import read_topology
from handlers.engines import name_variant
from loadtest.errors import LoadTestError
from loadtest.experiments.ladder.blocks import OWN_SHARE, SERVER_MIB, USABLE_MEMORY, read_available_mib
from loadtest.experiments.tune import mix
from loadtest.experiments.tune.candidate import DEFAULT, read_candidate
from loadtest.experiments.tune.prepare import Wish, find_service, list_bodies
from loadtest.experiments.tune.windows import REQUESTS_TIMES, Windows
from loadtest.payloads import make_payloads, name_mix
from loadtest.results.host import read_host
from loadtest.simulation.search import find_peak
from loadtest.simulation.service import ServiceTimes, read_service
from loadtest.systems.fleet import Member, Site
from loadtest.systems.kit import kit
from loadtest.systems.system import ROOT
from loadtest.systems.timings import take_timings
from loadtest.trials.block import Experiment
from server.archives import read_archive

CORES = find("CORES").option
LIVE_SHARE = 0.7
"""Of the simulated peak, which knows nothing of what TorchServe, the door and the load generator take from
the same cores: seen of ResNet50 alone (57 of 80) and of a mix (below 59 of 83), on two cores, with times of
the canary; with those of what is sent it is more. It only says where the race begins."""
MIXTURE = "mixture"
"""What a mix is drawn of."""


def check_mix(wish: Wish, text: str) -> dict[str, float]:
    """Its shares; LoadTestError before minutes are spent on what gives no figures."""
    shares = mix.parse_mix(text, wish.models)
    if wish.given.get("FRONT") == "none":
        raise LoadTestError("MIX needs the door, whose instances have cores of their own: got FRONT=none")
    for name in ("WORKERS", "INSTANCES"):
        if name in wish.given:
            raise LoadTestError(
                f"{name} must be left out with MIX: each split has its own: got {wish.given[name]}"
            )
    if wish.payloads:
        raise LoadTestError(
            f"PAYLOADS must be left out with MIX, which sends each model's own: got {wish.payloads}"
        )
    return shares


def prepare_mix(wish: Wish, shares: Mapping[str, float], plan: Plan, site: Site) -> Experiment:
    """`plan` is the default one of all models together; takes its times and those of the splits."""
    if not read_topology().owns_cpus:
        raise LoadTestError(
            "MIX needs CPUs of our own, to give each model some: got CPUs that are shared under a quota; "
            "give the server a cpuset"
        )
    models = " ".join(wish.models)
    site.say(f"{models}: timing batches, all workers busy alike (kept in {wish.run_dir})")
    arguments = [*wish.arguments, *fix_variants(plan)]
    times = read_times(wish, plan, arguments, site)
    predicted = predict(wish, plan, shares, times)
    for name in predicted:
        if name != DEFAULT:
            site.say(f"{models}: timing what CORES={name} would be planned by")
            take_timings(models, [*arguments, CORES, name], site.store, find_file(wish, name))

    def make_member(name: str) -> Member:
        own = [] if name == DEFAULT else [CORES, name, "--timings", str(find_file(wish, name))]
        return kit(name, models, [*arguments, *own])

    payloads = make_payloads(
        name_mix(shares), model=models, archives={name: site.store / f"{name}.mar" for name in wish.models}
    )
    windows = Windows(
        model=models, payloads=name_mix(shares), limit=wish.limit,
        times=REQUESTS_TIMES[-1], least_share=min(shares.values()),
    )  # fmt: skip
    payload_models = [one.model for one in payloads]
    asked = {
        "models": list(wish.models),
        "shares": dict(shares),
        "limit": {"percentile": wish.limit.percentile, "ms": 1000 * wish.limit.seconds},
        "budget_minutes": wish.minutes,
        "predicted": predicted,
        "payload_models": payload_models,
        "given": dict(wish.given),
        "defaults": {name: read_candidate(plan, name).name for name in wish.models},
        "archives": {name: read_archive(site.store / f"{name}.mar").archive_id for name in wish.models},
        "weights": {name: read_archive(site.store / f"{name}.mar").weights for name in wish.models},
        "host": {name: value for name, value in read_host().items() if name != "load_average"},
    }
    course = mix.Course(
        windows=windows,
        predicted=predicted,
        payload_models=payload_models,
        budget_s=60 * wish.minutes,
        most_up=count_up(plan),
        make_member=make_member,
    )
    return mix.make_experiment(course, asked)


def fix_variants(plan: Plan) -> list[str]:
    """What `auto` became, where one word can say it."""
    precisions = {str(one.precision.value) for one in plan.models.values()}
    if len(precisions) > 1:
        return []
    backend = ",".join(f"{name}={one.engine.value}" for name, one in plan.models.items())
    return ["--backend", backend, "--precision", *precisions]


def read_times(wish: Wish, plan: Plan, arguments: Sequence[str], site: Site) -> dict[str, ServiceTimes]:
    """Of each model, in the default's places."""
    file = wish.run_dir / "profile-mix.json"
    bodies = list_bodies(wish.models, site.store, MIXTURE)
    timed = take_timings(" ".join(wish.models), arguments, site.store, file, grid=True, payloads=bodies)
    variants = {
        name: name_variant(str(one.engine.value), str(one.precision.value))
        for name, one in plan.models.items()
    }
    return {
        name: read_service(find_service(timed, name, variant, file), f"the profile of {name}")
        for name, variant in variants.items()
    }


def predict(
    wish: Wish, plan: Plan, shares: Mapping[str, float], times: Mapping[str, ServiceTimes]
) -> dict[str, float]:
    """The default's peak and those of the best splits, the best first."""
    cores = choose_cores(read_topology())
    if len(cores) < len(wish.models):
        raise LoadTestError(f"MIX needs a core for each of {len(wish.models)} models: got {len(cores)}")

    @functools.cache
    def find_alone(name: str, count: int) -> float:
        one = read_candidate(plan, name)
        own = replace(one, workers=max(1, count // one.cores_per_worker))
        instances = len(plan.instances) if count == len(cores) else 1
        server = own.simulate_as(int(plan.models[name].queue_size.value), instances)
        return LIVE_SHARE * find_peak(server, times[name], wish.limit)

    shared = mix.predict_shared({name: find_alone(name, len(cores)) for name in wish.models}, shares)
    if not shared:
        raise LoadTestError(
            f"SLO_P99_MS must be a limit that the default plan can keep: got {wish.limit}, and a model alone "
            "takes longer; ask for a higher one"
        )
    splits = {
        mix.name_split(split): mix.predict_split(
            {name: find_alone(name, len(own)) for name, own in split.items()}, shares
        )
        for split in mix.list_splits(cores, wish.models)
    }
    both = {DEFAULT: shared, **mix.choose_splits(splits)}
    return dict(sorted(both.items(), key=lambda item: -item[1]))


def find_file(wish: Wish, split: str) -> Path:
    """Of a split's timings: they are of other places than the default's."""
    return wish.run_dir / f"timings-{split.replace('=', '-').replace(',', '_')}.json"


def count_up(plan: Plan) -> int:
    """Servers that the memory holds at once, by the default's, which has the most workers."""
    workers = sum(
        int(one.workers.value)
        * read_definition(ROOT / "models" / name / "model.yaml").worker_memory_mib[str(one.precision.value)]
        for name, one in plan.models.items()
    )
    each = SERVER_MIB * max(1, len(plan.instances)) + OWN_SHARE * workers
    there = USABLE_MEMORY * read_available_mib()
    if 2 * each > there:
        raise LoadTestError(
            f"two servers of {each:.0f} MiB must be up together: got {there:.0f} MiB for them; "
            "end other programs"
        )
    return math.floor(there / each)
