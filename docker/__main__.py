"""`python -m docker NAME=VALUE…`: `make image`, one `docker build`; ARGS are options of it, as --tag."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from config.commands import join_by_model, read_program
from config.errors import ConfigError

TAG = "cpu-kit:latest"


def make_command(words: Sequence[str], revision: str) -> list[str]:
    """MODELS counts where it is given: an image without archives is the default."""
    settings, options = read_program(words)
    given = {
        "BACKEND": join_by_model(settings.backend), "WEIGHTS": join_by_model(settings.weights),
        "TORCH_INDEX": settings.torch_index, "REVISION": revision,
        "MODELS": " ".join(settings.models) if "models" in settings.model_fields_set else "",
    }  # fmt: skip
    arguments = [
        word for name, value in given.items() if value for word in ("--build-arg", f"{name}={value}")
    ]
    return ["docker", "build", "--file", "docker/Dockerfile", "--tag", TAG, *arguments, *options, "."]


def main(words: Sequence[str]) -> int:
    """This process becomes docker's client."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git
        revision = ""
    try:
        command = make_command(words, revision)
        os.execvp(command[0], command)
    except (ConfigError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
