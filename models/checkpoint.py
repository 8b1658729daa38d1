"""Finds the weights in what training scripts save: alone, beside an optimizer, under several prefixes."""

from __future__ import annotations

import pickle
import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Iterable
from typing import Any, BinaryIO

import torch

from models.errors import BuildError

State = dict[str, torch.Tensor]

NAMES = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
"""What training scripts call the weights beside other things (the first three: Lightning and timm, PyTorch's
tutorial, torchvision's references); the first that is there is taken."""
WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of keys that torch.compile, FSDP and activation checkpointing put in, at any depth."""
PARALLEL = "module."
"""Of DataParallel, DistributedDataParallel and AveragedModel, before all keys."""
AVERAGE_COUNT = "n_averaged"
"""AveragedModel's one entry that is no weight."""
PICKLES = 4
"""In a file of before torch 1.6: magic number, version, system, content."""
DEPTH = 3
"""Dictionaries within each other that are looked into; one may hold itself."""
SHOWN = 5
CAUSE_CHARACTERS = 120


class Foreign:
    """Stands in for whatever class or function a pickle names: takes what it is given, and does nothing."""

    def __new__(cls, *_args: object, **_named: object) -> Foreign:
        return super().__new__(cls)

    def __init__(self, *_args: object, **_named: object) -> None:
        self.held: object = None

    def __setstate__(self, held: object) -> None:
        self.held = held

    def __setitem__(self, key: object, value: object) -> None:
        """As a subclass of dict is filled."""


def make_stand_ins(source: BinaryIO) -> list[tuple[type[Foreign], str]]:
    """One for each name that a file of torch.save would import, as torch.serialization.safe_globals takes
    them; what torch knows as safe goes before. The pickles are read, not run."""
    names = {".".join(_translate(*name.split(" ", 1))) for name in _read_names(source)}
    source.seek(0)
    return [(type(name, (Foreign,), {}), name) for name in sorted(names)]


def _translate(module: str, name: str) -> tuple[str, str]:
    """From Python 2's names, which torch.save writes."""
    return NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))


def _read_names(source: BinaryIO) -> Iterable[str]:
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    yield from _list_globals(archive.open(name))
        return
    source.seek(0)
    for _ in range(PICKLES):
        yield from _list_globals(source)


def _list_globals(source: Any) -> Iterable[str]:
    try:
        for code, argument, _ in pickletools.genops(source):
            if code.name == "GLOBAL":
                yield str(argument)
    except (ValueError, IndexError):
        return  # torch.load says what is wrong with it


def is_torchscript(source: BinaryIO) -> bool:
    """Whether the file is one of torch.jit.save, which holds code."""
    try:
        with zipfile.ZipFile(source) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:
        return False
    finally:
        source.seek(0)


def load_tensors(source: BinaryIO, name: str) -> Any:
    """What the file holds; its classes and functions are stood in for, and its code is never run."""
    if is_torchscript(source):
        raise BuildError(
            f"{name} is a TorchScript file, which holds code; save its weights: "
            f'torch.save(torch.jit.load("{name}").state_dict(), "weights.pth")'
        )
    with torch.serialization.safe_globals(make_stand_ins(source)):
        return torch.load(source, map_location="cpu", weights_only=True)


def describe_failure(name: str, error: Exception) -> str:
    """For what is no file of weights at all, without torch's advice to read it as code."""
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, pickle.UnpicklingError):
        # What torch.load's unpickler said, before torch.load wrapped it in its advice.
        cause = str(error.__context__ or "").split(". ")[0]
    if not cause or "weights_only" in cause:
        cause = "it is no file of torch.save"
    return (
        f"{name} cannot be read as weights ({' '.join(cause.split())[:CAUSE_CHARACTERS]}); "
        'save it with torch.save(model.state_dict(), "weights.pth") or as safetensors'
    )


def pick_tensors(content: Any, *, name: str) -> tuple[State, str]:
    """(the state dict in what a file holds, what must be said of the choice); BuildError says what it holds
    instead."""
    note = ""
    for _ in range(DEPTH):
        if not _is_state(content):
            content, note = _open(content, name)
    if not _is_state(content):
        raise _describe(content, name)
    return _unwrap(content), note


def _open(content: Any, name: str) -> tuple[Any, str]:
    """One level further in."""
    if not isinstance(content, dict):
        raise _describe(content, name)
    states = {key: value for key, value in content.items() if _is_state(value)}
    named = [key for key in NAMES if key in states] or list(states)
    if not named:
        inner = [content[key] for key in NAMES if isinstance(content.get(key), (dict, Foreign))]
        if not inner:
            raise _describe(content, name)
        return inner[0], ""
    if len(named) > 1 and named[0] not in NAMES:
        raise BuildError(
            f"{name} holds several state dicts: {', '.join(map(str, named[:SHOWN]))}; save the one to be "
            f'served: torch.save(checkpoint["{named[0]}"], "weights.pth")'
        )
    taken = named[0]
    keys = _unwrap(states[taken]).keys()
    same = [str(key) for key, state in states.items() if key != taken and _unwrap(state).keys() == keys]
    return states[taken], _tell_choice(name, str(taken), same)


def _tell_choice(name: str, taken: str, others: list[str]) -> str:
    if not others:
        return ""
    return (
        f"{name} holds {taken} and {', '.join(others[:SHOWN])} of the same model: {taken} is served; for the "
        f'other: torch.save(checkpoint["{others[0]}"], "weights.pth"), and give that file'
    )


def _unwrap(state: State) -> State:
    """Without what wrappers of a model put before and into its keys."""
    keys = {key: ".".join(part for part in key.split(".") if part not in WRAPPERS) for key in state}
    weights = {old: key for old, key in keys.items() if key != AVERAGE_COUNT}
    while weights and all(key.startswith(PARALLEL) for key in weights.values()):
        keys = weights = {old: key.removeprefix(PARALLEL) for old, key in weights.items()}
    if len({*keys.values()}) < len(keys):
        return state
    return {key: state[old] for old, key in keys.items()}


def _is_state(content: Any) -> bool:
    return isinstance(content, dict) and bool(content) and all(_is_entry(*item) for item in content.items())


def _is_entry(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)


def _describe(content: Any, name: str) -> BuildError:
    model = next((one for one in (content, *_values(content)) if _is_module(one)), None)
    if model is not None:
        return BuildError(
            f"{name} holds a whole pickled model ({type(model).__name__}), which only its own code can open; "
            'save its weights where it was trained: torch.save(model.state_dict(), "weights.pth")'
        )
    if isinstance(content, dict):
        wrong = [
            f"{key!r}: {type(value).__name__}" for key, value in content.items() if not _is_entry(key, value)
        ]
        held = f"{{{', '.join(wrong[:SHOWN])}}}"
    else:
        held = f"a {type(content).__name__}"
    return BuildError(
        f"{name} holds no state dict, which is tensors by name: got {held}; "
        'save it with torch.save(model.state_dict(), "weights.pth")'
    )


def _values(content: Any) -> Iterable[Any]:
    return content.values() if isinstance(content, dict) else ()


def _is_module(content: Any) -> bool:
    return isinstance(content, Foreign) and isinstance(content.held, dict) and "_modules" in content.held
