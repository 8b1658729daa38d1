"""Reads a user's state dict without running code from it, and says which keys do not fit a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from handlers.definition import WEIGHTS_FILE
from models.checkpoint import State, describe_failure, pick_tensors
from models.errors import BuildError
from models.files import SUFFIXES, list_shards
from models.pickles import read_pickle

SHOWN = 3
"""Keys named in an error; the rest are counted."""
SHOWN_CHARACTERS = 200


def read_checkpoint(path: Path, *, allow_pickle: bool = False) -> tuple[State, str]:
    """(tensors by name, what a person must know of the choice) from safetensors or a file of torch.save: a
    state dict or a training script's checkpoint, or the shards that an index names; pickled code is never
    run."""
    shards = list_shards(path)
    if shards:
        states = [read_checkpoint(shard, allow_pickle=allow_pickle)[0] for shard in shards]
        return {name: tensor for state in states for name, tensor in state.items()}, ""
    if not path.name.endswith(SUFFIXES):
        raise BuildError(f"weights must be one of {', '.join(SUFFIXES)}: got {path.name}")
    try:
        if path.suffix == ".safetensors":
            return pick_tensors(load_file(path), name=path.name)
        return read_pickle(path, allowed=allow_pickle)
    except (BuildError, OSError):
        raise
    except Exception as error:
        raise BuildError(describe_failure(path.name, error)) from error


def save_weights(state: State, folder: Path) -> None:
    """As the archive's model.safetensors; tensors that share memory, which it rejects, each whole."""
    tensors = {key: value.contiguous().clone() for key, value in state.items()}
    save_file(tensors, folder / WEIGHTS_FILE)


def strip_prefix(state: State, model: torch.nn.Module, *, source: str) -> State:
    """Without what stands before all keys (`model.` of Lightning …), if they are the model's own then;
    BuildError where a whole model is there, and more beside it."""
    own = model.state_dict().keys()
    first = next(iter(own))
    for prefix in (key.removesuffix(first) for key in state if key.endswith(f".{first}")):
        inside = {key.removeprefix(prefix): one for key, one in state.items() if key.startswith(prefix)}
        if _list_weights(own ^ inside.keys()):
            continue
        others = [key for key in state if not key.startswith(prefix)]
        if others:
            raise BuildError(
                f"{source} holds {', '.join(sorted(others)[:SHOWN])} beside a whole model under {prefix!r}; "
                f"if that does without them, save it alone: torch.save({{key[{len(prefix)}:]: value "
                f'for key, value in state.items() if key.startswith("{prefix}")}}, "weights.pth")'
            )
        return inside
    return state


def load_state(model: torch.nn.Module, state: State, *, source: str, fix: str = "") -> None:
    """Load strictly; BuildError names missing and unexpected keys and wrong shapes, and ends with `fix`."""
    own = model.state_dict()
    fitting = OrderedDict(strip_prefix(state, model, source=source))
    # The model's own version, which MNASNet asks for; parts of a model take keys of any version.
    fitting._metadata = {"": own._metadata[""]}  # type: ignore[attr-defined]
    wrong = []
    for key in own.keys() & fitting.keys():
        if own[key].shape != fitting[key].shape:
            wrong.append(f"{key} is {tuple(fitting[key].shape)}, not {tuple(own[key].shape)}")
            fitting[key] = own[key]
    # By torch, because parts of a model may know keys of their earlier versions.
    try:
        found = model.load_state_dict(fitting, strict=False)
    except RuntimeError as error:  # of shapes behind such keys
        said = " ".join(str(error).split())[:SHOWN_CHARACTERS]
        raise BuildError(f"{source} does not fit the model: {said}") from error
    report = [
        _name_keys("wrong shapes", wrong),
        _name_keys("missing keys", _list_weights(found.missing_keys)),
        _name_keys("unexpected keys", found.unexpected_keys),
    ]
    if any(report):
        parts = [part for part in (*report, fix) if part]
        raise BuildError(f"{source} does not fit the model: {'; '.join(parts)}")


def _list_weights(keys: Iterable[str]) -> list[str]:
    """Counters of batches seen are no weights, and old files lack them."""
    return [key for key in keys if not key.endswith("num_batches_tracked")]


def _name_keys(what: str, keys: Sequence[str]) -> str:
    if not keys:
        return ""
    shown = ", ".join(sorted(keys)[:SHOWN])
    return f"{what}: {shown}" + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
