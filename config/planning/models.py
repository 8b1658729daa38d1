"""What each model of an instance gets: batch, delay, time-outs, limits of a request, requests in flight."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.archives import ForeignArchive, ModelDefinition
from config.errors import ConfigError
from config.plan import InstancePlan, ModelPlan
from config.planning.backends import EAGER
from config.planning.batching import DEFAULT_SLO_P99_MS, TOKEN_MS, choose_batch, find_service, list_sizes
from config.planning.facts import Facts
from config.planning.profile import BatchProfile
from config.planning.proxy import MAX_REQUEST_BYTES, SMALL_BYTES
from config.settings import ALL, Settings
from config.tuned import Tuned
from handlers.backends.catalogue import BACKENDS
from handlers.definition import MODEL_VERSION

DELAY_MS = 1
"""The least: TorchServe reads 0 as "not given" and waits 100 ms (ConfigManager.getJsonIntValue)."""
LOAD_S = 180
"""A worker's start was seen to take 14 s alone; each shape it warms adds to that, and so does a slower
machine."""
COMPILING_S = 900
"""Of a worker that compiles the model while it starts: DenseNet121 takes more than LOAD_S (seen)."""
BATCH_S = 60
"""The longest a batch of texts may take, and so a request: who waits longer has given up."""
TIMES = 3
"""Response time-out ÷ worst batch: computed once, once more item by item where one of its requests fails, and
once to spare. TorchServe kills the worker that answers later, and fails the whole batch."""
MIN_TIMEOUT_S = 60
"""A machine that stalls for some seconds must not lose its workers."""
IMAGE_S = 2.1
"""2 s of a core are the most that decoding one image may take (docs/api.md), 0.1 s is ResNet50's own:
0.04 s in FP32 on a core with AVX-512 (seen), and twice that without."""
CHARACTER_US = 2.2
"""Tokenising, at worst: words of 99 letters (seen)."""
CHARACTERS_PER_TOKEN = 20
"""As in handlers/shared/texts.py: how much of a text is read."""

IMAGE_LIMITS = {
    "pixels": 24_000_000,  # a camera's; the slowest, an interlaced PNG of 16 bits a channel, takes 1.4 s
    "jpeg_pixels": 128_000_000,  # telephones make up to 108 million; decoded at an eighth of their size
    "jpeg_samples": 72_000_000,  # what a JPEG in several scans keeps until the last one: 144 MB
    "jpeg_scans": 32,  # encoders write 3 to 18, and each visits every sample again: 32 took 1.4 s
    "side_pixels": 65_535,  # the longest side that a JPEG can say
    "decode_mib": 240,  # 24 megapixels at 8 bytes each (Pillow's image and the resized one), 12 of WebP (20)
    "parts": 16_384,  # segments, chunks or blocks of a file: 16 MiB in pieces of 1 KiB, each costs Python
}
"""Measured with the worst file of each format at its limit: no body of 16 MiB takes 2 s or 400 MiB. A handler
rejects what is beyond."""

FOREIGN_BATCH, FOREIGN_DELAY_MS, FOREIGN_TIMEOUT_S = 1, 100, 120
"""TorchServe's own defaults; the time-outs are in force for an archive with a YAML that does not say them
(ModelConfig.java)."""

IN_FLIGHT_BATCHES = 2
"""For each worker: the batch that it computes, and the next one, so that it never waits for HAProxy. With
1.25 a saturated server lost 9 % (measured); more would wait in the instance, where nothing orders them."""
LARGE_PART = 7 / 8
"""Of the memory for bodies, that large ones may fill."""


def check_settings(facts: Facts) -> None:
    """ConfigError for settings by model that name none that is served, and for settings of the kit's models
    alone: names and kind of archives that others made are known once they are read."""
    settings = facts.settings
    for setting in ("backend", "batch", "delay_ms"):
        if unknown := sorted({*getattr(settings, setting)} - {ALL, *facts.archives}):
            raise ConfigError(
                f"{setting.upper()} must name models that are served, {', '.join(sorted(facts.archives))}: "
                f"got {', '.join(unknown)}"
            )
    for model, backend in settings.backend.items():
        if model in facts.foreign and backend not in ("ipex", "eager"):
            raise ConfigError(
                f"BACKEND of {model} must be ipex or eager, because its archive has a handler of its own: "
                f"got {backend}"
            )
    if settings.precision and not facts.kit:
        raise ConfigError(
            "PRECISION is of the kit's models, and archives that others made have their own: got "
            f"{settings.precision}"
        )


def plan_models(
    instance: InstancePlan,
    facts: Facts,
    variants: Mapping[str, str],
    profile: BatchProfile,
    tuned: Tuned,
    why: dict[str, str],
) -> InstancePlan:
    """With the kit's models."""
    settings, count, cores = facts.settings, len(facts.kit), instance.cores_per_worker
    fields: dict[str, dict[str, Any]] = {}
    for model in facts.kit:
        name, variant = model.name, variants[model.name]
        backend, precision = variant.split()
        batch = _find_given("batch", "batch_size", name, settings, tuned, why)
        service, limit_ms = find_service(model, variant, cores, profile), find_limit_ms(settings, tuned)
        if batch is None:
            batch, reason = choose_batch(service, list_sizes(model), settings.mode, limit_ms)
            why[f"{name}.batch_size"] = reason
        why[f"{name}.rate"] = f"all its workers busy with batches of {batch}; {service.source}"
        delay = _find_given("delay_ms", "max_batch_delay_ms", name, settings, tuned, why)
        off = tuple(sorted({*settings.off, *(() if model.freeze else EAGER)}))
        if not model.freeze:
            why[f"{name}.off"] = "its handler wants it eager (freeze = False)"
        elif off:
            why[f"{name}.off"] = "switched off for a baseline"
        load_s = COMPILING_S if BACKENDS[backend].compiles_at_start(settings.off) else LOAD_S
        why[f"{name}.startup_timeout_s"] = f"{load_s} s × {count} models that load on the same cores"
        fields[name] = {
            "archives": {MODEL_VERSION: f"{name}.mar"},
            "handler": model.handler,
            "tensors": model.tensors,
            "backend": backend,
            "precision": precision,
            "batch_size": batch,
            "max_batch_delay_ms": DELAY_MS if delay is None else delay,
            "response_timeout_s": plan_response_timeout(model, batch, count, why),
            "startup_timeout_s": load_s * count,
            "limits": plan_limits(model, precision, batch, count, why),
            "rate": round(len(instance.worker_cpus) * service.rate(batch), 1),
            "off": off,
        }
    planned = _add_models(instance, fields, why)
    # What the handlers in the workers read (handlers/shared/options.py).
    options = {
        name: {
            "backend": model.backend,
            "precision": model.precision,
            "batch": model.batch_size,
            "threads": cores,
            **({"off": model.off} if model.off else {}),
            **({"limits": dict(model.limits)} if model.limits else {}),
        }
        for name, model in planned.models.items()
    }
    text = json.dumps(options, sort_keys=True, separators=(",", ":"))
    return replace(planned, environment={**planned.environment, "CPU_KIT_OPTIONS": text})


def plan_foreign(instance: InstancePlan, facts: Facts, why: dict[str, str]) -> InstancePlan:
    """With models whose archives others made; ConfigError where a setting would be beaten by an archive's
    YAML."""
    fields: dict[str, dict[str, Any]] = {}
    for name, versions in facts.foreign.items():
        file = versions[0].path.name
        fields[name] = {
            "kit": False,
            "version": max(versions, key=ForeignArchive.order).version,
            "archives": {one.version: str(one.path) for one in versions},
        }
        for field, key, setting, default in (
            ("batch_size", "batchSize", "batch", FOREIGN_BATCH),
            ("max_batch_delay_ms", "maxBatchDelay", "delay_ms", FOREIGN_DELAY_MS),
            ("response_timeout_s", "responseTimeout", "", FOREIGN_TIMEOUT_S),
            ("startup_timeout_s", "startupTimeout", "", FOREIGN_TIMEOUT_S),
        ):
            given = facts.settings.of_model(setting, name) if setting else None
            own = find_alike(name, versions, key)
            if given and own and given != own:
                raise ConfigError(
                    f"{setting.upper()} of {name} cannot be set: the YAML of {file} says {key}: {own}, which "
                    f"TorchServe obeys whatever the configuration says: got {given}; leave it to the "
                    "archive, or pack it again without"
                )
            fields[name][field] = own or given or default
            why[f"{name}.{field}"] = (
                f"{key} of the YAML in {file}: it beats config.properties" if own
                else f"{setting.upper()} was given" if given else "TorchServe's own default"
            )  # fmt: skip
    planned = _add_models(instance, fields, why)
    for name, versions in facts.foreign.items():
        places = find_alike(name, versions, "jobQueueSize")
        if places is not None and places < planned.queue_size:
            raise ConfigError(
                f"{versions[0].path}: jobQueueSize in its YAML must be at least {planned.queue_size}, which "
                f"HAProxy passes on at once: got {places}; a full queue answers 503: pack it again without"
            )
    return planned


def obey_workers(archives: Mapping[str, Sequence[ForeignArchive]], settings: Settings) -> Settings:
    """With the workers that the YAMLs say: each instance starts as many, whatever the configuration says."""
    found = ((name, find_alike(name, versions, "minWorkers")) for name, versions in archives.items())
    said = {name: number for name, number in found if number}
    numbers = {*said.values()}
    if len(numbers) > 1 or (numbers and settings.workers and {settings.workers} != numbers):
        actual = [f"{name} {number}" for name, number in said.items()]
        actual += [f"WORKERS={settings.workers}"] * bool(settings.workers)
        raise ConfigError(
            "archives that others made have one number of workers in an instance, and minWorkers and "
            f"maxWorkers of their YAML beat WORKERS: got {', '.join(actual)}; pack them again without these "
            "two"
        )
    return settings.model_copy(update={"workers": numbers.pop()}) if numbers else settings


def find_alike(name: str, versions: Sequence[ForeignArchive], key: str) -> int | None:
    """A number of the YAMLs of a model's versions; ConfigError where they differ: a plan has one for all."""
    read = [one.workers if key == "minWorkers" else one.read_number(key) for one in versions]
    if len({*read}) > 1:
        actual = ", ".join(f"{one.version} {number}" for one, number in zip(versions, read, strict=True))
        raise ConfigError(
            f"versions of {name} must say the same {key} in their YAML: got {actual}; pack them again alike, "
            "or serve them by two servers"
        )
    return read[0]


def _find_given(
    setting: str, field: str, model: str, settings: Settings, tuned: Tuned, why: dict[str, str]
) -> int | None:
    """What a person gave, else what was tuned."""
    given, found = settings.of_model(setting, model), tuned.find(setting, model)
    if given is not None or found is not None:
        why[f"{model}.{field}"] = tuned.explain(model) if given is None else f"{setting.upper()} was given"
    return found if given is None else int(given)


def find_limit_ms(settings: Settings, tuned: Tuned) -> int:
    """What batches are planned for."""
    return settings.slo_p99_ms or round(tuned.limit.get("ms", DEFAULT_SLO_P99_MS))


def plan_response_timeout(model: ModelDefinition, batch: int, models: int, why: dict[str, str]) -> int:
    """Seconds after which a worker is taken for hung."""
    path = f"{model.name}.response_timeout_s"
    if "decode_mib" not in model.limits:
        why[path] = f"{TIMES} × the {BATCH_S} s that a batch may take at most"
        return TIMES * BATCH_S
    worst = f"{models} models on the same cores × {batch} images of {IMAGE_S} s"
    why[path] = f"{TIMES} × {worst}, at least {MIN_TIMEOUT_S} s"
    return max(MIN_TIMEOUT_S, math.ceil(TIMES * models * batch * IMAGE_S))


def plan_limits(
    model: ModelDefinition, precision: str, batch: int, models: int, why: dict[str, str]
) -> dict[str, int]:
    """Those that its handler knows. They are estimates: a worker times its own model when it loads
    (handlers/shared/work.py) and rejects what the machine at hand does not compute in time."""
    planned: dict[str, int] = {}
    if "decode_mib" in model.limits:
        planned = IMAGE_LIMITS
    elif "tokens_per_batch" in model.limits and model.token_lengths:
        longest, texts = model.token_lengths[-1], model.max_texts_per_request
        reading_s = math.ceil(batch * texts * longest * CHARACTERS_PER_TOKEN * CHARACTER_US / 1e6)
        batch_s = max(1, BATCH_S // models - reading_s)
        planned = {
            "batch_s": batch_s,
            "tokens_per_batch": min(batch * texts * longest, int(batch_s * 1000 / TOKEN_MS[precision])),
            # Commas and brackets, if each character were a comma; parsed, each can cost 200 bytes.
            "json_values": texts * (longest * CHARACTERS_PER_TOKEN + 1) + 1,
        }
        why[f"{model.name}.limits.batch_s"] = (
            f"{BATCH_S} s ÷ {models} models on the same cores, less {reading_s} s to tokenise"
        )
        why[f"{model.name}.limits.tokens_per_batch"] = (
            f"what {batch} requests may have, and takes {batch_s} s of a core at {TOKEN_MS[precision]} ms a "
            "token"
        )
    return {name: one for name, one in planned.items() if name in model.limits}


def _add_models(
    instance: InstancePlan, fields: Mapping[str, dict[str, Any]], why: dict[str, str]
) -> InstancePlan:
    """With what HAProxy passes on at once, and the places of TorchServe's queue, beyond which it answers 503:
    one number for all models."""
    workers, bodies_mib, models = len(instance.worker_cpus), instance.java.bodies_mib, len(fields)
    room = bodies_mib << 20
    wanted = {name: IN_FLIGHT_BATCHES * workers * own["batch_size"] for name, own in fields.items()}
    small = {name: max(1, min(count, room // 2 // SMALL_BYTES // models)) for name, count in wanted.items()}
    rest = int(room * LARGE_PART) - sum(small.values()) * SMALL_BYTES
    large, left = (size // MAX_REQUEST_BYTES // models for size in (rest, room))
    plans, queue = dict[str, ModelPlan](), 0
    for name, count in wanted.items():
        many = max(1, min(count, large))
        # And those whose clients have left: TorchServe computes them all the same. One is the health check's.
        queue = max(queue, small[name] + many + max(1, min(count, left)) + 1)
        plans[name] = ModelPlan(**fields[name], workers=workers, maxconn=small[name], large_maxconn=many)
        own = f"{workers} workers × {fields[name]['batch_size']} × {IN_FLIGHT_BATCHES} batches"
        why[f"{name}.maxconn"] = (
            own if small[name] == count else f"half of the {bodies_mib} MiB for bodies; {own} would be more"
        )
        why[f"{name}.large_maxconn"] = (
            f"bodies above {SMALL_BYTES} bytes, each counted as the largest, in what small ones leave of "
            f"{bodies_mib} MiB"
        )
    why["queue_size"] = "what HAProxy passes on at once, as many whose clients left, and the health check"
    # The default version is the one that is loaded first (ModelVersionedRefs.java).
    files = [
        f"{name}={Path(file).name}"
        for name, model in plans.items()
        for _, file in sorted(model.archives.items(), key=lambda item: item[0] != model.version)
    ]
    properties = {
        "load_models": ",".join(files),
        "job_queue_size": str(queue),
        "default_response_timeout": str(max(model.response_timeout_s for model in plans.values())),
    }
    return replace(instance, models=plans, queue_size=queue, properties={**instance.properties, **properties})
