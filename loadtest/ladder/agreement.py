"""How far a rung's answers are from eager FP32's, on a fixed sample of payloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.answers import find_best, is_near_tie, read_probabilities
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload
from loadtest.servers import Server
from server.errors import ApiError

SAMPLE = 32
AT_ONCE = 16
"""Enough to fill batches, so that what is compared was computed in one."""
TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """With eager FP32."""

    same: int
    """Answers whose best label is FP32's."""
    judged: int
    near_ties: int
    """Not judged: FP32's two best are closer than any other arithmetic tells apart."""
    largest_difference: float
    """Of a probability, over all answers."""


def ask(server: Server, folder: Path, payloads: Sequence[Payload]) -> list[Any]:
    """Each payload's answer by the server, which must run."""

    def predict(payload: Payload) -> Any:
        body = (folder / payload.file).read_bytes()
        return server.client.predict(server.model, body, payload.content_type, timeout_s=TIMEOUT_S)

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(predict, payloads))
    except ApiError as problem:
        raise LoadTestError(f"{server.name} must answer the sample: {problem}") from problem


def compare_answers(answers: Sequence[Any], fp32: Sequence[Any]) -> Agreement:
    """LoadTestError when a server's answers are none of its model's."""
    pairs = [(_read(got), _read(wanted)) for got, wanted in zip(answers, fp32, strict=True)]
    if not all(got and wanted for got, wanted in pairs):
        raise LoadTestError(f"an answer must have labels with probabilities: got {answers[0]!r:.200}")
    told_apart = [(got, wanted) for got, wanted in pairs if not is_near_tie(wanted)]
    return Agreement(
        same=sum(find_best(got) == find_best(wanted) for got, wanted in told_apart),
        judged=len(told_apart),
        near_ties=len(pairs) - len(told_apart),
        largest_difference=max(_find_difference(got, wanted) for got, wanted in pairs),
    )


def _read(answer: Any) -> dict[str, float]:
    """TorchServe's own image_classifier answers an object of labels, without a name around it."""
    return read_probabilities(answer) or read_probabilities({"probabilities": answer})


def _find_difference(got: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """An image model answers its best few: one left out has at most the least one's probability."""
    least = min(got.values())
    return max(abs(got.get(label, min(least, p)) - p) for label, p in wanted.items())
