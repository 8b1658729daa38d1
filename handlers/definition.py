"""definition.json: what an archive says of itself. models/ writes it; this is its one reader.

Everything here depends on the model's mathematics alone; what depends on the machine arrives through
`shared/options.py`.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from handlers.shared.errors import LoadError
from handlers.sums import SUMS_FILE, identify

DEFINITION_FILE = "definition.json"
WEIGHTS_FILE = "model.safetensors"
MODEL_VERSION = "1.0"
"""Of all archives that the kit builds."""
BUILD_AGAIN = (
    "build the archive again with `make models`; if that says it is up to date, what was unpacked has "
    "changed: make stop && make serve"
)
"""`make models` looks at the content and at the versions it was built with."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Precision(_Part):
    """How one precision is reached and how closely it must follow FP32 eager."""

    self_check_relative_error: float
    """Largest error (Task.compare) that a load accepts."""
    answer_relative: float
    answer_absolute: float
    """What a score of the example's answer may differ by: absolute + relative × expected."""
    backends: dict[str, dict[str, Any]] = {}
    """Backend → what only that backend's load reads."""


class Variant(_Part):
    """What became of a backend and precision that a build was asked for."""

    data: str
    """What it was calibrated with and validated on, by its hash."""
    accuracy: dict[str, Any] | None = None
    """How it compared with FP32 eager on held-out inputs (models/gate/figures.py)."""
    rejected: str = ""
    """By how much it failed the accuracy gate."""
    not_built: str = ""
    """Why it could not be built where the archive was built; another CPU may."""
    means: tuple[str, ...] = ()
    """CPU flags and programs that there were then."""
    tried: tuple[dict[str, Any], ...] = ()
    """INT8's recipes in order, with why each was not taken."""

    @property
    def lost(self) -> str:
        """Why it cannot be served; empty where it can."""
        return self.not_built or self.rejected


class Example(_Part):
    """The request that proves a worker right."""

    file: str
    """Its body, in the archive."""
    content_type: str
    expected: Any = None
    """The JSON of the answer that FP32 eager gave, its numbers to four significant digits."""


class Memory(_Part):
    """What one worker takes, measured when the archive was built, with a tenth to spare."""

    worker_mib: int
    """Resident set of one that is ready."""
    request_mib: int
    """What the worst batch of requests adds to that, beside its bodies."""


class Origin(_Part):
    """What the weights were asked for as."""

    source: str
    """`auto`, `pretrained`, `random` or `path`."""
    path: str
    files: str
    """Hash of a person's files."""


class Definition(_Part):
    """One model as its archive describes it."""

    name: str
    handler: str
    """The handler's file, without `.py`."""
    weights: str
    """Where the weights come from, e.g. `random (seed 0)`."""
    notes: tuple[str, ...] = ()
    """What a person must know of this archive, e.g. a stand-in vocabulary."""
    labels: tuple[str, ...] = ()
    """Class names in the order of the model's outputs."""
    example: Example
    batch_sizes: tuple[int, ...]
    """The batch sizes that are warmed and served, ascending, starting at 1."""
    precisions: dict[str, Precision]
    variants: dict[str, Variant] = {}
    """Of those beside FP32 as it comes, all that were asked for (catalogue.name_variant); no other was
    validated."""
    memory: dict[str, Memory] = {}
    """Of all variants that were asked for, FP32 too."""
    limits: dict[str, int] = {}
    """What one request may cost where no plan says so (Task.LIMITS); the plan sets those that it knows."""
    freeze: bool = True
    """False: the handler wants its model served eager."""
    model: dict[str, Any]
    """What only the handler reads."""
    inputs: str
    """Hash of all that decides the archive's bytes but the variants."""
    origin: Origin
    built_with: dict[str, str]
    """Distribution → version, and python's."""

    @property
    def fell_back(self) -> bool:
        """Whether it has random weights only because WEIGHTS=auto could have no others."""
        return self.origin.source == "auto" and self.weights.startswith("random")

    @property
    def served(self) -> list[str]:
        """Variants that were asked for and can be served."""
        return [name for name, one in self.variants.items() if not one.lost]

    def find_accuracy(self, variant: str) -> dict[str, Any] | None:
        """What the gate saw of one; None for what it did not judge."""
        return self.variants[variant].accuracy if variant in self.variants else None


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An archive as it lies in the model store."""

    path: Path
    definition: Definition
    sums: bytes
    """Its SHA256SUMS (sums.py)."""
    body: bytes
    """The example's."""

    @property
    def archive_id(self) -> str:
        """It changes whenever anything that was packed changes."""
        return identify(self.sums)


class NotOursError(Exception):
    """What was read is no archive of this kit; the text says why."""


def read_folder(directory: Path) -> Definition:
    """Of an unpacked archive; LoadError when it is missing or not of this kit."""
    try:
        return parse_definition((directory / DEFINITION_FILE).read_bytes())
    except (OSError, NotOursError) as error:
        raise LoadError(f"{DEFINITION_FILE} does not fit this handler: {error}", fix=BUILD_AGAIN) from error


def read_packed(archive: Path) -> Packed:
    """Of a .mar; NotOursError where it is none, or of another kit."""
    try:
        with zipfile.ZipFile(archive) as file:
            definition = parse_definition(file.read(DEFINITION_FILE))
            body = file.read(definition.example.file)
            return Packed(path=archive, definition=definition, sums=file.read(SUMS_FILE), body=body)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise NotOursError(f"{error}") from error


def parse_definition(content: bytes) -> Definition:
    """NotOursError names the first field that does not fit."""
    try:
        return Definition.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise NotOursError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from error


def render_definition(definition: Definition) -> str:
    """As it is packed: the same value, the same text."""
    return json.dumps(definition.model_dump(mode="json"), ensure_ascii=False, indent=1)
