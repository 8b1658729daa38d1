"""Trained models as archives, and how right a worker's answers are: what tests of them share."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from handlers.backends.catalogue import DEFAULT
from handlers.definition import Definition, read_folder
from models.build import build_archive
from tests.models.training import Trained
from tests.models.worker import Worker

TRAINED = {"image": "digits", "text": "docstrings"}
"""Kind → the fixture."""
FLOOR = {"image": 0.95, "text": 0.88}
"""Least accuracy on held-out inputs; with the pinned versions the models reach 98 % and 92 %."""
ROWS = 7
"""Requests in a batch: no warmed size, so that every batch is cut."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An archive, and the folder it was unpacked to as TorchServe does."""

    archive: Path
    directory: Path

    @property
    def definition(self) -> Definition:
        return read_folder(self.directory)


def pack(
    model: Trained,
    folder: Path,
    backends: Sequence[str] = (DEFAULT,),
    precisions: Sequence[str] | None = None,
) -> Packed:
    """Build the archive as `make models WEIGHTS=… CALIBRATION=… EVAL=…` does, and unpack it."""
    how = {"backends": backends, "precisions": precisions}
    assert build_archive(model.definition, model.request, store=folder, data=model.data, **how)
    archive = folder / f"{model.definition.name}.mar"
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "unpacked")
    return Packed(archive=archive, directory=folder / "unpacked")


def measure_accuracy(worker: Worker, model: Trained) -> float:
    pairs = zip(worker.answers, model.answers, strict=True)
    return float(np.mean([answer.label == right for answer, right in pairs]))
