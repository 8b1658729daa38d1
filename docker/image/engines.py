"""Finds the program that builds and runs images, and knows where the three differ."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

NAMES = ("docker", "podman", "buildah")
_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}


class ImageError(Exception):
    """Something asked for cannot be done; the text says what, which, got, do."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One of the programs."""

    name: str
    """docker, podman or buildah."""

    @property
    def can_run(self) -> bool:
        """Whether it runs containers with limits, health checks and a read-only root."""
        return self.name != "buildah"

    def build_words(self) -> list[str]:
        """The words before the options of a build. Only Docker's image format has health checks."""
        words = {"docker": ["build"], "podman": ["build", "--format", "docker"]}
        return [self.name, *words.get(self.name, ["bud", "--format", "docker"])]

    def read_size(self, tag: str) -> int:
        """Bytes of an image."""
        if self.name == "buildah":
            listed = json.loads(_capture([self.name, "images", "--json", tag]))
            return parse_size(str(listed[0]["size"]))
        return int(_capture([self.name, "image", "inspect", "--format", "{{.Size}}", tag]))

    def succeeds_inside(self, tag: str, *command: str) -> bool:
        """Whether a command in a fresh container of the image exits with 0, and not with 1."""
        if self.can_run:
            program, *words = command
            return _answer([self.name, "run", "--rm", "--network=none", "--entrypoint", program, tag, *words])
        container = _capture([self.name, "from", tag])
        try:
            return _answer([self.name, "run", container, "--", *command])
        finally:
            _capture([self.name, "rm", container])


def find_engine(
    asked: str = "",
    which: Callable[[str], str | None] = shutil.which,
    works: Callable[[str], bool] | None = None,
) -> Engine:
    """ENGINE, or the first that is there and answers."""
    if asked and asked not in NAMES:
        raise ImageError(f"ENGINE must be one of {', '.join(NAMES)}: got {asked}")
    silent = []
    for name in [asked] if asked else NAMES:
        if which(name) and (works or _answers)(name):
            return Engine(name=name)
        if which(name):
            silent.append(name)
    raise ImageError(_explain_absence(asked, silent))


def _explain_absence(asked: str, silent: Sequence[str]) -> str:
    found = f"{', '.join(silent)} is installed but does not answer" if silent else "none is installed"
    do = "start its service (systemctl start docker), or " if "docker" in silent else ""
    return (
        f"an image needs {asked or 'docker, podman or buildah'}: {found}; "
        f"{do}install one: apt-get install podman (or docker.io, or buildah)"
    )


def _answers(name: str) -> bool:
    """Docker's program alone does nothing: its service must run."""
    return _succeeds([name, "version"])


def parse_size(text: str) -> int:
    """"7.94 GB" → 7940000000."""  # fmt: skip
    match = re.fullmatch(r"([\d.]+) ?([kKMG]?B)", text.strip())
    if not match:
        raise ImageError(f"not a size: {text}")
    return int(float(match[1]) * _UNITS[match[2]])


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(list(command), capture_output=True, check=False).returncode == 0


def _answer(command: Sequence[str]) -> bool:
    """0 is yes and 1 no; anything else is the engine's own failure, and no answer."""
    return _run(command, good=(0, 1)).returncode == 0


def _capture(command: Sequence[str]) -> str:
    return _run(command, good=(0,)).stdout.strip()


def _run(command: Sequence[str], *, good: Collection[int]) -> subprocess.CompletedProcess[str]:
    """ImageError for any other exit code."""
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    if done.returncode not in good:
        raise ImageError(f"`{' '.join(command)}` failed ({done.returncode}): {done.stderr.strip()[-500:]}")
    return done
