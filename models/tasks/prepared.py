"""What a task prepares for its archive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from handlers.definition import Example
from models.definition import ModelDefinition
from models.errors import DownloadError
from models.progress import say

Source = TypeVar("Source")


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


def prefer_pretrained(
    definition: ModelDefinition, pretrained: Callable[[], Source], random: Callable[[], Source]
) -> Source:
    """WEIGHTS=auto: public weights, and random ones where they cannot be had, which is said, or where
    model.yaml names none."""
    if not definition.weights:
        return random()
    try:
        return pretrained()
    except DownloadError as error:
        say(f"  {definition.name}: pretrained weights cannot be had ({error})")
        return random()
