"""Makes a model without the random values that would be overwritten, and loads the archive's safetensors into
it; every key must find its place."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file

from handlers.definition import WEIGHTS_FILE
from handlers.shared.errors import LoadError

SHOWN_CHARACTERS = 400


@contextmanager
def without_random_values() -> Iterator[None]:
    """Parameters that modules make hold what their memory held: 0.2 s of 8 for a ResNet50 on one core. All of
    them must be loaded then, as `load_weights` does."""
    with ExitStack() as stack:
        for name in (one for one in dir(torch.nn.init) if one.endswith("_") and not one.startswith("_")):
            stack.enter_context(patch.object(torch.nn.init, name, lambda tensor, *_, **__: tensor))
        yield


def load_weights(model: torch.nn.Module, directory: Path) -> torch.nn.Module:
    """Copy `model.safetensors` into `model`; LoadError names the keys that do not fit."""
    state = OrderedDict(load_file(directory / WEIGHTS_FILE))
    # The keys are this version's; MNASNet asks.
    state._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        # PyTorch names every key, each in its line below the first; one tells what is wrong.
        lines = str(error).splitlines()
        lines = lines[1:] or lines or [type(error).__name__]
        first, others = " ".join(lines[0].split())[:SHOWN_CHARACTERS], len(lines) - 1
        raise LoadError(
            f"the weights do not fit the model that the handler makes: {first.rstrip('.')}"
            f"{f', and {others} more' if others else ''}",
            fix="check weights, labels and options of its model.yaml, then build it again: make models",
        ) from error
    return model
