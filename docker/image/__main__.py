"""`python3 -m docker.image build|run|engine`: what `make image` and `make image-run` call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from docker.image.build import build, list_build_options
from docker.image.engines import ImageError, find_engine
from docker.image.run import KNOBS, run


def main(arguments: Sequence[str] | None = None) -> int:
    """0 good, 1 failed; of `run`, the container's own exit code."""
    options = build_parser().parse_args(arguments)
    try:
        engine = find_engine(options.engine)
        return build(engine, options) if options.command == "build" else run(engine, options)
    except ImageError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """An empty value means "not given", because make passes its unset variables so."""
    parser = argparse.ArgumentParser(prog="python3 -m docker.image", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    building = commands.add_parser("build", help="build the image and judge its size")
    for option, default, text in list_build_options():
        building.add_argument(option, default=default, help=text)
    running = commands.add_parser("run", help="run it in this terminal")
    for option, default, text in (
        ("--name", "cpu-kit", "of the container"),
        ("--store", "model-store", "archives to mount; not mounted when it holds none"),
        ("--port", "", "on this machine (default 8080)"),
        ("--cpus", "", "CPU time, in CPUs"),
        ("--cpuset", "", "CPUs, such as 0-3"),
        ("--memory", "", "memory, such as 8g"),
        ("--network", "", "network, such as host"),
        ("--token-file", "", "file with the token that predictions are asked for with"),
        ("--tls-cert", "", "file with the door's certificate and its chain (PEM)"),
        ("--tls-key", "", "file with its private key (PEM)"),
        ("--bind-memory", "", "1: add CAP_SYS_NICE, so that memory is bound to NUMA nodes"),
        *((f"--{knob.lower().replace('_', '-')}", "", "as for make serve") for knob in KNOBS),
    ):
        running.add_argument(option, default=default, help=text)
    for command in (building, running):
        command.add_argument(
            "--engine", default="", help="docker, podman or buildah (default: the first found)"
        )
        command.add_argument("--tag", default="cpu-kit:latest", help="the image's name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
