"""`python -m models new|build|check|list|time`: makes the archives in model-store/, and times them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from config.commands import read_program
from config.errors import ConfigError
from config.settings import Settings
from handlers.backends.catalogue import BACKENDS, find_missing, find_set, name_store
from handlers.shared.errors import BadRequest, LoadError
from models.errors import BuildError, DownloadError, InputError
from models.names import list_models
from models.new import write_model
from models.places import check_store, check_timings_file
from models.request import (
    DataRequest,
    WeightsRequest,
    check_weights,
    choose_backends,
    choose_data,
    choose_names,
    choose_weights,
    parse_precisions,
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
    """Those that each archive is to have beside FP32."""
    backends: dict[str, str]
    """What computes each."""


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 a build failed, 2 a wrong value."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        settings, words = read_program(given)
        options = _parse_options(words)
        options.settings, options.given = settings, given
        options.store = Path(settings.model_store or ROOT / name_store(PACKAGE_SET))
        return COMMANDS[options.command](options)
    except (InputError, ConfigError) as error:
        return _fail(error, code=2)
    except (BuildError, LoadError, BadRequest, OSError) as error:
        return _fail(error, code=1)


def _fail(error: Exception, *, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def _parse_options(words: list[str]) -> argparse.Namespace:
    """Beside settings (docs/settings.md), of which MODEL_STORE is the folder of the archives."""
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the models that have a definition")
    commands.add_parser("check", help="validate the settings alone, before anything is installed")
    new = commands.add_parser("new", help="write models/<name>/model.yaml for the weights that FROM names")
    new.add_argument("--name", default="", help="by default that of the folder or file")
    new.add_argument("--handler", default="", help="where the folder does not say it")
    new.add_argument("--arch", default="", help="a classifier of torchvision.models")
    build = commands.add_parser("build", help="build what is missing, out of date, or given now")
    build.add_argument("--precisions", default="", help="several at once: fp32, bf16, int8; else PRECISION")
    build.add_argument("--all-backends", action="store_true", help="for every backend that is installed")
    build.add_argument("--only", default="", help="of MODELS this one alone: several are built at once")
    time = commands.add_parser("time", help="measure the batch profile of archives, as far as it is lacking")
    time.add_argument("--job", required=True, help="what to measure, as config.planning says it")
    time.add_argument("--output", type=Path, required=True, help="the file of the profile")
    return parser.parse_args(words)


def make_order(options: argparse.Namespace) -> Order:
    """InputError says which setting is wrong and what is allowed."""
    settings: Settings = options.settings
    names = choose_names(settings.models, list_models())
    weights = choose_weights(settings, names)
    check_weights(weights.values())
    precisions = parse_precisions(getattr(options, "precisions", "") or settings.precision)
    return Order(
        names=names,
        weights=weights,
        data=choose_data(settings, names, precisions),
        precisions=precisions,
        backends=choose_backends(settings, names, PACKAGE_SET),
    )


def _check(options: argparse.Namespace) -> int:
    make_order(options)
    return 0


def _list(options: argparse.Namespace) -> int:
    from models.definition import read_definition

    for name in list_models():
        definition = read_definition(name)
        print(f"{name:<14} {definition.handler:<18} {', '.join(definition.precisions)}")
    return 0


def _new(options: argparse.Namespace) -> int:
    if not options.settings.from_:
        raise InputError("FROM must be a Hugging Face folder, or a file of weights: got nothing")
    source = Path(options.settings.from_).expanduser()
    lines = write_model(source, name=options.name, handler=options.handler, architecture=options.arch)
    print(*lines, sep="\n")
    return 0


def _build(options: argparse.Namespace) -> int:
    order = make_order(options)
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
