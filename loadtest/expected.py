"""Finds the expected answers: computed from the archive in processes of their own, before any load.

What a server under test answers is no proof of what it should answer. So each payload is answered by the
archive's own handler twice, away from the server: at the precision that is served (the expected answer), and
in eager FP32 (whose labels the run must agree with). Only a server without an archive is asked itself.
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

from loadtest.answers import Expected, Tolerance
from loadtest.endpoint import ROOT, Endpoint
from loadtest.errors import LoadTestError
from loadtest.payload_sets import Payload
from server.api import Client
from server.archives import read_archive

FP32 = "fp32"
LONGEST_SECONDS = 900
SELF_TOLERANCE = Tolerance(relative=0.05, absolute=0.01)
"""Between a server's own answers: batches of other sizes sum in another order."""


def find_expected(
    endpoint: Endpoint, model: str, payloads: Sequence[Payload], cache: Path, report: Callable[[str], None]
) -> Expected:
    """From the archive; from the server itself where there is none."""
    archive = endpoint.archive(model)
    if archive is None:
        report("  expected answers: asked of the server itself, calmly (no archive to compute them from)")
        return _ask_server(endpoint, model, payloads)
    precision = endpoint.precision(model)
    known = read_archive(archive)
    answers = {
        one: _compute_once(archive, known.archive_id, one, payloads, cache, report)
        for one in dict.fromkeys((precision, FP32))
    }
    return Expected(
        source=f"the archive's own handler at {precision} in a separate process; labels against eager FP32",
        answers=tuple(answers[precision]),
        fp32=tuple(answers[FP32]),
        tolerance=Tolerance(**known.canary.tolerance[precision]),
    )


def _compute_once(
    archive: Path, archive_id: str, precision: str, payloads: Sequence[Payload], cache: Path,
    report: Callable[[str], None],
) -> list[Any]:  # fmt: skip
    """Kept by everything it depends on: archive, precision, payloads."""
    key = hashlib.sha256("".join([archive_id, precision, *(one.digest for one in payloads)]).encode())
    file = cache / f"{archive.stem}-{precision}-{key.hexdigest()[:16]}.json"
    if file.exists():
        return list(json.loads(file.read_text(encoding="utf-8")))
    report(f"  expected answers: {len(payloads)} payloads through {archive.name} at {precision}, once …")
    answers = compute(archive, precision, payloads)
    cache.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".part")
    scratch.write_text(json.dumps(answers), encoding="utf-8")
    scratch.replace(file)
    return answers


def compute(archive: Path, precision: str, payloads: Sequence[Payload]) -> list[Any]:
    """Each payload's answer by the unpacked archive in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kit-expected-") as name:
        folder = Path(name)
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        files = [folder / f"payload-{number}.body" for number in range(len(payloads))]
        for file, payload in zip(files, payloads, strict=True):
            file.write_bytes(payload.body)
        job = folder / "job.json"
        job.write_text(json.dumps({"precision": precision, "files": [str(file) for file in files]}))
        return _run_reference(archive, folder, job)


def _run_reference(archive: Path, folder: Path, job: Path) -> list[Any]:
    command = [sys.executable, "-m", "loadtest.reference", str(folder), str(job)]
    environment = {key: value for key, value in os.environ.items() if key != "TS_IPEX_ENABLE"}
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
        return list(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired as problem:
        raise LoadTestError(f"{archive.name} did not answer within {LONGEST_SECONDS} s") from problem
    except (IndexError, ValueError, TypeError) as problem:
        raise LoadTestError(
            f"{archive.name} cannot be run for its expected answers: {done.stderr.strip()[-500:]}"
        ) from problem


def _ask_server(endpoint: Endpoint, model: str, payloads: Sequence[Payload]) -> Expected:
    client = Client(inference_url=endpoint.url, management_url=endpoint.url, key_file=Path("/nonexistent"))
    answers = tuple(client.predict(model, one.body, one.content_type) for one in payloads)
    return Expected(
        source="the server's own answers, asked one by one before the load: no proof that they are right",
        answers=answers,
        fp32=None,
        tolerance=SELF_TOLERANCE,
        proof=False,
    )
