"""What a task prepares for its archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from handlers.definition import Example
from models.definition import ModelDefinition
from models.errors import DownloadError
from models.progress import say
from models.request import WeightsRequest

Source = TypeVar("Source")
Maker = Callable[[ModelDefinition, WeightsRequest], Source]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a task put into the staging folder, for the archive's definition.json."""

    weights: str
    """Where the weights come from, as status and describe say it."""
    model: dict[str, Any]
    """The definition's `options` with what only the build knows (class count, padding id …)."""
    example: Example
    """The sample request, without the answer yet."""
    labels: Sequence[str] = ()
    """Class names in the order of the model's outputs."""
    notes: tuple[str, ...] = field(default_factory=tuple)


RANDOM_NOTE = (
    "random weights: the labels mean nothing; give WEIGHTS=pretrained or WEIGHTS=PATH for real answers"
)


def obtain(
    definition: ModelDefinition, request: WeightsRequest, makers: Mapping[str, Maker[Source]]
) -> Source:
    """By the maker for WEIGHTS: `pretrained`, `random`, `path`. `auto` takes public weights, and random ones
    where they cannot be had, which is said, or where model.yaml names none."""
    source = request.source
    if source == "auto":
        source = "pretrained" if definition.weights else "random"
    try:
        return makers[source](definition, request)
    except DownloadError as error:
        if request.source != "auto":
            raise
        say(f"  {definition.name}: pretrained weights cannot be had ({error})")
        return makers["random"](definition, request)
