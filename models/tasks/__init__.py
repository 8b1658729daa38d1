"""How each handler gets its weights and example: one module a task.

Each has `prepare(definition, request, staging)`, which writes model.safetensors, the example's body and what
else the handler reads into `staging`, and `fetch_public(definition)`, which brings public weights into the
cache soon or raises DownloadError.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from models.definition import ModelDefinition


def find_task(definition: ModelDefinition) -> ModuleType:
    """Imported late, torchvision and transformers being slow to."""
    shipped = "image" if definition.handler == "image_classifier" else "text"
    return import_module(f"{__name__}.{'own' if definition.is_own else shipped}")
