"""`python -m models new|build|check|list|time`: makes the archives in model-store/, and times them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from handlers.backends.catalogue import BACKENDS, find_missing, find_set, name_store
from handlers.shared.errors import BadRequest, LoadError
from models.errors import BuildError, DownloadError, InputError
from models.names import DEFAULT_MODELS, list_models
from models.new import write_model
from models.places import check_store, check_timings_file
from models.request import (
    DataRequest,
    WeightsRequest,
    check_used,
    check_weights,
    parse_allow_pickle,
    parse_backend,
    parse_names,
    parse_paths,
    parse_precisions,
    parse_weights,
)

ROOT = Path(__file__).parent.parent
PACKAGE_SET = find_set()


GIB_OF_TWO = 12.0
"""Free memory with which two archives are built at once: one that is calibrated in INT8 takes up to 6."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the command line asks for, checked."""

    names: list[str]
    weights: dict[str, WeightsRequest]
    data: dict[str, DataRequest]
    precisions: tuple[str, ...]
    """Those that each archive shall have beside FP32."""
    backends: dict[str, str]
    """What shall compute each."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 a build failed, 2 a wrong value."""
    options = _parse_arguments(arguments)
    options.given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return COMMANDS[options.command](options)
    except InputError as error:
        return _fail(error, code=2)
    except (BuildError, LoadError, BadRequest, OSError) as error:
        return _fail(error, code=1)


def _fail(error: Exception, *, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the models that have a definition")
    new = commands.add_parser("new", help="write models/<name>/model.yaml for your own weights")
    new.add_argument("--from", dest="source", required=True, help="a Hugging Face folder, or a state dict")
    new.add_argument("--serve-as", default="", help="by default that of the folder or file")
    new.add_argument("--handler", default="", help="where the folder does not say it")
    new.add_argument("--arch", default="", help="a classifier of torchvision.models")
    check = commands.add_parser("check", help="judge the values alone; needs the standard library only")
    build = commands.add_parser("build", help="build what is missing, out of date, or asked for now")
    for command in (check, build):
        _add_values(command)
    build.add_argument(
        "--all-backends", action="store_true", help="for every backend that is installed, not BACKEND alone"
    )
    build.add_argument("--only", default="", help="of MODELS this one alone: several are built at once")
    time = commands.add_parser("time", help="time each precision of built archives, unless it was before")
    time.add_argument("--job", required=True, help="what `python -m config --timing-job` prints")
    time.add_argument("--output", type=Path, required=True, help="the file of timings")
    for command in (build, time):
        command.add_argument("--store", type=Path, default=ROOT / name_store(PACKAGE_SET), help="archives")
    return parser.parse_args(arguments)


def _add_values(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default="", help="names, separated by spaces (default: resnet50 bert)")
    parser.add_argument(
        "--precision",
        default="",
        help="what the archives shall hold beside FP32: bf16, int8 or both (default: fp32 alone)",
    )
    parser.add_argument(
        "--backend",
        default="",
        help="what shall compute: a backend, or MODEL=BACKEND,…",
    )
    parser.add_argument(
        "--weights",
        default="",
        help="auto | pretrained | random | PATH | MODEL=…,MODEL=… (default: as built, else auto)",
    )
    parser.add_argument(
        "--allow-pickle",
        default="",
        help="1: read .pt, .pth and .bin in the build itself where no process without rights can be made",
    )
    parser.add_argument(
        "--calibration", default="", help="inputs for INT8: PATH or MODEL=PATH,… (images, texts)"
    )
    parser.add_argument(
        "--eval", default="", help="held-out inputs for the accuracy gate: PATH or MODEL=PATH,…"
    )


def parse_order(options: argparse.Namespace) -> Order:
    """Check all values; InputError says which is wrong and what is allowed."""
    names = parse_names(options.models, list_models(), DEFAULT_MODELS)
    calibration = parse_paths("CALIBRATION", options.calibration, names)
    evaluation = parse_paths("EVAL", options.eval, names)
    data = {
        name: DataRequest(calibration=calibration.get(name), evaluation=evaluation.get(name))
        for name in names
    }
    allow_pickle = parse_allow_pickle(options.allow_pickle)
    weights = {
        name: replace(one, allow_pickle=allow_pickle)
        for name, one in parse_weights(options.weights, names).items()
    }
    check_weights(weights)
    precisions = parse_precisions(options.precision)
    check_used(precisions, data.values())
    backends = parse_backend(options.backend, names, PACKAGE_SET)
    return Order(names=names, weights=weights, data=data, precisions=precisions, backends=backends)


def _check(options: argparse.Namespace) -> int:
    parse_order(options)
    return 0


def _list(options: argparse.Namespace) -> int:
    from models.definition import read_definition

    for name in list_models():
        definition = read_definition(name)
        print(f"{name:<14} {definition.handler:<18} {', '.join(definition.precisions)}")
    return 0


def _new(options: argparse.Namespace) -> int:
    lines = write_model(
        Path(options.source).expanduser(),
        name=options.serve_as,
        handler=options.handler,
        architecture=options.arch,
    )
    print(*lines, sep="\n")
    return 0


def _build(options: argparse.Namespace) -> int:
    order = parse_order(options)
    check_store(options.store, order.names)
    if len(order.names) > 1 and not options.only and read_free_gib() >= GIB_OF_TWO:
        return _build_two_at_once(order.names, options.given)
    # Imported late: torch takes seconds, and a wrong value should be answered at once.
    from models.definition import read_definition

    definitions = [read_definition(name) for name in order.names if options.only in ("", name)]
    from models.build import build_archive, set_build_threads

    set_build_threads()
    every = [one for one in BACKENDS if one not in find_missing()]
    for definition in definitions:
        name = definition.name
        try:
            build_archive(
                definition,
                order.weights[name],
                store=options.store,
                data=order.data[name],
                precisions=order.precisions,
                backends=every if options.all_backends else [order.backends[name]],
            )
        except DownloadError as error:
            raise BuildError(f"{name}: {error}; use WEIGHTS=random or WEIGHTS=PATH") from error
        except (BuildError, LoadError, BadRequest, OSError) as error:
            raise BuildError(f"{name}: {error}") from error
    return 0


def _build_two_at_once(names: list[str], given: list[str]) -> int:
    """A process each; their lines, which begin with the model's name, come as they are said."""

    def build(name: str) -> int:
        command = [sys.executable, "-u", "-m", "models", *given, "--only", name]
        # Threads of two processes on the same cores must not spin while they wait.
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                print(line, end="", flush=True)
        return process.returncode

    with ThreadPoolExecutor(max_workers=2) as pool:
        return max(map(abs, pool.map(build, names)))


def read_free_gib(
    meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> float:
    """What can be taken of the machine's memory, and of the control group's limit."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = [int(fields["MemAvailable"].split()[0]) / (1 << 20)]
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        free.append(int(text) / (1 << 30))
    return min(free)


def _time(options: argparse.Namespace) -> int:
    check_timings_file(options.output)
    from models.timings import parse_job, time_models

    time_models(parse_job(options.job), store=options.store, output=options.output)
    return 0


COMMANDS = {"build": _build, "check": _check, "list": _list, "new": _new, "time": _time}


if __name__ == "__main__":
    sys.exit(main())
