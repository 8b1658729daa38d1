"""Reads a user's state dict without running code from it, and says which keys do not fit a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from models.errors import BuildError
from models.files import SUFFIXES

SHOWN = 5
"""Keys named in an error; the rest are counted."""


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name from safetensors or a `torch.save` file of tensors; pickled code is never run."""
    if path.suffix not in SUFFIXES:
        raise BuildError(f"weights must be one of {', '.join(SUFFIXES)}: got {path.name}")
    try:
        state = load_file(path) if path.suffix == ".safetensors" else _load_tensors(path)
    except Exception as error:
        raise BuildError(
            f"{path.name} cannot be read as weights ({type(error).__name__}: {error}); "
            "save it with torch.save(model.state_dict(), …) or as safetensors"
        ) from error
    return _unwrap(state, path)


def _load_tensors(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _unwrap(state: Any, path: Path) -> dict[str, torch.Tensor]:
    # Training scripts often save {"state_dict": …} and DataParallel's "module." prefix.
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(_is_entry(*item) for item in state.items()):
        raise BuildError(
            f"{path.name} holds no state dict, which is tensors by name: got {_describe(state)}; "
            "save it with torch.save(model.state_dict(), …)"
        )
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def _is_entry(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)


def _describe(state: Any) -> str:
    if not isinstance(state, dict):
        return f"a {type(state).__name__}"
    wrong = [f"{key!r}: {type(value).__name__}" for key, value in state.items() if not _is_entry(key, value)]
    return f"{{{', '.join(wrong[:SHOWN])}}}"


def load_state(model: torch.nn.Module, state: dict[str, torch.Tensor], *, source: str) -> None:
    """Load strictly; BuildError names missing and unexpected keys and wrong shapes."""
    own = model.state_dict()
    wrong = [
        f"{key} is {tuple(state[key].shape)}, not {tuple(own[key].shape)}"
        for key in own.keys() & state.keys()
        if own[key].shape != state[key].shape
    ]
    # Counters of batches seen are no weights, and old files lack them.
    missing = [key for key in own.keys() - state.keys() if not key.endswith("num_batches_tracked")]
    report = [
        _name_keys("missing keys", missing),
        _name_keys("unexpected keys", list(state.keys() - own.keys())),
        _name_keys("wrong shapes", wrong),
    ]
    if any(report):
        raise BuildError(f"{source} does not fit the model: " + "; ".join(part for part in report if part))
    model.load_state_dict(state, strict=False)


def _name_keys(what: str, keys: list[str]) -> str:
    if not keys:
        return ""
    shown = ", ".join(sorted(keys)[:SHOWN])
    return f"{what}: {shown}" + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
