"""`python -m models build|list`: makes the archives in model-store/."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from models.definition import list_models, read_definition
from models.errors import BuildError
from models.request import DataRequest, parse_paths, parse_weights

ROOT = Path(__file__).parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 a build failed, 2 a wrong value."""
    options = _parse_arguments(arguments)
    try:
        return _list() if options.command == "list" else _build(options)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the models that have a definition")
    build = commands.add_parser("build", help="build the archives that are missing or not up to date")
    build.add_argument(
        "--models", default="", help="names, separated by spaces (default: all with default_build)"
    )
    build.add_argument(
        "--weights", default="auto", help="auto | pretrained | random | PATH | MODEL=…,MODEL=…"
    )
    build.add_argument(
        "--calibration", default="", help="inputs for INT8: PATH or MODEL=PATH,… (images, texts)"
    )
    build.add_argument(
        "--eval", default="", help="held-out inputs for the accuracy gate: PATH or MODEL=PATH,…"
    )
    build.add_argument("--store", type=Path, default=ROOT / "model-store", help="where the archives go")
    return parser.parse_args(arguments)


def _list() -> int:
    for name in list_models():
        definition = read_definition(name)
        print(f"{name:<14} {definition.kind:<6} {', '.join(definition.precisions)}")
    return 0


def _build(options: argparse.Namespace) -> int:
    names = options.models.replace(",", " ").split() or _default_names()
    definitions = [read_definition(name) for name in names]
    requests = parse_weights(options.weights, names)
    calibration = parse_paths("CALIBRATION", options.calibration, names)
    evaluation = parse_paths("EVAL", options.eval, names)
    # Imported late: torch takes seconds, and a wrong value should be answered at once.
    from models.build import build_archive, set_build_threads
    from models.download import DownloadError

    set_build_threads()
    for definition in definitions:
        try:
            name = definition.name
            data = DataRequest(calibration=calibration.get(name), evaluation=evaluation.get(name))
            build_archive(definition, requests[name], store=options.store, data=data)
        except DownloadError as error:
            raise BuildError(f"{definition.name}: {error}; use WEIGHTS=random or WEIGHTS=PATH") from error
    return 0


def _default_names() -> list[str]:
    return [name for name in list_models() if read_definition(name).default_build]


if __name__ == "__main__":
    sys.exit(main())
