"""Runs the image: not root, read-only, without capabilities, with the limits that were asked for."""

from __future__ import annotations

import shlex
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from docker.image.engines import Engine, ImageError

CONTAINER_PORT = 8080
STOP_TIMEOUT_S = 60
"""docker stop waits so long: STOP_SECONDS (45) for the answers, and some for the rest."""
PIDS = 2048
"""Java, a launcher and a worker with a thread per core for each rank; a fork bomb ends here."""
KNOBS = (
    *("MODELS", "PRECISION", "BACKEND", "PROFILE", "WORKERS", "CORES_PER_WORKER", "ALLOCATOR", "OPENMP"),
    *("BATCH", "DELAY_MS", "QUEUE", "SLO_P99_MS", "TUNED"),
    *("FRONT", "INSTANCES", "CORES", "DEADLINE_MS"),
)
FILES = {
    "TOKEN_FILE": ("token", "make one: openssl rand -base64 24 > {}"),
    "TLS_CERT": ("tls-cert", "give TLS_CERT and TLS_KEY a certificate and its key (PEM)"),
    "TLS_KEY": ("tls-key", "give TLS_CERT and TLS_KEY a certificate and its key (PEM)"),
}
"""Knobs that are files: their names in SECRETS, and what to do where one is missing."""
SECRETS = "/run/secrets"
"""Where Docker, Podman and Compose put secrets."""
SECURITY = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    f"--pids-limit={PIDS}",
)
BUILDAH_NOTE = (
    "buildah runs it without limits, health check and read-only root, and drops no capability: "
    "install podman for these"
)


def run(engine: Engine, options: Namespace) -> int:
    """The container's exit code."""
    if not engine.can_run:
        return _run_buildah(options)
    command = render_run(engine.name, options)
    print(shlex.join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def render_run(name: str, options: Namespace) -> list[str]:
    """The command line of docker or podman."""
    limits = {"cpuset-cpus": options.cpuset, "cpus": options.cpus, "memory": options.memory}
    return [
        name,
        "run",
        "--rm",
        f"--name={options.name}",
        f"--stop-timeout={STOP_TIMEOUT_S}",
        *SECURITY,
        *(["--cap-add=SYS_NICE"] if options.bind_memory == "1" else []),
        *(f"--{limit}={value}" for limit, value in limits.items() if value),
        *_render_network(options),
        *_render_mounts(options),
        *(f"--env={knob}" for knob in list_knobs(options)),
        options.tag,
    ]


def list_knobs(options: Namespace) -> list[str]:
    """NAME=value of each knob that is given; of a file, where it is inside."""
    values = {knob: getattr(options, knob.lower()) for knob in KNOBS}
    values |= {knob: f"{SECRETS}/{FILES[knob][0]}" for knob in _list_files(options)}
    if options.network == "host":
        values["PORT"] = options.port
    return [f"{knob}={value}" for knob, value in values.items() if value]


def _list_files(options: Namespace) -> list[str]:
    return [knob for knob in FILES if getattr(options, knob.lower())]


def _render_network(options: Namespace) -> Sequence[str]:
    """Published on this machine's loopback alone: TLS is a choice."""
    if options.network == "host":
        return ["--network=host"]
    network = [f"--network={options.network}"] if options.network else []
    return [*network, f"--publish=127.0.0.1:{options.port or CONTAINER_PORT}:{CONTAINER_PORT}"]


def _render_mounts(options: Namespace) -> list[str]:
    """An empty store is not mounted over baked-in archives."""
    store, mounts = Path(options.store).resolve(), []
    if any(store.glob("*.mar")):
        mounts.append(_render_mount("STORE", store, "/model-store"))
    for knob in _list_files(options):
        file = check_file(knob, Path(getattr(options, knob.lower())))
        mounts.append(_render_mount(knob, file, f"{SECRETS}/{FILES[knob][0]}"))
    return mounts


def _render_mount(knob: str, path: Path, inside: str) -> str:
    if ":" in str(path):
        raise ImageError(f"{knob} must be a path without colons, at which engines split mounts: got {path}")
    return f"--volume={path}:{inside}:ro"


def check_file(knob: str, file: Path) -> Path:
    """It is read by user 10001 inside."""
    if not file.is_file():
        raise ImageError(f"{knob}: no such file: {file}; {FILES[knob][1].format(shlex.quote(str(file)))}")
    if not file.stat().st_mode & 0o004 and file.stat().st_uid != 10001:
        cure = f"chown 10001 {shlex.quote(str(file))}"
        raise ImageError(f"{knob}: user 10001 of the container cannot read {file}: {cure}")
    return file.resolve()


def _run_buildah(options: Namespace) -> int:
    print(BUILDAH_NOTE, flush=True)
    start = ["/usr/bin/tini", "--", "/opt/kit/.venv/bin/python", "-m", "docker.entrypoint"]
    mounts = [mount.replace("--volume=", "--volume ").split(" ", 1)[1] for mount in _render_mounts(options)]
    subprocess.run(["buildah", "from", "--name", options.name, options.tag], check=True)
    try:
        words = [word for mount in mounts for word in ("--volume", mount)]
        knobs = [word for knob in list_knobs(options) for word in ("--env", knob)]
        return subprocess.run(
            ["buildah", "run", *words, *knobs, options.name, "--", *start], check=False
        ).returncode
    finally:
        subprocess.run(["buildah", "rm", options.name], check=False, stdout=subprocess.DEVNULL)
