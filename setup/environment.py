"""Judges the virtual environment and makes it what requirements/ asks for, in whatever state it was left."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from setup.commands import own_environment, run_logged
from setup.facts import read_venv_python, site_packages
from setup.progress import step
from setup.requirements import CONSTRAINTS, HASHES, SERVE, STACKS
from setup.torch_wheel import DEFAULT, TorchSource, hide_credentials

STAMP = "setup.json"
PIP_INSTALL = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
TORCH_FOLDERS = ("torch", "torchvision", "torchvision.libs", "nvidia", "triton")


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Written last: an environment without it was not finished."""

    location: str
    """Where it was made; its scripts hold this path, so a moved checkout needs a new one."""
    digests: dict[str, str] = field(default_factory=dict)
    """Requirement set → digest."""
    stack: str = STACKS[0]
    """What it was made for: plan and build ask it (handlers/engines/stacks.py)."""
    torch_index: str = DEFAULT
    """Where torch came from, without credentials: this file is part of the image."""
    torch_bytes: int = 0
    """What torch takes on disk."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What has to be done to an environment."""

    rebuild: bool
    """Made anew from nothing."""
    install: tuple[str, ...]
    """Requirement sets to install; empty when all is in place."""
    reason: str
    """In words, for the person who waits; empty when there is nothing to say."""


def judge(venv: Path, wanted: dict[str, str], python: tuple[int, int], asked_index: str) -> Verdict:
    """Compare the environment with what is wanted. Changes nothing."""
    sets = tuple(wanted)
    if not venv.exists():
        return Verdict(rebuild=True, install=sets, reason="")
    found, stamp = read_venv_python(venv), read_stamp(venv)
    if found is None or not os.access(venv / "bin/python", os.X_OK):
        return Verdict(
            rebuild=True, install=sets, reason="its Python is missing or incomplete: making it anew"
        )
    if found != python:
        change = f"it was made for Python {found[0]}.{found[1]}, this is {python[0]}.{python[1]}"
        return Verdict(rebuild=True, install=sets, reason=f"{change}: making it anew")
    if stamp is None:
        return Verdict(
            rebuild=False, install=sets, reason="its set-up was not finished: checking and completing it"
        )
    if stamp.location != str(venv):
        return Verdict(
            rebuild=True, install=sets, reason=f"it was moved from {stamp.location}: making it anew"
        )
    asked_index = hide_credentials(asked_index)
    if asked_index and asked_index != stamp.torch_index:
        change = f"its torch came from {stamp.torch_index}, now TORCH_INDEX={asked_index}"
        return Verdict(rebuild=True, install=sets, reason=f"{change}: making it anew")
    outdated = tuple(name for name, value in wanted.items() if stamp.digests.get(name) != value)
    changed = [name for name in outdated if name in stamp.digests]
    reason = f"requirements changed: {', '.join(changed)}" if changed else ""
    return Verdict(rebuild=False, install=outdated, reason=reason)


def read_stamp(venv: Path) -> Stamp | None:
    try:
        return Stamp(**json.loads((venv / STAMP).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_stamp(venv: Path, stamp: Stamp) -> None:
    draft = venv / f"{STAMP}.part"
    draft.write_text(json.dumps(asdict(stamp), indent=2, sort_keys=True) + "\n")
    draft.replace(venv / STAMP)


def create(venv: Path, log: Path) -> None:
    """A new, empty environment in place of what is there, made by the Python outside of any environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    with step("virtual environment"):
        if venv.is_symlink() or venv.is_file():
            venv.unlink()
        run_logged([base, "-m", "venv", "--clear", str(venv)], log)


def repair(venv: Path, log: Path) -> None:
    """Make pip work again and let it see which packages were only half written."""
    command = [str(venv / "bin/python"), "-m", "pip", "--version"]
    if subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=own_environment()):
        create(venv, log)
    site = site_packages(venv)
    for record in damaged_packages(site) if site else []:
        shutil.rmtree(record)


def damaged_packages(site: Path) -> list[Path]:
    """The .dist-info folders of packages that lack files; without the folder pip installs them again.

    pip writes RECORD last, so a kill leaves a folder without it, or a later deletion a RECORD that lies.
    """
    return [folder for folder in sorted(site.glob("*.dist-info")) if not _is_whole(site, folder)]


def _is_whole(site: Path, folder: Path) -> bool:
    try:
        with (folder / "RECORD").open(newline="") as source:
            files = [row[0] for row in csv.reader(source) if row]
    except OSError:
        return False
    return all((site / file).exists() for file in files if not file.endswith(".pyc"))


def install_torch(
    venv: Path, requirements: Path, source: TorchSource, pins: dict[str, str], log: Path
) -> None:
    """torch and torchvision together, so that both are of one build."""
    wanted = [f"{name}=={version}{source.suffix}" for name, version in pins.items()]
    python = str(venv / "bin/python")
    with step(f"{' and '.join(f'{name} {version}' for name, version in pins.items())}"):
        if source.index == DEFAULT:
            run_logged([python, *PIP_INSTALL, "-c", str(requirements / CONSTRAINTS), *wanted], log)
        else:
            # By the environment: the log begins with the command, and every user sees it in the process list.
            index = {"PIP_INDEX_URL": source.index}
            run_logged([python, *PIP_INSTALL, "--no-deps", *wanted], log, extra=index)


def install_set(venv: Path, requirements: Path, name: str, log: Path) -> None:
    """Every package by its hash; dependencies are not looked for, because the lock names them all."""
    title = "the packages" if name == SERVE else f"packages for `{name}`"
    files = ["--require-hashes", "--no-deps", "-r", str(requirements / HASHES / f"{name}.txt")]
    with step(title):
        run_logged([str(venv / "bin/python"), *PIP_INSTALL, *files], log)


def measure_torch(venv: Path) -> int:
    """Bytes on disk of torch, torchvision and the libraries they brought, as `du` counts."""
    site = site_packages(venv)
    return sum(disk_usage(site / folder) for folder in TORCH_FOLDERS) if site else 0


def disk_usage(folder: Path) -> int:
    return sum(
        (Path(where) / file).lstat().st_blocks * 512 for where, _, files in os.walk(folder) for file in files
    )


def is_cuda_build(venv: Path) -> bool:
    site = site_packages(venv)
    return bool(site and (site / "nvidia").is_dir())


def torch_is_in_place(versions: dict[str, str], pins: dict[str, str]) -> bool:
    return all(versions.get(name, "").split("+")[0] == version for name, version in pins.items())


def all_sets(stamp: Stamp | None, wanted: Sequence[str]) -> list[str]:
    """What was installed before stays wanted, so that `make setup` does not forget a contributor's tools."""
    return list(dict.fromkeys([*wanted, *(stamp.digests if stamp else ())]))
