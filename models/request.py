"""What is to be built, by the settings MODELS, WEIGHTS, PRECISION, BACKEND, CALIBRATION and EVAL.

They are checked before the packages of a build are installed: nothing here needs those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.settings import ALL, Settings
from config.sources import exists
from handlers.backends.catalogue import BASELINE, SETS
from models.errors import InputError
from models.files import find_weights_file

NOT_GIVEN = ""
WORDS = ("auto", "pretrained", "random")
WEIGHTS_FORMS = "auto, pretrained, random, a path that exists, or MODEL=… for each model, separated by commas"
DATA_FORMS = "a path that exists, or MODEL=PATH for each model, separated by commas"
PRECISIONS = (BASELINE, "bf16", "int8")
"""Of --precisions."""


@dataclass(frozen=True, kw_only=True)
class WeightsRequest:
    """Where one model's weights come from."""

    source: str
    """`auto`, `pretrained`, `random` or `path`; empty when WEIGHTS was not given for this model, which
    keeps what an archive was built with, and is `auto` where there is none."""
    path: Path | None = None
    allow_pickle: bool = False
    """ALLOW_PICKLE: read .pt, .pth and .bin in the build itself, with all its rights."""


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A person's own inputs for one model; None takes synthetic ones."""

    calibration: Path | None = None
    """Inputs that INT8's scales are chosen by."""
    evaluation: Path | None = None
    """Held-out inputs, with labels or without, that the accuracy gate goes by."""


def choose_names(models: Sequence[str], known: Sequence[str]) -> list[str]:
    """Those of MODELS that are built here; archives that others made (.mar) are not."""
    names = [name for name in models if not name.endswith(".mar")]
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"MODELS must be one of {', '.join(known)}: got {' '.join(unknown)}")
    return names


def choose_weights(settings: Settings, names: Sequence[str]) -> dict[str, WeightsRequest]:
    """One request for each model; InputError when a path does not exist."""
    found = {}
    for name, value in _find_values("WEIGHTS", settings, names, words=WORDS, forms=WEIGHTS_FORMS).items():
        path = None if value in (NOT_GIVEN, *WORDS) else Path(value).expanduser().resolve()
        source = value if path is None else "path"
        found[name] = WeightsRequest(source=source, path=path, allow_pickle=settings.allow_pickle)
    return found


def check_weights(requests: Iterable[WeightsRequest]) -> None:
    """InputError when a folder does not say which of its files holds the weights."""
    for request in requests:
        if request.path is not None:
            find_weights_file(request.path)


def choose_data(
    settings: Settings, names: Sequence[str], precisions: Sequence[str]
) -> dict[str, DataRequest]:
    """By model; InputError for data that would validate nothing: FP32 is what others are compared with."""
    given = {
        field: _find_values(field.upper(), settings, names, words=(), forms=DATA_FORMS)
        for field in ("calibration", "eval")
    }
    paths = {
        field: {name: Path(value).expanduser().resolve() for name, value in values.items() if value}
        for field, values in given.items()
    }
    if any(paths.values()) and {*precisions} == {BASELINE}:
        raise InputError(
            f"CALIBRATION and EVAL are of precisions beside {BASELINE}: got PRECISION={BASELINE}; "
            "add PRECISION=int8 or bf16"
        )
    return {
        name: DataRequest(calibration=paths["calibration"].get(name), evaluation=paths["eval"].get(name))
        for name in names
    }


def parse_precisions(text: str) -> tuple[str, ...]:
    """Of --precisions, which may name several, or PRECISION; InputError when one is none."""
    given = tuple(dict.fromkeys(text.replace(",", " ").split())) or (BASELINE,)
    if not {*given} <= {*PRECISIONS}:
        raise InputError(f"--precisions must be of {', '.join(PRECISIONS)}: got {text}")
    return given


def choose_backends(settings: Settings, names: Sequence[str], package_set: str) -> dict[str, str]:
    """Backend by model; one that is not installed is the plan's to reject."""
    return {name: settings.of_model("backend", name) or SETS[package_set][0] for name in names}


def _find_values(
    setting: str, settings: Settings, names: Sequence[str], *, words: Collection[str], forms: str
) -> dict[str, str]:
    """Value by model; every value is one of `words`, a path that exists, or not given."""
    values = {name: str(settings.of_model(setting.lower(), name) or NOT_GIVEN) for name in names}
    for value in filter(None, values.values()):
        if value not in words and not exists(value):
            commas = f"; a comma ends it before MODEL= of {', '.join(names)}" if "," in value else ""
            raise InputError(f"{setting} must be {forms}: got {value}, which does not exist{commas}")
    of_all = getattr(settings, setting.lower()).get(ALL, NOT_GIVEN)
    if of_all and of_all not in words and len(sharing := [n for n in names if values[n] == of_all]) > 1:
        raise InputError(
            f"{setting}={of_all} is a path for {len(sharing)} models; "
            f"write {setting}={sharing[0]}={of_all} or MODELS={sharing[0]}"
        )
    return values
