"""Reads a user's state dict without running code from it, and says which keys do not fit a model."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from models.errors import BuildError
from models.files import SUFFIXES, list_shards
from models.pickles import describe_failure, pick_tensors, read_pickle

SHOWN = 5
"""Keys named in an error; the rest are counted."""


def read_state(path: Path, *, allow_pickle: bool = False) -> dict[str, torch.Tensor]:
    """Tensors by name from safetensors, a `torch.save` file of tensors, or the shards that an index names;
    pickled code is never run."""
    shards = list_shards(path)
    if shards:
        states = [read_state(shard, allow_pickle=allow_pickle) for shard in shards]
        return {name: tensor for state in states for name, tensor in state.items()}
    if path.suffix not in SUFFIXES:
        raise BuildError(f"weights must be one of {', '.join(SUFFIXES)}: got {path.name}")
    try:
        if path.suffix == ".safetensors":
            return pick_tensors(load_file(path), name=path.name)
        return read_pickle(path, allowed=allow_pickle)
    except (BuildError, OSError):
        raise
    except Exception as error:
        raise BuildError(describe_failure(path.name, error)) from error


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
