"""What each model of an instance gets: batch, delay, time-outs, limits of a request, requests in flight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from config.archives import ForeignArchive, ModelDefinition
from config.errors import ConfigError
from config.plan import ModelPlan
from config.planning.backends import EAGER
from config.planning.batching import DEFAULT_SLO_P99_MS, TOKEN_MS, choose_batch, find_service, list_sizes
from config.planning.instances import Draft
from config.planning.profile import BatchProfile
from config.planning.proxy import MAX_REQUEST_BYTES, SMALL_BYTES
from config.settings import Settings
from config.tuned import Tuned
from handlers.backends.catalogue import BACKENDS

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
"""2 s of a core are the most that decoding one image may take (docs/requests.md), 0.1 s is ResNet50's own:
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


def plan_models(
    draft: Draft, profile: BatchProfile, tuned: Tuned, settings: Settings
) -> tuple[dict[str, ModelPlan], int]:
    """Of the kit, by name, and the places of a queue in TorchServe."""
    models, why = draft.models, draft.why
    fields: dict[str, dict[str, Any]] = {}
    for model in models:
        name, variant = model.name, draft.variants[model.name]
        backend, precision = variant.split()
        batch = _find_given("batch", name, settings, tuned, why)
        if batch is None:
            service, limit_ms = (
                find_service(model, variant, draft.layout.cores, profile),
                find_limit_ms(settings, tuned),
            )
            batch, why[f"{name}.batch_size"] = choose_batch(
                service, list_sizes(model), settings.mode, limit_ms
            )
        delay = _find_given("delay_ms", name, settings, tuned, why)
        limits = plan_limits(model, precision, batch, len(models), why)
        off = tuple(sorted({*settings.off, *(() if model.freeze else EAGER)}))
        if not model.freeze:
            why[f"{name}.off"] = "its handler wants it eager (freeze = False)"
        elif off:
            why[f"{name}.off"] = "left out for a baseline"
        compiles = BACKENDS[backend].compiles_at_start(settings.off)
        load_s = COMPILING_S if compiles else LOAD_S
        why[f"{name}.startup_timeout_s"] = f"{load_s} s × {len(models)} models that load on the same cores"
        fields[name] = {
            "archives": {"1.0": f"{name}.mar"},
            "backend": backend,
            "precision": precision,
            "batch_size": batch,
            "max_batch_delay_ms": DELAY_MS if delay is None else delay,
            "response_timeout_s": plan_response_timeout(model, batch, len(models), why),
            "startup_timeout_s": load_s * len(models),
            "limits": limits,
            "off": off,
        }
    return _add_slots(fields, draft)


def plan_foreign(draft: Draft, settings: Settings) -> tuple[dict[str, ModelPlan], int]:
    """By model, and the places of a queue; ConfigError where a setting would be beaten by an archive's
    YAML."""
    archives, why = draft.foreign, draft.why
    fields = {}
    for name, versions in archives.items():
        own: dict[str, Any] = {
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
            given = settings.of_model(setting, name) if setting else None
            asked = find_alike(name, versions, key)
            if given is not None and asked is not None and given != asked:
                raise ConfigError(
                    f"{setting.upper()} of {name} cannot be set: the YAML of {versions[0].path.name} says "
                    f"{key}: {asked}, which TorchServe obeys whatever the configuration says: got {given}; "
                    "leave it to the archive, or pack it again without"
                )
            own[field] = asked or given or default
            why[f"{name}.{field}"] = (
                f"{key} of the YAML in {versions[0].path.name}: it beats config.properties" if asked
                else f"{setting.upper()} was given" if given else "TorchServe's own default"
            )  # fmt: skip
        fields[name] = own
    plans, queue = _add_slots(fields, draft)
    for name, versions in archives.items():
        places = find_alike(name, versions, "jobQueueSize")
        if places is not None and places < queue:
            raise ConfigError(
                f"{versions[0].path}: jobQueueSize in its YAML must be at least {queue}, which HAProxy "
                f"passes on at once: got {places}; a full queue answers 503: pack it again without"
            )
    return plans, queue


def obey_workers(archives: Mapping[str, Sequence[ForeignArchive]], settings: Settings) -> Settings:
    """With the workers that the YAMLs say: each instance starts as many, whatever the configuration says."""
    said = {name: find_alike(name, versions, "minWorkers") for name, versions in archives.items()}
    numbers = {number for number in said.values() if number}
    if len(numbers) > 1 or (numbers and settings.workers and {settings.workers} != numbers):
        told = ", ".join(f"{name} {number}" for name, number in said.items() if number)
        raise ConfigError(
            "archives that others made have one number of workers in an instance, and minWorkers and "
            "maxWorkers of their YAML beat WORKERS: got "
            f"{told}{f', WORKERS={settings.workers}' * bool(settings.workers)}; pack them again without "
            "these two"
        )
    return settings.model_copy(update={"workers": numbers.pop()}) if numbers else settings


def find_alike(name: str, versions: Sequence[ForeignArchive], key: str) -> int | None:
    """A number of the YAMLs of a model's versions; ConfigError where they differ: a plan has one for all."""
    read = [one.workers if key == "minWorkers" else one.read_number(key) for one in versions]
    if len({*read}) > 1:
        told = ", ".join(f"{one.version} {number}" for one, number in zip(versions, read, strict=True))
        raise ConfigError(
            f"versions of {name} must say the same {key} in their YAML: got {told}; pack them again alike, "
            "or serve them by two servers"
        )
    return read[0]


def _find_given(
    setting: str, model: str, settings: Settings, tuned: Tuned, why: dict[str, str]
) -> int | None:
    """What a person gave, else what was tuned."""
    path = f"{model}.{'batch_size' if setting == 'batch' else 'max_batch_delay_ms'}"
    given = settings.of_model(setting, model)
    if given is not None:
        why[path] = f"{setting.upper()} was given"
        return int(given)
    number = tuned.find(setting, model)
    if number is not None:
        why[path] = tuned.explain(model)
    return number


def find_limit_ms(settings: Settings, tuned: Tuned) -> int:
    """What batches are planned for."""
    return settings.slo_p99_ms or round(tuned.limit.get("ms", DEFAULT_SLO_P99_MS))


def plan_response_timeout(model: ModelDefinition, batch: int, models: int, why: dict[str, str]) -> int:
    """Seconds after which a worker is taken for hung."""
    if "decode_mib" not in model.limits:
        why[f"{model.name}.response_timeout_s"] = f"{TIMES} × the {BATCH_S} s that a batch may take at most"
        return TIMES * BATCH_S
    why[f"{model.name}.response_timeout_s"] = (
        f"{TIMES} × {models} models on the same cores × {batch} images of {IMAGE_S} s, at least "
        f"{MIN_TIMEOUT_S} s"
    )
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


def _add_slots(fields: Mapping[str, dict[str, Any]], draft: Draft) -> tuple[dict[str, ModelPlan], int]:
    """What HAProxy passes on at once, and the places of TorchServe's queue, beyond which it answers 503: one
    number for all models."""
    workers, bodies_mib, why = len(draft.layout.chunks), draft.java.bodies_mib, draft.why
    room, models = bodies_mib << 20, len(fields)
    wanted = {name: IN_FLIGHT_BATCHES * workers * own["batch_size"] for name, own in fields.items()}
    small = {name: max(1, min(count, room // 2 // SMALL_BYTES // models)) for name, count in wanted.items()}
    rest = int(room * LARGE_PART) - sum(small.values()) * SMALL_BYTES
    large, left = (size // MAX_REQUEST_BYTES // models for size in (rest, room))
    plans, places = {}, []
    for name, count in wanted.items():
        many = max(1, min(count, large))
        # And those whose clients have left: TorchServe computes them all the same. One is the health check's.
        places.append(small[name] + many + max(1, min(count, left)) + 1)
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
    return plans, max(places)
