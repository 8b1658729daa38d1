"""Makes the handler of a staged archive, as TorchServe would find it there."""

from __future__ import annotations

import http
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from handlers.definition import read_folder
from handlers.kit_handler import KitHandler
from handlers.replies import Reply
from models.errors import BuildError
from models.options import OPTIONS


def load_handler(staging: Path) -> KitHandler:
    """Of the class that definition.json names, configured by it."""
    definition = read_folder(staging)
    handler = find_handler(definition.handler, staging)()
    handler.configure(definition, staging)
    return handler


def find_handler(name: str, folder: Path) -> type[KitHandler]:
    """The one KitHandler class of a shipped handler file, or of `folder`/`name`.py; BuildError says what is
    there instead."""
    own = folder / f"{name}.py"
    # An unpacked archive has a copy of a shipped one, too.
    module = importlib.import_module(f"handlers.{name}") if name in OPTIONS else _import_file(own)
    # Imported classes do not count: the handler file holds exactly one of its own.
    kinds = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
    if len(kinds) != 1 or not issubclass(kinds[0], KitHandler):
        held = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise BuildError(
            f"{own} must hold one class, a KitHandler, for TorchServe takes no other: got {held}; put what "
            "else it needs into a file beside it"
        )
    return kinds[0]


def check_replies(replies: Sequence[Reply], what: str) -> None:
    """BuildError where one is an error: of a bug in the handler with its exception and line."""
    failed = next((one for one in replies if one.status != http.HTTPStatus.OK), None)
    if failed is None:
        return
    said = json.loads(failed.body)["error"]
    if failed.trace:
        frames = failed.trace.split(" > ")
        own = [one for one in frames if "/site-packages/" not in one and "/handlers/" not in one]
        file, _, line = (own or frames)[-1].rpartition("/")[2].partition(":")
        said = f"{failed.cause} ({file} line {line})"
    raise BuildError(f"{what} is rejected: {said}")


def _import_file(file: Path) -> ModuleType:
    """Under its own name, as TorchServe imports it, with the files beside it."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would be packed
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BuildError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.dont_write_bytecode = written
        sys.path.remove(str(file.parent))
    return module
