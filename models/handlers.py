"""Makes the handler of a staged archive, as TorchServe would find it there."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from handlers.kit_handler import KitHandler
from handlers.shared.definition import DEFINITION_FILE, read_definition


def load_handler(staging: Path) -> KitHandler:
    """The one class of the handler file that definition.json names, configured by it."""
    name = json.loads((staging / DEFINITION_FILE).read_text(encoding="utf-8"))["handler"]
    module = importlib.import_module(f"handlers.{name}")
    # Imported classes do not count: the handler file holds exactly one of its own.
    kinds = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
    handler: KitHandler = kinds[0]()
    handler.configure(read_definition(staging))
    return handler
