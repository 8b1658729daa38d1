"""What a kind of model prepares for its archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from models.definition import ModelDefinition
from models.errors import DownloadError
from models.progress import say

Source = TypeVar("Source")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a kind put into the staging folder, for the archive's definition.json and canary.json."""

    weights: str
    """Where the weights come from, as status and describe say it."""
    model: dict[str, Any]
    """The definition's `model` section with what only the build knows (class count, padding id …)."""
    canary_file: str
    canary_content_type: str
    distributions: tuple[str, ...]
    """What a worker must have installed to load the archive, besides torch and safetensors."""
    notes: tuple[str, ...] = field(default_factory=tuple)


def prefer_pretrained(
    definition: ModelDefinition, pretrained: Callable[[], Source], random: Callable[[], Source]
) -> Source:
    """WEIGHTS=auto: public weights, and random ones where they cannot be had, which is said."""
    try:
        return pretrained()
    except DownloadError as error:
        say(f"  {definition.name}: pretrained weights cannot be had ({error})")
        return random()
