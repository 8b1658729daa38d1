"""The container's main program: the server in the foreground, planned for the container's limits.

Settings are `KIT_…` variables and a mounted /opt/kit/kit.toml. `reload` plans anew and moves there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from config.errors import ConfigError
from config.proxy import INSTANCE_NAMES, render_address
from config.settings import read_settings, split_words
from config.sources import read_sources
from server import cli
from server.rundir import RunDir

RUN_DIR = Path("/run/kit")
"""The one writable folder."""
STORES = (Path("/model-store"), Path("/mnt/models"))
"""Folders of archives; into the other one KServe puts what a service's storageUri names."""
METRICS_PORT = 8082
SECRET = Path("/run/secrets/token")
"""Where Docker, Podman and Compose put a secret named `token`."""
USAGE_ERROR = 2


def find_store() -> Path:
    """The first of STORES that has an archive; else the first."""
    return next((folder for folder in STORES if any(folder.glob("*.mar"))), STORES[0])


def make_arguments() -> list[str]:
    """The container's own settings; others are from environment and kit.toml. ConfigError: no archive."""
    given = {name: value for values in read_sources().values() for name, value in values.items() if value}
    store, host = find_store(), "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    own = {"HOST": host, "METRICS": render_address(host, METRICS_PORT)}
    own = {name: value for name, value in own.items() if name not in given}
    arguments = [f"{name}={value}" for name, value in own.items()]
    arguments += ["INSECURE=1", f"MODEL_STORE={store}", f"RUN_DIR={RUN_DIR}"]
    arguments += [f"TOKEN_FILE={SECRET}"] if SECRET.exists() else []
    named = given.get("MODELS", "")
    there = sorted(file.stem for file in store.glob("*.mar"))
    words = (split_words(named) if isinstance(named, str) else named) or there
    missing = [name for name in words if name not in there and not name.endswith(".mar")]
    if missing or not words:
        what = f"no archive of {', '.join(missing)}" if missing else "no archive"
        raise ConfigError(
            f"{what} in {' or '.join(map(str, STORES))}: got {', '.join(there) or 'nothing'}; mount a folder "
            'with archives (-v "$PWD/model-store:/model-store:ro"), or bake them in (--build-arg '
            'MODELS="resnet50 bert")'
        )
    return [*arguments, *([] if named else [f"MODELS={' '.join(there)}"])]


AS_ENTRY = (
    r"""/^{/b; s/[[:cntrl:]]/ /g; s/[\"]/\&/g; s/.*/{"level":"INFO","source":"console","message":"&"}/"""
)
"""For sed, where LOG=json: what HAProxy and the JVM print themselves."""


def pass_logs_on(run: RunDir, log: str) -> None:
    """What is written to files, to standard output, too, while this process lives."""
    parts = [run.instance(name) for name in INSTANCE_NAMES]
    logs = [file for part in parts for file in (part.server_log, part.model_log, part.console_log)]
    # Files that come later are read from their beginning, those of an earlier run are left out.
    tail = ["tail", "--follow=name", "--retry", "---disable-inotify", "--lines=0", f"--pid={os.getpid()}"]
    tail += ["--quiet"] * (log == "json")
    files = [run.request_log, run.proxy_log, *logs]
    output = subprocess.PIPE if log == "json" else None
    told = subprocess.Popen([*tail, *files], stdout=output, stderr=subprocess.DEVNULL)
    if log == "json":
        subprocess.Popen(["sed", "--unbuffered", AS_ENTRY], stdin=told.stdout)


def main(words: Sequence[str]) -> int:
    """Of a missing archive 2, of a reload its own; else it becomes the server."""
    try:
        arguments = make_arguments()
        settings = read_settings(arguments)
    except ConfigError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return USAGE_ERROR
    if words == ["reload"]:
        return cli.main(["reload", "--built", *arguments])
    run = RunDir.at(RUN_DIR)
    run.failure.unlink(missing_ok=True)  # of an earlier run in the same volume
    pass_logs_on(run, settings.log)
    server = ["-m", "server", "serve", "--built", "--hide-token", "FOREGROUND=1", *arguments]
    return os.execv(sys.executable, [sys.executable, *server])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
