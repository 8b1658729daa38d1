"""Generators on other machines: each gets the job from here and runs as a worker of Locust's master.

Everything listens on loopback, as the job holds a token; tunnels (ssh -L) bring the ports to the others.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from loadtest.drivers.locust import LOCUSTFILE, ROOT, Crew, locust_environment
from loadtest.errors import LoadTestError

MASTER_PORT = 5557
"""Locust's own default; the job is offered on the port after it."""
JOB_PORT = 5558
POLL_SECONDS = 0.5
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def pack_job(folder: Path, workers: int) -> bytes:
    """The files of a job's folder as JSON."""
    files = {file.name: base64.b64encode(file.read_bytes()).decode() for file in sorted(folder.iterdir())}
    return json.dumps({"workers": workers, "files": files}).encode()


def unpack_job(packed: bytes, folder: Path) -> int:
    """Write the files, plain names only; how many workers share the load."""
    raw = json.loads(packed)
    for name, content in raw["files"].items():
        if Path(name).name != name or name.startswith("."):
            raise LoadTestError(f"a job's files must have plain names: got {name!r}")
        (folder / name).write_bytes(base64.b64decode(content))
    return int(raw["workers"])


@contextlib.contextmanager
def offering(folder: Path, crew: Crew, port: int = JOB_PORT) -> Iterator[None]:
    """Offer the job while it runs, when generators elsewhere are waited for."""
    if not crew.remote:
        yield
        return
    packed = pack_job(folder, crew.processes)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(packed)))
            self.end_headers()
            self.wfile.write(packed)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def work(report: Callable[[str], None], port: int = JOB_PORT) -> None:
    """Take one job after the other, until interrupted."""
    report(f"waiting for jobs on 127.0.0.1:{port} (Ctrl-C ends it)")
    done = ""
    while True:
        packed = _fetch(port)
        digest = hashlib.sha256(packed).hexdigest() if packed else done
        if digest == done:
            time.sleep(POLL_SECONDS)
            continue
        done = digest
        code = _work_once(packed)
        report(f"job {digest[:8]} ended with {code}")


def _work_once(packed: bytes) -> int:
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        crew = Crew(processes=unpack_job(packed, Path(name)), remote=True)
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--worker"]
        command += ["--master-host", "127.0.0.1", "--master-port", str(MASTER_PORT)]
        return subprocess.run(
            command, cwd=ROOT, env=locust_environment(Path(name), crew), check=False
        ).returncode


def _fetch(port: int) -> bytes:
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bytes(answer.read())
    except OSError:  # nobody asks for work just now
        return b""
