"""OpenVINO behind LitServe: what somebody serves who needs none of TorchServe, with the same weights."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from loadtest.drivers import ROOT
from loadtest.errors import LoadTestError
from loadtest.payloads import Payload, make_payloads
from loadtest.payloads.payload import JSON, PLAIN, make_text
from loadtest.servers.base import Running, Server, Testbed, wait_until
from server.launch import spawn
from server.rundir import MARK, RunDir
from server.stop import stop

PYTHON = ROOT / ".venv-current/bin/python"
APP = Path(__file__).with_name("openvino_litserve_app.py")
CALIBRATION = 32
START_SECONDS = 600
LEAST_AGREEMENT = 0.85
"""With eager FP32: resampling by Pillow differs by a level here and there, and INT8 is not held to the kit's
accuracy gate."""


def litserve_server(name: str, model: str, precision: str, *, batch: int, memory_mib: int = 0) -> Server:
    """A worker for each CPU, of one thread each; LoadTestError where the environment is not there."""

    @contextlib.contextmanager
    def start(testbed: Testbed) -> Iterator[Running]:
        if not PYTHON.exists():
            raise LoadTestError(
                "OpenVINO behind LitServe runs in .venv-current: got none; do: make benchmark-tools, "
                "or leave it out by --only"
            )
        testbed.say(f"  starting {name}")
        folder, port = testbed.place("litserve")
        run, archive = RunDir.at(folder), testbed.store / f"{model}.mar"
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
        (calibration := folder / "calibration").mkdir()
        for number, one in enumerate(make_payloads("", model=model, archives={model: archive})[:CALIBRATION]):
            (calibration / f"{number:02d}.json").write_bytes(wrap(one).body)
        workers = str(len(os.sched_getaffinity(0)))
        running = Running(
            name=name, models=(model,), url=f"http://127.0.0.1:{port}", path="/predict", run=run,
            archives={model: archive}, wrap=wrap, least_agreement=LEAST_AGREEMENT,
            how=f"OpenVINO {precision.upper()} behind LitServe, {workers} workers, batch {batch}",
        )  # fmt: skip
        try:
            _build(folder, precision, workers, str(batch))
            command = _command(folder, str(port), precision, workers, str(batch))
            spawn(command, folder, {**os.environ, MARK: str(run.path)}, folder / "console.log")
            wait_until(running, lambda: _is_ready(running), START_SECONDS)
            yield running
        finally:
            running.resume()
            stop(run)

    return Server(name=name, open=start, memory_mib=memory_mib)


def wrap(payload: Payload) -> Payload:
    """As the app takes it, JSON: texts, and the bytes of images as base64."""
    if payload.content_type == JSON:
        return payload
    if payload.content_type == PLAIN:
        return make_text(payload.name, payload.body.decode(), model=payload.model)
    body = json.dumps({"image": base64.b64encode(payload.body).decode()}).encode()
    return replace(payload, body=body, content_type=JSON)


def _command(folder: Path, *words: str) -> list[str]:
    return [str(PYTHON), str(APP), str(folder), *words]


def _build(folder: Path, *words: str) -> None:
    done = subprocess.run(
        _command(folder, "build", *words), cwd=folder, capture_output=True, text=True, check=False,
        timeout=START_SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise LoadTestError(f"the graph for LitServe cannot be made: {done.stderr[-1500:]}")


def _is_ready(running: Running) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever http_proxy says
    with direct.open(f"{running.url}/health", timeout=5) as answer:
        return bool(answer.status == 200)
