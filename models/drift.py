"""How far the fast preprocessing moves answers from torchvision's reference, on a folder of photographs.

`python -m models.drift ARCHIVE PHOTOS` prints it for a built archive, in FP32 eager, so that nothing but the
pixels differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from handlers.shared.classifier import Classifier
from handlers.shared.errors import LoadError, RequestError
from handlers.shared.images import decode_image
from handlers.shared.options import SWITCHES, LoadOptions
from handlers.shared.preprocessing import PREPROCESSINGS, Preprocessing, make_preprocessing
from handlers.shared.state import LoadState
from handlers.shared.steps import build_graph
from models.classifiers import load_classifier
from models.data import read_dataset
from models.errors import BuildError

EAGER = LoadOptions(precision="fp32", engine="eager", threads=None, off=frozenset(SWITCHES))


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What the fast preprocessing changes."""

    photos: int
    pixels: float
    """Share of 8-bit values that differ at all."""
    levels: int
    """Largest difference of one value, of 255."""
    agreement: float
    """Share of photographs with the same top-1 answer."""
    probability: float
    """Largest difference of any probability."""
    fast_ms: float
    """Median time to decode and pack one photograph."""
    reference_ms: float


def measure_drift(classifier: Classifier, photos: Path) -> Drift:
    """Both preprocessings over all photographs, through one eager model."""
    settings = classifier.definition.model
    if "size" not in settings:
        raise BuildError(
            f"{classifier.definition.name} takes no images: there is no preprocessing to compare"
        )
    bodies = read_dataset("image", photos).bodies
    state = LoadState(classifier=classifier, options=EAGER)
    build_graph(state)
    ways = {name: make_preprocessing(settings, way=name) for name in PREPROCESSINGS}
    results = {name: [_pass(state, way, body) for body in bodies] for name, way in ways.items()}
    return _compare(results)


def _pass(state: LoadState, way: Preprocessing, body: bytes) -> tuple[np.ndarray, np.ndarray, float]:
    """(pixels, probabilities, milliseconds) of one photograph."""
    started = time.perf_counter()
    sample = decode_image(body, way)
    inputs = way.pack([sample], channels_last=False)
    spent = 1000 * (time.perf_counter() - started)
    with torch.no_grad():
        logits = state.model(inputs).numpy()
    return sample.numpy().astype(int), torch.softmax(torch.from_numpy(logits), dim=1)[0].numpy(), spent


def _compare(results: dict[str, list[tuple[np.ndarray, np.ndarray, float]]]) -> Drift:
    fast, exact = (list(zip(*results[name], strict=True)) for name in ("fast", "reference"))
    pixels = np.abs(np.stack(fast[0]) - np.stack(exact[0]))
    p_fast, p_exact = np.stack(fast[1]), np.stack(exact[1])
    return Drift(
        photos=len(p_fast),
        pixels=float((pixels > 0).mean()),
        levels=int(pixels.max()),
        agreement=float((p_fast.argmax(axis=1) == p_exact.argmax(axis=1)).mean()),
        probability=float(np.abs(p_fast - p_exact).max()),
        fast_ms=float(np.median(fast[2])),
        reference_ms=float(np.median(exact[2])),
    )


def render_drift(name: str, drift: Drift) -> str:
    """One paragraph for the terminal."""
    return (
        f"{name}: fast against reference preprocessing on {drift.photos} photographs\n"
        f"  pixels: {drift.pixels:.2%} differ, by at most {drift.levels} of 255\n"
        f"  answers (FP32 eager): {drift.agreement:.1%} top-1 agreement, "
        f"probabilities within {drift.probability:.2g}\n"
        f"  time a photograph: {drift.fast_ms:.2f} ms, reference {drift.reference_ms:.2f} ms"
    )


def main() -> int:
    """Exit code: 0 measured, 1 it cannot be, 2 wrong arguments."""
    if len(sys.argv) != 3:
        print("usage: python -m models.drift ARCHIVE.mar FOLDER", file=sys.stderr)
        return 2
    archive, photos = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)
            classifier = load_classifier(Path(folder))
            print(render_drift(classifier.definition.name, measure_drift(classifier, photos)))
    except (BuildError, LoadError, RequestError, OSError, zipfile.BadZipFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
