"""`python3 -m setup.agent VENV LOG`: builds server/agent against the TorchServe of an environment."""

import sys
import tempfile
import zipfile
from pathlib import Path

from setup.doctor import run, step

SOURCES = Path(__file__).resolve().parents[1] / "server/agent"
JAR = "lib/cpukit-agent.jar"
DATE = (1980, 1, 2, 0, 0, 0)  # the same sources give the same jar


def build_agent(venv: Path, log: Path) -> None:
    """Where it is missing or older than its sources; classes of TorchServe's names lie below `replaced/`."""
    jar, sources = venv / JAR, sorted(SOURCES.rglob("*.java"))
    if jar.exists() and jar.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return
    (torchserve,) = venv.glob("lib/python3*/site-packages/ts/frontend/model-server.jar")
    with step("Java agent"), tempfile.TemporaryDirectory() as classes:
        command = ["javac", "-XDignore.symbol.file", "--release", "17", "-d", classes, "-cp", str(torchserve)]
        run([*command, *map(str, sources)], log)
        with zipfile.ZipFile(draft := jar.with_suffix(".part"), "w", zipfile.ZIP_DEFLATED) as archive:
            manifest = "Manifest-Version: 1.0\nPremain-Class: cpukit.Agent\n"
            archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", DATE), manifest)
            for file in sorted(Path(classes).rglob("*.class")):
                name = file.relative_to(classes).as_posix()
                inside = f"replaced/{name}" if name.startswith("org/") else name
                archive.writestr(zipfile.ZipInfo(inside, DATE), file.read_bytes())
        draft.replace(jar)


if __name__ == "__main__":
    build_agent(Path(sys.argv[1]).absolute(), Path(sys.argv[2]))
