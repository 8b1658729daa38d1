"""MiniLM's embeddings through workers of each backend that is here, beside transformers' own."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from config.installed import read_installed
from handlers.backends.catalogue import BACKENDS, INT8, SETS, find_set, name_variant
from handlers.definition import read_folder
from models.build import build_archive
from models.definition import read_definition
from models.new import write_model
from models.request import DataRequest, WeightsRequest
from tests.models.docstrings import unpack_encoder, write_texts
from tests.models.test_text_tasks import embed_all
from tests.models.worker import ask_replies

HERE = [
    name
    for name in SETS[find_set()]
    if name not in read_installed(Path(sys.prefix)).missing_backends
    and all(map(shutil.which, BACKENDS[name].tools))
    and INT8 in BACKENDS[name].flags
]
VARIANTS = [(backend, one) for backend in HERE for one in ("fp32", INT8)]
INPUTS, ROWS = 160, 8
LEAST_COSINE = {"fp32": 0.9999, "int8": 0.99}
"""Mean, to transformers' own in FP32."""
LEAST_RANK = {"fp32": 0.9999, "int8": 0.97}
"""Spearman's correlation of all pairs' similarities."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[str]:
    return [text for _, text in write_texts(tmp_path_factory.mktemp("texts"))["evaluation"]][:INPUTS]


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> tuple[Path, Path]:
    """MiniLM's folder, and the archive that `make model` and a build made of it."""
    folder = tmp_path_factory.mktemp("minilm")
    for part, examples in write_texts(folder).items():
        (folder / f"{part}.txt").write_text("\n".join(text for _, text in examples), encoding="utf-8")
    source = unpack_encoder(folder / "minilm")
    write_model(source, folder=folder / "models")
    data = DataRequest(calibration=folder / "calibration.txt", evaluation=folder / "evaluation.txt")
    definition = read_definition("minilm", folder / "models")
    asked = {"precisions": ["fp32", INT8], "backends": HERE}
    build_archive(definition, WeightsRequest(source=""), store=folder, data=data, **asked)
    with zipfile.ZipFile(folder / "minilm.mar") as archive:
        archive.extractall(folder / "unpacked")
    return source, folder / "unpacked"


@pytest.fixture(scope="module")
def own(packed, texts) -> np.ndarray:
    return embed_all(packed[0], texts, pooling="mean", normalize=True, longest=256)


def rank_pairs(vectors: np.ndarray) -> np.ndarray:
    similarities = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    return similarities.argsort().argsort().astype(float)


@pytest.mark.parametrize(("backend", "precision"), VARIANTS)
def test_embeddings_are_near_and_rank_as_transformers_own(packed, own, texts, backend, precision):
    requests = [text.encode() for text in texts]
    replies = ask_replies(packed[1], precision=precision, backend=backend, requests=requests, rows=ROWS)
    vectors = np.array([reply["embedding"] for reply in replies])
    cosine = (vectors * own).sum(axis=1) / np.linalg.norm(vectors, axis=1)
    rank = float(np.corrcoef(rank_pairs(vectors), rank_pairs(own))[0, 1])
    figures = read_folder(packed[1]).find_accuracy(name_variant(backend, precision))
    seen = f"cosine {cosine.mean():.5f} (least {cosine.min():.4f}), rank {rank:.5f}"
    print(f"{backend} {precision}: {seen}; the gate saw {figures}")
    assert cosine.mean() >= LEAST_COSINE[precision]
    assert rank >= LEAST_RANK[precision]
