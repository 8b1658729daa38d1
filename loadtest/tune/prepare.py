"""What is asked of a tuning: the limit, the default plan with its candidates, the memory that is there."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from config.archives import read_definitions
from config.commands import list_read, render_settings
from config.plan import Plan
from config.planning import DEFAULT_SLO_P99_MS, find_need, list_sizes, make_profile_job, read_facts
from config.settings import Settings, read_settings
from config.topology import read_topology
from handlers.backends.catalogue import BACKENDS, SETS, find_missing, name_variant
from handlers.definition import Packed
from loadtest.bench import resume_result
from loadtest.drivers import ROOT
from loadtest.errors import LoadTestError
from loadtest.machine import read_host
from loadtest.payloads import make_payloads
from loadtest.results import Kept, read_result
from loadtest.servers.base import Server, Testbed
from loadtest.servers.kit import kit_server, write_plan
from loadtest.tune import plans
from loadtest.tune.experiment import KIND
from server.archives import read_archive
from server.supervisor.reload import read_available_mib

OWN = ("MODELS", "PORT", "SLO_P99_MS", "RUN_DIR", "PYTHON")
"""Settings that have a value of their own here."""
NOT_TUNED = {
    **dict.fromkeys(("BATCH", "DELAY_MS"), "it is what `make tune` finds"),
    **dict.fromkeys(("TOPOLOGY", "TLS_CERT", "TLS_KEY"), "plans on all of this machine are tuned"),
}
PERCENTILE, DEFAULT_MINUTES = 99.0, 15.0
LEAST_MINUTES = 5.0
"""The default alone, three plans at three rates, and the final A/B take nearly as long."""
EXAMPLE, MIXTURE = "resnet50:0.7,bert:0.3", "mixture"
USABLE_MEMORY = 0.8
"""Of what is available when a tuning begins."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a person asked for."""

    models: tuple[str, ...]
    shares: Mapping[str, float]
    """Of the requests by model, where all are tuned together; else empty."""
    tunings: list[tuple[str, ...]]
    """The models of each race."""
    asked: Mapping[str, Any]
    """The same of each race; empty payloads are what suits the model."""
    arguments: list[str]
    """Settings, as NAME=VALUE."""
    profile: str
    """File of the batch profile."""
    run_dir: Path


def read_wish(settings: Settings, *, minutes: float, mix: str) -> Wish:
    """LoadTestError for what cannot be fixed here."""
    names = {*list_read("plan")} - {*OWN}
    given = {name: value for name, value in render_settings(settings).items() if name in names}
    for name in (name for name in NOT_TUNED if name in given):
        raise LoadTestError(f"{name} must not be given, {NOT_TUNED[name]}: got {given[name]}")
    payloads = settings.payloads
    if mix and payloads:
        raise LoadTestError(
            f"PAYLOADS must not be given with --mix, which has each model's own: got {payloads}"
        )
    if minutes < LEAST_MINUTES:
        raise LoadTestError(f"--budget-minutes must be at least {LEAST_MINUTES:g}: got {minutes:g}")
    limit_ms, run_dir = settings.slo_p99_ms or DEFAULT_SLO_P99_MS, Path(settings.run_dir).resolve()
    models = settings.models
    shares = parse_mix(mix, models) if mix else {}
    known = {"given": given, "limit": {"percentile": PERCENTILE, "ms": limit_ms}, "budget_minutes": minutes}
    return Wish(
        models=models, shares=shares, tunings=[models] if shares else [(model,) for model in models],
        asked={**known, "shares": shares, "payloads": MIXTURE if shares else payloads},
        arguments=[f"{name}={value}" for name, value in {**given, "SLO_P99_MS": limit_ms}.items()],
        profile=str(run_dir / "timings.json"), run_dir=run_dir,
    )  # fmt: skip


def parse_mix(text: str, models: Sequence[str]) -> dict[str, float]:
    """Model → share of the requests, 1 in sum; LoadTestError for what is none."""
    pairs = sorted(word.partition(":")[::2] for word in text.replace(",", " ").split())
    if len(models) < 2 or [model for model, _ in pairs] != sorted(models):
        wanted = f"--mix must give each of MODELS a share, two or more, as {EXAMPLE}"
        raise LoadTestError(f"{wanted}: got {text} for {', '.join(models)}")
    try:
        parts = {model: float(share) for model, share in pairs}
    except ValueError:
        parts = {"": math.nan}
    if not all(0 < part < math.inf for part in parts.values()):
        raise LoadTestError(f"--mix must be numbers above 0 by model, as {EXAMPLE}: got {text}")
    return {model: part / sum(parts.values()) for model, part in parts.items()}


def ask_first(wish: Wish, models: Sequence[str]) -> dict[str, Any]:
    """What is known before anything is built or timed."""
    return {**wish.asked, "models": list(models), "host": read_host()}


def check_resumed(folder: Path | None, known: Mapping[str, Any]) -> Kept | None:
    """What is to be resumed; LoadTestError where it was asked something else. `known` may be a part."""
    return resume_result(KIND, {**read_result(folder).asked, **known}, folder) if folder else None


def make_plan(
    wish: Wish,
    testbed: Testbed,
    models: Sequence[str],
    more: Sequence[str] = (),
    instances: int | None = None,
) -> Plan:
    """The default, of all models together too: it has the workers that each of them gets."""
    folder, port = testbed.place("plan")
    arguments = [*wish.arguments, *more, f"MODEL_STORE={testbed.store}"]
    return write_plan(
        folder, port=port, models=models, arguments=arguments, instances=instances, profile=wish.profile
    )


def prepare(
    wish: Wish, models: Sequence[str], plan: Plan, testbed: Testbed, folder: Path | None = None
) -> tuple[dict[str, Any], dict[str, Server]]:
    """(what is asked, the servers by plan) of one model, or of all together. A result that is to be resumed,
    in `folder`, is compared before anything is timed."""
    paths = {model: testbed.store / f"{model}.mar" for model in models}
    archives = {model: read_archive(path) for model, path in paths.items()}
    sent = make_payloads(MIXTURE, model="", archives=paths, shares=wish.shares) if wish.shares else []
    variants = find_variants(plan, models)
    asked = {
        **ask_first(wish, models), "variants": variants, "instances": len(plan.instances),
        "payload_models": [payload.model for payload in sent],
        "archives": {model: archive.archive_id for model, archive in archives.items()},
        "weights": {model: archive.definition.weights for model, archive in archives.items()},
    }  # fmt: skip
    kept = check_resumed(folder, asked)
    default = plans.read_candidate(plan, models)
    sizes = {model.name: list_sizes(model) for model in read_definitions(testbed.store, models)}
    others = [] if len(models) > 1 else list_others(wish, archives[models[0]], plan, testbed)
    # Workers are one number for all models, and stay as they are where somebody named them.
    free = len(wish.tunings) == 1 and not {"WORKERS", "CORES_PER_WORKER"} & {*wish.asked["given"]}
    near = plans.list_neighbours(default, sizes, free_layout=free)
    # What was available when it began decides to its end: it is never the same to the MiB.
    memory_mib = kept.asked["memory_mib"] if kept else round(USABLE_MEMORY * read_available_mib())
    asked |= {"candidates": [asdict(known) for known in (default, *others, *near)], "memory_mib": memory_mib}
    servers = {}
    for name, known in plans.name_plans(asked["candidates"]).items():
        own = known.layout if name == plans.DEFAULT else known.arguments
        arguments = [*wish.arguments, *fix(variants), *own]
        servers[name] = kit_server(name, models, arguments, instances=None, profile=wish.profile)
    return asked, servers


def find_variants(plan: Plan, models: Sequence[str]) -> dict[str, str]:
    """Backend and precision by model."""
    own = {model: plan.models[model] for model in models}
    return {model: name_variant(one.backend, one.precision) for model, one in own.items()}


def fix(variants: Mapping[str, str]) -> list[str]:
    """Where one word can say it; BACKEND may name models that are not in this one's plans."""
    backends = ",".join(f"{model}={variant.split()[0]}" for model, variant in variants.items())
    precisions = {variant.split()[1] for variant in variants.values()}
    return [f"BACKEND={backends}", f"PRECISION={precisions.pop()}"] if len(precisions) == 1 else []


def list_others(wish: Wish, archive: Packed, plan: Plan, testbed: Testbed) -> list[plans.Candidate]:
    """The plans of the other backends and precisions that a model's archive holds, each with the batch that
    the rules give it by its own batch profile; of what a person named none but that."""
    model, topology, found = archive.definition.name, read_topology(), []
    there = {*SETS[plan.package_set]} - find_missing()
    if absent := [backend for backend in BACKENDS if backend not in there]:
        testbed.say(f"{model}: not installed beside these, so not measured: {', '.join(absent)} (BACKEND=…)")
    default = find_variants(plan, [model])[model]
    words = zip(("BACKEND", "PRECISION"), default.split(), strict=True)
    named = {word for name, word in words if name in wish.asked["given"]}
    for variant in sorted({*archive.definition.served} - {default}):
        backend, precision = variant.split()
        if backend in there and named <= {backend, precision} and not find_need(topology, backend, precision):
            more = plans.variant_arguments(variant)
            time_batches([model], [*wish.arguments, *more], wish, testbed)
            own = make_plan(wish, testbed, [model], more, instances=1)
            found.append(replace(plans.read_candidate(own, [model]), variant=variant))
    return found


def time_batches(models: Sequence[str], arguments: Sequence[str], wish: Wish, testbed: Testbed) -> None:
    """As `make serve` does; what is in the profile is not measured again."""
    known = [f"MODELS={' '.join(models)}", f"MODEL_STORE={testbed.store}", *arguments]
    job = make_profile_job(read_facts(read_settings(known, ()))).to_json()
    words = ["time", "--job", job, "--output", wish.profile, f"MODEL_STORE={testbed.store}"]
    command = [sys.executable, "-m", "models", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadTestError(f"python -m models time failed: {done.stderr[-1500:].strip()}")
    testbed.say(done.stdout.strip())
