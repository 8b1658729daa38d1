"""Facts are read right from files and outputs as real machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import installed
from setup import facts

DEBIAN = """631 libs found in cache `/etc/ld.so.cache'
\tlibtcmalloc_minimal.so.4 (libc6,x86-64) => /lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4
\tlibjemalloc.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libjemalloc.so.2
\tlibjemalloc.so.2 (libc6) => /lib/i386-linux-gnu/libjemalloc.so.2
"""


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("Error: could not find libjava.so", 0),
    ],
)
def test_javas_version_is_read(output: str, major: int) -> None:
    assert facts.parse_java_version("java", output).major == major


def test_java_home_goes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = facts.read_java()
    assert found == facts.Java(path=str(java), major=11, text="11.0.2")


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = facts.read_java()
    assert found
    assert found.major == 0
    assert found.text.startswith("does not run")


def test_where_there_is_no_java_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert facts.read_java() is None


def test_the_processors_flags_are_read(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f\nbugs\t\t:\n")
    assert facts.read_cpu_flags(cpuinfo) == {"fpu", "avx2", "avx512f"}
    assert facts.read_cpu_flags(tmp_path / "absent") == frozenset()


def test_libraries_are_found_through_the_loader(tmp_path: Path) -> None:
    folder = tmp_path / "lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libjemalloc.so.2").touch()
    (folder / "libtcmalloc_minimal.so.4").touch()
    found = facts.find_libraries(tmp_path, DEBIAN)
    assert found == {
        "jemalloc": str(folder / "libjemalloc.so.2"),
        "tcmalloc": str(folder / "libtcmalloc_minimal.so.4"),
    }


def test_a_stale_loader_cache_is_not_believed(tmp_path: Path) -> None:
    assert facts.find_libraries(tmp_path, DEBIAN) == {}


def test_libraries_are_found_without_ldconfig(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libjemalloc.so.2").touch()
    assert facts.find_libraries(tmp_path, "") == {"jemalloc": str(tmp_path / "usr/lib64/libjemalloc.so.2")}


def test_a_server_is_found_where_users_have_no_path_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    haproxy = tmp_path / "sbin/haproxy"
    haproxy.parent.mkdir()
    haproxy.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(facts, "SYSTEM_FOLDERS", ())
    assert facts.which("haproxy") is None
    monkeypatch.setattr(facts, "SYSTEM_FOLDERS", (str(haproxy.parent),))
    assert facts.which("haproxy") == str(haproxy)


FAKES = {
    "HAProxy version 2.4.24-0ubuntu0.22.04.1 2023/10/31 - https://haproxy.org/": (2, 4),
    "HA-Proxy version 2.0.33-0+deb10u1 2023/10/27": (2, 0),
    "HAProxy version 2.6.12-1+deb12u1 2023/12/16 - https://haproxy.org/\nStatus: long-term": (2, 6),
    "HAProxy version 3.0.11-1+deb13u1 2025/05/07": (3, 0),
    "HAProxy version 2.10-dev3 2030/01/01": (2, 10),
    "what": (0, 0),
}


def make_haproxy(file: Path, said: str) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n[ $1 = -v ] && echo '{said}'\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(("said", "version"), FAKES.items())
def test_haproxys_version_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: tuple[int, int]
) -> None:
    program = make_haproxy(tmp_path / "bin/haproxy", said)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin")
    found = facts.read_haproxy(tmp_path / "no environment")
    assert found
    assert (found.path, found.version) == (str(program), version)


def test_the_environments_haproxy_goes_before_the_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As set-up and the server, each for itself, look for it."""
    system = make_haproxy(tmp_path / "bin/haproxy", "HAProxy version 2.4.24 2023/10/31")
    monkeypatch.setenv("PATH", f"{system.parent}:/bin")
    venv = tmp_path / "venv"
    assert installed.find_haproxy(venv) == str(system)
    own = make_haproxy(
        venv / "lib/python3.12/site-packages" / facts.HAPROXY_WHEEL, "HAProxy version 2.8.25-5cf5d0683"
    )
    assert facts.read_haproxy(venv) == facts.Haproxy(path=str(own), version=(2, 8), text="2.8.25-5cf5d0683")
    assert installed.find_haproxy(venv) == str(own)


def test_where_there_is_no_haproxy_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(facts, "SYSTEM_FOLDERS", ())
    assert facts.read_haproxy(tmp_path) is None


def test_versions_are_read_without_importing(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    for name, version in (("torch", "2.8.0+cpu"), ("torch_model_archiver", "0.12.0")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    asked = ("torch", "torch-model-archiver", "torchvision")
    assert facts.read_versions(tmp_path, asked) == {"torch": "2.8.0+cpu", "torch-model-archiver": "0.12.0"}


def test_the_environments_python_is_read(tmp_path: Path) -> None:
    assert facts.read_venv_python(tmp_path) is None
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.1\n")
    assert facts.read_venv_python(tmp_path) == (3, 12)


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    found = facts.read_facts(tmp_path, {"torch": "2.8.0"})
    assert found.system
    assert (found.versions, found.pins) == ({}, {"torch": "2.8.0"})
    assert found.venv_python is None
