"""What planning reads of the archives in the model store: sizes, memory, limits."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ConfigError

if TYPE_CHECKING:
    from handlers.definition import Memory


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """One model, as far as planning needs to know it; each field is definition.json's."""

    name: str
    batch_sizes: tuple[int, ...]
    precisions: tuple[str, ...]
    memory: Mapping[str, Memory]
    lost: Mapping[str, str] = field(default_factory=dict)
    """Variants that were asked for and cannot be served → why."""
    limits: Collection[str] = ()
    """Names of the limits of a request that its handler knows."""
    freeze: bool = True
    token_lengths: tuple[int, ...] = ()
    """Widths of rows of texts; empty where all inputs have one size."""
    tokens_per_run: int | None = None
    """Rows × width that a run of more than one row may have; None is no limit."""
    max_texts_per_request: int = 1

    def count_shapes(self) -> int:
        """The most shapes of the input that a worker warms (handlers/shared/shapes.py): with a row for each
        text, as a model is served that cannot be packed."""
        return sum(
            rows == 1 or self.tokens_per_run is None or rows * length <= self.tokens_per_run
            for length in self.token_lengths or (0,)
            for rows in self.batch_sizes
        )


def read_definitions(
    store: Path, names: Sequence[str], build: str = "make models"
) -> tuple[ModelDefinition, ...]:
    """Of these models' archives; ConfigError names what is missing and how to `build` it."""
    there = sorted(file.stem for file in store.glob("*.mar"))
    if missing := [name for name in names if name not in there]:
        others = f", which has {', '.join(there)}" if there else ""
        raise ConfigError(
            f"no archive of {', '.join(missing)} in {store}{others}; "
            f"build it with: {build} MODELS={shlex.quote(' '.join(missing))}"
        )
    return tuple(_read(store / f"{name}.mar") for name in names)


def _read(archive: Path) -> ModelDefinition:
    # Here, because values are judged before pydantic is installed.
    from handlers.definition import NotOursError, read_packed

    try:
        packed = read_packed(archive).definition
    except NotOursError as problem:
        raise ConfigError(
            f"{archive}: not an archive of this kit: {problem}; "
            f"build it again: make models MODELS={archive.stem}"
        ) from problem
    if packed.name != archive.stem:
        raise ConfigError(f"{archive} is an archive of {packed.name}: rename it {packed.name}.mar")
    return ModelDefinition(
        **{name: getattr(packed, name) for name in ("name", "batch_sizes", "memory", "limits", "freeze")},
        precisions=tuple(packed.precisions),
        lost={name: one.lost for name, one in packed.variants.items() if one.lost},
        token_lengths=tuple(sorted(packed.model.get("token_lengths", ()))),
        tokens_per_run=packed.model.get("tokens_per_run"),
        max_texts_per_request=packed.model.get("max_texts_per_request", 1),
    )
