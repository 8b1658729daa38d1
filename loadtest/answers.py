"""Validates answers: right within the archive's tolerance of the precision served, and no other payload's.

What a server under test answers is no proof of what it should answer. So each payload is answered by the
archive's own handler twice, away from the server and before any load: at the precision that is served (the
expected answer), and in eager FP32 (whose labels a classifier must answer). Plain TorchServe, with another
preprocessing, is held to the labels alone. Of other servers nothing is known: their status counts alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from handlers.answers import Tolerance, find_best, find_fault, read_scores
from handlers.backends.catalogue import BACKENDS
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload, write_manifest
from loadtest.rows import NO_ANSWER, find_good
from loadtest.servers.base import Running
from loadtest.servers.inprocess import WORKER
from server.archives import find_tolerance, read_archive

EXAMPLES = 3
"""Wrong answers that are shown; one bug mostly shows the same way each time."""
NEAR_TIE = 0.02
"""Labels this close in FP32 may change places in any other arithmetic."""
MOST_COMPARED = 64
"""Payloads whose pairs are compared: all pairs of hundreds would take seconds."""
LONGEST_SECONDS = 900
FP32, REFERENCE = "fp32", "eager fp32"
OFF = ("channels_last", "trace", "freeze")
"""Every step of a load that changes how the model computes."""
NOT_VALIDATED = "answers not validated"
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What each payload's answer must be."""

    source: str
    """Where it comes from, in words for the report."""
    fp32: tuple[Any, ...]
    """Of each payload, by the eager FP32 model."""
    answers: tuple[tuple[Any, Tolerance], ...] | None
    """Of each payload, at the precision that is served; None where the labels alone are validated."""
    distinguishable_pairs: float | None = None
    """Share of pairs of payloads whose expected answers differ so much that a mix-up would be seen; None for
    a single payload, and where the labels alone are validated."""


@dataclass(frozen=True, kw_only=True)
class AnswerCheck:
    """What came of validating every answer of a window."""

    checked: int = 0
    wrong: int = 0
    examples: tuple[str, ...] = ()
    source: str = NOT_VALIDATED
    labels_compared: int = 0
    """Answers of classifiers whose label was compared with that of eager FP32, near ties left out."""
    labels_same: int = 0
    largest_difference: float | None = None
    """Of a probability to eager FP32's, over all answers; None where no classifier answered."""
    distinguishable_pairs: float | None = None


def read_bare(answer: Any, labels: Any) -> list[dict[str, float]]:
    """As `read_scores`; TorchServe's own image_classifier answers an object of probabilities alone."""
    bare = read_scores({"probabilities": answer}, labels)
    return bare if all(0 <= p <= 1 for p in bare[0].values()) else [{}, bare[1]]


def find_difference(actual: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """The largest of a probability; one left out of the best few has at most the least one's."""
    least = min(actual.values())
    return max(abs(actual.get(label, min(least, p)) - p) for label, p in wanted.items())


def check_answers(rows: pd.DataFrame, answers: Sequence[str], expected: Expected | None) -> AnswerCheck:
    """Validate every answer that was kept; equal ones to one payload are compared once."""
    if expected is None:
        return AnswerCheck()
    kept = rows[find_good(rows) & (rows["answer"] != NO_ANSWER).to_numpy()]
    checked = wrong = validated = same = 0
    examples, differences = [], []
    for (payload, number), count in kept.groupby(["payload", "answer"]).size().items():
        answer, reference = _parse(answers[number]), expected.fp32[payload]
        actual, wanted = read_scores(answer, reference)
        checked += count
        if expected.answers is not None:
            fault = find_fault(answer, *expected.answers[payload])
        else:
            actual, wanted = (actual, wanted) if actual else read_bare(answer, reference)
            fault = None if actual else f"no answer of this model: {json.dumps(answer)[:120]}"
        if fault:
            wrong += count
            examples.append(f"payload {payload}: {fault}")
        if actual and wanted:
            differences.append(find_difference(actual, wanted))
        ranked = sorted(wanted.values(), reverse=True)
        if len(ranked) == 1 or (ranked and ranked[0] - ranked[1] > NEAR_TIE):
            validated += count
            same += count if actual and find_best(actual) == find_best(wanted) else 0
    return AnswerCheck(
        checked=int(checked),
        wrong=int(wrong),
        examples=tuple(examples[:EXAMPLES]),
        source=expected.source,
        labels_compared=int(validated),
        labels_same=int(same),
        largest_difference=max(differences, default=None),
        distinguishable_pairs=expected.distinguishable_pairs,
    )


def add_checks(checks: Sequence[AnswerCheck]) -> AnswerCheck:
    """Of several windows together."""
    differences = [one.largest_difference for one in checks if one.largest_difference is not None]
    return AnswerCheck(
        checked=sum(one.checked for one in checks),
        wrong=sum(one.wrong for one in checks),
        examples=tuple(example for one in checks for example in one.examples)[:EXAMPLES],
        source="; ".join(dict.fromkeys(one.source for one in checks)),
        labels_compared=sum(one.labels_compared for one in checks),
        labels_same=sum(one.labels_same for one in checks),
        largest_difference=max(differences, default=None),
        distinguishable_pairs=min(
            (p for one in checks if (p := one.distinguishable_pairs) is not None), default=None
        ),
    )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def find_distinguishable_pairs(known: Sequence[tuple[Any, Tolerance]]) -> float | None:
    """Over evenly chosen payloads; None for a single one."""
    chosen = [known[number] for number in range(0, len(known), -(-len(known) // MOST_COMPARED))]
    pairs = list(itertools.permutations(chosen, 2))
    seen = [find_fault(answer, expected, tolerance) for (answer, _), (expected, tolerance) in pairs]
    return sum(fault is not None for fault in seen) / len(pairs) if pairs else None


def find_expected(running: Running, payloads: Sequence[Payload], cache: Path, say: Say) -> Expected | None:
    """Of each payload, in order; None where no archive of the kit tells what is right."""
    if any(one.model not in running.archives for one in payloads):
        return None
    kit = running.plan is not None
    fp32: dict[int, Any] = {}
    answers: dict[int, tuple[Any, Tolerance]] = {}
    for model in dict.fromkeys(one.model for one in payloads):
        places = [number for number, one in enumerate(payloads) if one.model == model]
        asked, archive = [payloads[number] for number in places], running.archives[model]
        fp32 |= zip(places, _compute_once(archive, REFERENCE, asked, cache, say), strict=True)
        if kit:
            precision = running.precision(model)
            tolerance = find_tolerance(read_archive(archive).definition, precision)
            variant = REFERENCE if precision == FP32 else running.variant(model)
            own = _compute_once(archive, variant, asked, cache, say)
            answers |= zip(places, [(one, tolerance) for one in own], strict=True)
    in_order = tuple(answers[number] for number in range(len(payloads))) if kit else None
    different = {payloads[number].digest: one for number, one in answers.items()}
    precisions = ", ".join(dict.fromkeys(running.precision(one.model) for one in payloads))
    own_source = f"the archive's own handler at {precisions} in a separate process; "
    return Expected(
        source=(own_source if kit else "") + "labels by eager FP32",
        fp32=tuple(fp32[number] for number in range(len(payloads))),
        answers=in_order,
        distinguishable_pairs=find_distinguishable_pairs([*different.values()]) if kit else None,
    )


def _compute_once(
    archive: Path, variant: str, payloads: Sequence[Payload], cache: Path, say: Say
) -> Iterator[Any]:
    """Kept by archive, backend, precision and payloads, which they depend on. Equal ones are asked once."""
    different = {one.digest: one for one in payloads}
    key = hashlib.sha256("".join([read_archive(archive).archive_id, variant, *different]).encode())
    file = cache / f"{archive.stem}-{variant.replace(' ', '-')}-{key.hexdigest()[:16]}.json"
    if not file.exists():
        say(f"  expected answers: {len(different)} payloads through {archive.name} at {variant}, once …")
        computed = compute(archive, variant, [*different.values()])
        cache.mkdir(parents=True, exist_ok=True)
        scratch = file.with_suffix(".part")
        scratch.write_text(json.dumps(computed), encoding="utf-8")
        scratch.replace(file)
    known = dict(zip(different, json.loads(file.read_text(encoding="utf-8")), strict=True))
    return (known[one.digest] for one in payloads)


def compute(archive: Path, variant: str, payloads: Sequence[Payload]) -> list[Any]:
    """Each payload's answer by the unpacked archive in a process of its own: the archive brings its code, and
    eager FP32 must not have a backend loaded beside it."""
    backend, precision = variant.split()
    switches = {backend.switch_variable for backend in BACKENDS.values()}
    environment = {key: value for key, value in os.environ.items() if key not in switches}
    with tempfile.TemporaryDirectory(prefix="kit-expected-") as name:
        folder = Path(name)
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        definition = json.loads((folder / "definition.json").read_text(encoding="utf-8"))
        # One request at a time is asked here, so no other batch size needs warming.
        (folder / "definition.json").write_text(
            json.dumps({**definition, "batch_sizes": [1]}), encoding="utf-8"
        )
        # A backend may compute wrongly when the number of threads changes: it is set once, before the load.
        options = {"backend": backend, "precision": precision, "threads": len(os.sched_getaffinity(0)),
                   "off": OFF if variant == REFERENCE else ()}  # fmt: skip
        environment["CPU_KIT_OPTIONS"] = json.dumps({definition["name"]: options})
        job = {"model": definition["name"], "directory": name, "batch_size": 1}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        write_manifest(payloads, folder / "payloads")
        asked = [(str(folder / "payloads" / f"{number:04d}.body"), one.content_type)
                 for number, one in enumerate(payloads)]  # fmt: skip
        try:
            done = subprocess.run(
                [sys.executable, str(WORKER), str(folder / "job.json")], input=json.dumps({"ask": asked}),
                cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS,
                check=False,
            )  # fmt: skip
            answers = json.loads(done.stdout.splitlines()[1])
        except subprocess.TimeoutExpired as problem:
            raise LoadTestError(f"{archive.name} did not answer within {LONGEST_SECONDS} s") from problem
        except (ValueError, IndexError) as problem:
            why = done.stderr.strip()[-500:]
            raise LoadTestError(f"{archive.name} cannot be run for its expected answers: {why}") from problem
    for one, (status, answer) in zip(payloads, answers, strict=True):
        if status != 200:
            raise LoadTestError(f"{archive.name} must answer {one.name}: got {status} {answer:.200}")
    return [_parse(answer) for _, answer in answers]
