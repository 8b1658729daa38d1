"""Reads `models/<name>/model.yaml`: four lines, and what differs from the defaults of its handler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from handlers.definition import Memory, Precision
from models.errors import BuildError, InputError
from models.names import MODELS_FOLDER, list_models
from models.options import OPTIONS

TORCHSERVES = ("base_handler", "image_segmenter", "object_detector", "text_handler", "vision_handler")
"""Handlers of TorchServe's own, which it would take where one of that name cannot be imported."""
OWN = ".py"
"""Ends the name of a handler that lies beside model.yaml."""
FP32 = Precision(self_check_relative_error=0.0005, answer_relative=0.01, answer_absolute=0.001)
"""Against FP32 eager 1e-6 was measured: another order of the same sums."""
BF16 = Precision(self_check_relative_error=0.05, answer_relative=0.15, answer_absolute=0.02)
"""0.6 % was measured: BF16 has 8 bits of mantissa."""
INT8 = Precision(self_check_relative_error=0.3, answer_relative=0.3, answer_absolute=0.05)
ROUTED = FP32.model_copy(update={"backends": {"ipex": {"auto_kernel_selection": True}}})
"""MKL leaves AVX-512 unused on AMD; this routes Linear through oneDNN (2.2 times as fast there)."""
JUDGED = {"fp32": FP32, "bf16": BF16, "int8": INT8}
PRECISIONS = {name: {**JUDGED, "fp32": FP32 if name == "image_classifier" else ROUTED} for name in OPTIONS}
"""Of each shipped handler. One of your own has FP32 unless model.yaml names more: what the accuracy gate
cannot compare is not narrowed."""


class Thresholds(BaseModel):
    """What a precision must reach to be served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agreement: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Without labels: share of the inputs that FP32 decides with the same answer."""
    labelled_loss_points: Annotated[float, Field(ge=0)] = 1.0
    """Percentage points of labelled accuracy that may be lost."""
    cosine: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Of embeddings: the mean cosine to FP32's."""
    rank: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Of embeddings: the mean rank correlation of each input's similarities to all others with FP32's."""


class ModelDefinition(BaseModel):
    """One model.yaml, checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    path: Path
    """The file itself."""
    name: str
    """Of the folder, and of the model in every URL."""
    handler: str
    """A shipped one, or a file beside model.yaml, as in handler.py."""
    weights: str = ""
    """A file or folder, a name of torchvision's, or a Hugging Face repository, better with its commit:
    NAME@REVISION; empty: random weights."""
    weights_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of a public file; empty: trusted when first used."""
    example: str | dict[str, Any] | list[Any] = ""
    """The smoke request: a file beside model.yaml, a text, JSON (a mapping or list), or `image`, which is
    drawn."""
    architecture: str = ""
    """A torchvision classifier (by default the model's name), or the transformers model type of random
    weights."""
    architecture_options: dict[str, Any] = {}
    """Passed to the architecture's constructor."""
    labels: tuple[str, ...] = ()
    """Class names in order, where the weights do not bring them."""
    batch_sizes: Annotated[tuple[int, ...], Field(min_length=1)] = (1, 2, 4, 8, 16)
    """Warmed and served, ascending from 1."""
    precisions: dict[str, Precision] = {}
    """How closely each must follow FP32 eager: {fp32: {self_check_relative_error: 0.0005, answer_relative:
    0.01, answer_absolute: 0.001}}; a handler of your own has FP32 alone."""
    accuracy_gate: Thresholds = Thresholds()
    """What a narrower precision must reach."""
    memory: Memory | None = None
    """{worker_mib: …, request_mib: …}; measured at build where it is not given."""
    options: Any = None
    """Read by the handler alone (self.definition.model); checked for a shipped one."""

    @field_validator("batch_sizes")
    @classmethod
    def _ascend(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if sizes[0] != 1 or list(sizes) != sorted(set(sizes)):
            raise ValueError("must ascend from 1")
        return sizes

    @property
    def folder(self) -> Path:
        """Where model.yaml lies."""
        return self.path.parent

    @property
    def is_own(self) -> bool:
        """Whether it brings its handler."""
        return self.handler.endswith(OWN)

    @property
    def local_weights(self) -> Path | None:
        """A file or folder; None of public or random weights."""
        path = self.folder / Path(self.weights).expanduser()
        named = self.weights.startswith(("/", "./", "../", "~"))
        return path.resolve() if named or (self.weights and path.exists()) else None

    @property
    def public(self) -> str:
        """The name of public weights; empty where there are none."""
        return "" if self.local_weights else self.weights


def read_definition(name: str, folder: Path = MODELS_FOLDER) -> ModelDefinition:
    """Read and check one definition; BuildError names the file, the field and what is allowed."""
    path = folder / name / "model.yaml"
    if not path.is_file():
        raise InputError(f"MODELS must be one of {', '.join(list_models(folder))}: got {name}")
    raw = _read_yaml(path)
    try:
        definition = ModelDefinition(path=path, **raw)
        own = definition.handler not in OPTIONS
        options = definition.options or {} if own else OPTIONS[definition.handler](**definition.options or {})
    except (ValidationError, TypeError) as error:
        raise BuildError(f"{path}: {_explain(error)}") from error
    if definition.name != name:
        raise BuildError(f"{path}: name must be that of its folder, {name}: got {definition.name}")
    beside = definition.is_own and (path.parent / definition.handler).is_file()
    if own and (not beside or Path(definition.handler).stem in {*OPTIONS, *TORCHSERVES}):
        raise BuildError(
            f"{path}: handler must be one of {', '.join(OPTIONS)}, or a file beside it such as handler.py: "
            f"got {definition.handler}"
        )
    precisions = definition.precisions or PRECISIONS.get(definition.handler, {"fp32": FP32})
    return definition.model_copy(update={"options": options, "precisions": precisions})


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BuildError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise BuildError(f"{path} must hold fields and values: got {type(raw).__name__}")
    return raw


def _explain(error: Exception) -> str:
    """The first field that is wrong."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    got = "" if first["type"] == "missing" else f": got {first['input']!r:.200}"
    return f"{field}: {first['msg'].removeprefix('Value error, ')}{got}"
