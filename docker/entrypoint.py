"""The container's main program: plans for the container's limits, then becomes the server in the foreground.

The environment has the settings of `make serve`. `reload` plans anew and moves the running server there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import config.__main__ as planning
from config.errors import ConfigError
from config.knobs import table
from config.knobs.commands import check_environment, check_values
from config.plan import read_plan
from config.rules.instances import GENERATIONS, MAX_INSTANCES
from config.tuned import TUNED_FILE
from server import cli
from server.rundir import RunDir

RUN_DIR = Path("/run/kit")
"""The one writable folder."""
MODEL_STORE = Path("/model-store")
SECRET = Path("/run/secrets/token")
"""Where Docker, Podman and Compose put a secret named `token`."""
KNOBS = [knob for knob in table.KNOBS.values() if knob.container]
OWN = ("MODELS", "TUNED")
"""Read here; the others are the plan's as they are."""
USAGE_ERROR = 2


def read_arguments(environment: Mapping[str, str]) -> list[str]:
    """Those of `python -m config`; ConfigError names what cannot be used."""
    wrong = check_environment(environment, KNOBS)
    wrong += check_values({knob.name: environment[knob.name] for knob in KNOBS if knob.name in environment})
    if wrong:
        raise ConfigError("; ".join(wrong))
    arguments = ["--models", " ".join(find_models(environment.get("MODELS", "")))]
    arguments += ["--bind", "0.0.0.0", "--model-store", str(MODEL_STORE), "--run-dir", str(RUN_DIR)]
    arguments += ["--token-file", str(SECRET)] if SECRET.exists() else []
    tuned = environment.get("TUNED") or "1"
    if tuned not in table.SWITCH:
        raise ConfigError(f"TUNED must be one of 0, 1: got {tuned}")
    arguments += ["--tuned", str(RUN_DIR / TUNED_FILE)] if tuned == "1" else []
    for knob in KNOBS:
        if knob.name not in OWN and environment.get(knob.name):
            arguments += [knob.option, environment[knob.name]]
    return arguments


def find_models(asked: str) -> list[str]:
    """MODELS, or every archive that is there."""
    there = sorted(file.stem for file in MODEL_STORE.glob("*.mar"))
    wanted = asked.replace(",", " ").split()
    missing = [name for name in wanted if name not in there]
    if there and not missing:
        return wanted or there
    what = f"no archive of {', '.join(missing)}" if missing else "no archive"
    raise ConfigError(
        f"{what} in {MODEL_STORE}: got {', '.join(there) or 'nothing'}; mount a folder with archives there "
        '(-v "$PWD/model-store:/model-store:ro"), or bake them in (--build-arg MODELS="resnet50 bert")'
    )


def pass_logs_on(run: RunDir) -> None:
    """What HAProxy and each TorchServe write to files, to standard output, too, while this process lives."""
    names = [f"{generation}{number}" for generation in GENERATIONS for number in range(1, MAX_INSTANCES + 1)]
    parts = [run.instance(name) for name in names]
    logs = [file for part in parts for file in (part.server_log, part.model_log, part.console_log)]
    # Files that come later are read from their beginning, those of an earlier run are left out.
    tail = ["tail", "--follow=name", "--retry", "---disable-inotify", "--lines=0", f"--pid={os.getpid()}"]
    subprocess.Popen([*tail, run.door_log, *logs], stderr=subprocess.DEVNULL)


def main(words: Sequence[str]) -> int:
    """Of a start that cannot be planned 2, of a reload its own; else it does not return."""
    try:
        arguments = read_arguments(os.environ)
    except ConfigError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return USAGE_ERROR
    if words == ["reload"]:
        return cli.main(["reload", "--run-dir", str(RUN_DIR), "--", *arguments])
    run = RunDir.at(RUN_DIR)
    for file in (run.health, run.failure):  # of an earlier run in the same volume
        file.unlink(missing_ok=True)
    if code := planning.main(arguments):
        return code
    print(f"memory: {read_plan(run.plan).layout.memory_nodes.reason}", flush=True)
    pass_logs_on(run)
    server = ["-m", "server", "start", "--foreground", "--hide-token", "--run-dir", str(RUN_DIR)]
    return os.execv(sys.executable, [sys.executable, *server])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
