"""Finds the expected answers: computed from the archive in processes of their own, before any load.

What a server under test answers is no proof of what it should answer. So each payload is answered by the
archive's own handler twice, away from the server: at the precision that is served (the expected answer), and
in eager FP32 (whose labels the run must agree with). A server whose handler is not the kit's is asked itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from handlers.engines import ENGINES
from loadtest.answers.check import Expected, Tolerance, find_pairs_told_apart, read_probabilities
from loadtest.answers.reference import FP32, REFERENCE
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload
from loadtest.systems.system import ROOT, System
from server.archives import read_archive

LONGEST_SECONDS = 900
SELF_TOLERANCE = Tolerance(relative=0.05, absolute=0.01)
"""Between a server's own answers: batches of other sizes sum in another order."""
OWN = "the server's own answers, asked calmly before the load: no proof that they are right"
ARCHIVES = "the archive's own handler at {} in a separate process"
LABELS = "; labels against eager FP32"
AT_ONCE = 4
"""Calm: no queue grows, and a server that batches is not asked one by one for minutes."""
Say = Callable[[str], None]


def find_expected(system: System, payloads: Sequence[Payload], cache: Path, say: Say) -> Expected:
    """Of each payload, in order; equal ones are answered once."""
    different = {(one.model, one.digest): one for one in payloads}
    known: dict[tuple[str, str], tuple[Any, Tolerance, Any]] = {}
    for model in dict.fromkeys(one.model for one in payloads):
        group = {key: one for key, one in different.items() if one.model == model}
        rows = zip(*_find_answers(system, model, [*group.values()], cache, say), strict=True)
        known |= dict(zip(group, rows, strict=True))
    answers, tolerances, fp32 = zip(*(known[one.model, one.digest] for one in payloads), strict=True)
    precisions = ", ".join(dict.fromkeys(system.precision(model) for model, _ in known))
    source = OWN if system.plan is None else ARCHIVES.format(precisions)
    return Expected(
        source=source if None in fp32 else source + LABELS,
        answers=answers,
        tolerances=tolerances,
        fp32=None if None in fp32 else fp32,
        proof=system.plan is not None,
        pairs_told_apart=find_pairs_told_apart([row[:2] for row in known.values()]),
    )


def _find_answers(
    system: System, model: str, payloads: Sequence[Payload], cache: Path, say: Say
) -> tuple[list[Any], list[Tolerance], list[Any]]:
    """(answers, tolerances, answers of eager FP32 or None) of different payloads of one model."""
    archive = system.archives.get(model)
    fp32 = [None] * len(payloads)
    if archive is not None:
        fp32 = _compute_once(archive, REFERENCE, payloads, cache, say)
    if archive is None or system.plan is None:
        say(f"  expected answers: asked of {system.name} itself, calmly")
        own = _check_labels(system.name, payloads, system.ask(payloads, at_once=AT_ONCE))
        return own, [SELF_TOLERANCE] * len(payloads), fp32
    precision = system.precision(model)
    tolerance = Tolerance(**read_archive(archive).canary.tolerance[precision])
    variant = REFERENCE if precision == FP32 else system.variant(model)
    answers = _compute_once(archive, variant, payloads, cache, say)
    return answers, [tolerance] * len(payloads), fp32


def _check_labels(who: str, payloads: Sequence[Payload], answers: list[Any]) -> list[Any]:
    for payload, answer in zip(payloads, answers, strict=True):
        if not read_probabilities(answer):
            what = f"{who} must answer {payload.name} by labels with probabilities"
            raise LoadTestError(f"{what}: got {answer!r:.200}")
    return answers


def _compute_once(
    archive: Path, variant: str, payloads: Sequence[Payload], cache: Path, say: Say
) -> list[Any]:
    """Kept by everything it depends on: archive, engine and precision, payloads."""
    archive_id = read_archive(archive).archive_id
    key = hashlib.sha256("".join([archive_id, variant, *(one.digest for one in payloads)]).encode())
    file = cache / f"{archive.stem}-{variant.replace(' ', '-')}-{key.hexdigest()[:16]}.json"
    if file.exists():
        return list(json.loads(file.read_text(encoding="utf-8")))
    say(f"  expected answers: {len(payloads)} payloads through {archive.name} at {variant}, once …")
    answers = _check_labels(archive.name, payloads, compute(archive, variant, payloads))
    cache.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".part")
    scratch.write_text(json.dumps(answers), encoding="utf-8")
    scratch.replace(file)
    return answers


def compute(archive: Path, variant: str, payloads: Sequence[Payload]) -> list[Any]:
    """Each payload's answer by the unpacked archive in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kit-expected-") as name:
        folder = Path(name)
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        files = [folder / f"payload-{number}.body" for number in range(len(payloads))]
        for file, payload in zip(files, payloads, strict=True):
            file.write_bytes(payload.body)
        job = folder / "job.json"
        job.write_text(json.dumps({"variant": variant, "files": [str(file) for file in files]}))
        return _run_reference(archive, folder, job)


def _run_reference(archive: Path, folder: Path, job: Path) -> list[Any]:
    command = [sys.executable, "-m", "loadtest.answers.reference", str(folder), str(job)]
    switches = {engine.switch_variable for engine in ENGINES.values()}
    environment = {key: value for key, value in os.environ.items() if key not in switches}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS,
            check=False,
        )  # fmt: skip
        return list(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"{archive.name} did not answer within {LONGEST_SECONDS} s") from problem
    except (IndexError, ValueError, TypeError) as problem:
        raise LoadTestError(
            f"{archive.name} cannot be run for its expected answers: {done.stderr.strip()[-500:]}"
        ) from problem
