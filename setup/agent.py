"""Builds the Java agent (server/agent) into the environment, against the TorchServe that is there."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from setup.commands import run_logged
from setup.errors import SetupError
from setup.facts import site_packages
from setup.progress import step

SOURCES = Path(__file__).resolve().parents[1] / "server/agent"
JAR = "lib/cpukit-agent.jar"
"""Below the environment, where the plan looks for it (config/rules/java.py)."""
MAIN_CLASS = "cpukit.Agent"
OLDEST_JAVA = "17"
REPLACED = "org"
"""Classes of this package stand in for TorchServe's: in the jar below `replaced/`, where only the agent finds
them (cpukit/Replacement.java)."""
FILE_DATE = (1980, 1, 2, 0, 0, 0)
"""A fixed one, so that the same sources give the same jar; a zip holds no earlier year."""


def complete_agent(venv: Path, log: Path, sources: Path = SOURCES) -> None:
    """Build it when it is missing or of other sources."""
    digest = digest_sources(sources)
    if read_digest(venv / JAR) != digest:
        with step("Java agent"):
            build_agent(venv, log, sources, digest)


def digest_sources(sources: Path = SOURCES) -> str:
    """SHA-256 over names and texts of all sources."""
    whole = hashlib.sha256()
    for file in list_sources(sources):
        whole.update(f"{file.relative_to(sources)}\0".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()


def list_sources(sources: Path = SOURCES) -> list[Path]:
    """Every Java file, in order."""
    return sorted(sources.rglob("*.java"))


def read_digest(jar: Path) -> str | None:
    """Of the sources a jar was built from; None when there is no such jar."""
    try:
        with zipfile.ZipFile(jar) as archive:
            manifest = archive.read("META-INF/MANIFEST.MF").decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    lines = dict(line.split(": ", 1) for line in manifest.splitlines() if ": " in line)
    return "".join(lines.get(f"Kit-Sources-{part}", "") for part in (1, 2))


def build_agent(venv: Path, log: Path, sources: Path, digest: str) -> None:
    """Compile and pack; the jar takes its place whole or not at all."""
    site = site_packages(venv)
    server = site / "ts/frontend/model-server.jar" if site else None
    if server is None or not server.is_file():
        raise SetupError(f"no TorchServe in {venv}\n  do: remove {venv} and run `make setup` again")
    with tempfile.TemporaryDirectory() as scratch:
        classes = Path(scratch) / "classes"
        command = ["javac", "-XDignore.symbol.file", "--release", OLDEST_JAVA, "-d", str(classes)]
        run_logged([*command, "-cp", str(server), *map(str, list_sources(sources))], log)
        draft = (venv / JAR).with_suffix(".part")
        pack_jar(draft, classes, digest)
        draft.replace(venv / JAR)


def pack_jar(jar: Path, classes: Path, digest: str) -> None:
    """A jar is a zip with its manifest first; a manifest's lines have at most 72 bytes."""
    half = len(digest) // 2
    manifest = (
        f"Manifest-Version: 1.0\nPremain-Class: {MAIN_CLASS}\n"
        f"Kit-Sources-1: {digest[:half]}\nKit-Sources-2: {digest[half:]}\n"
    )
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", FILE_DATE), manifest)
        for file in sorted(classes.rglob("*.class")):
            name = file.relative_to(classes).as_posix()
            inside = f"replaced/{name}" if name.startswith(f"{REPLACED}/") else name
            archive.writestr(zipfile.ZipInfo(inside, FILE_DATE), file.read_bytes())


if __name__ == "__main__":
    if not shutil.which("javac"):
        sys.exit("no javac on PATH: install openjdk-17-jdk-headless")
    complete_agent(Path(sys.argv[1]).absolute(), Path(sys.argv[2]))
