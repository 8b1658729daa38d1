"""How each kind of model gets its weights, labels and canary: one module a kind, one function `prepare`.

`prepare(definition, request, staging)` writes model.safetensors, labels.json, the canary's input
file and what else the handler of that kind reads into `staging`, and returns what it prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.definition import ModelDefinition
from models.kinds.prepared import Prepared
from models.request import WeightsRequest

RETRY_SECONDS = 2.0
"""How long an up-to-date archive may wait to hear whether better weights can be had by now."""
Prepare = Callable[[ModelDefinition, WeightsRequest, Path], Prepared]


def find_kind(name: str) -> Prepare:
    """The `prepare` function of a kind; imported late, torchvision and transformers being slow to."""
    if name == "image":
        from models.kinds.image import prepare
    else:
        from models.kinds.text import prepare
    return prepare


def fetch_pretrained(definition: ModelDefinition) -> None:
    """Bring a definition's public weights into the cache; DownloadError, soon, where they cannot be had."""
    from models.download import check_offered, fetch_checkpoint, locate_checkpoint
    from models.repository import fetch_repository, find_cached_repository, locate_repository

    if definition.kind == "text":
        if find_cached_repository(definition.pretrained) is None:
            check_offered(locate_repository(definition.pretrained), seconds=RETRY_SECONDS)
            fetch_repository(definition.pretrained)
        return
    from models.kinds.image import find_pretrained

    url = find_pretrained(definition).url
    if not locate_checkpoint(url).is_file():
        check_offered(url, seconds=RETRY_SECONDS)
        fetch_checkpoint(url, sha256=definition.pretrained_sha256)
