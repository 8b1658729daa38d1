"""The Java agent: built once for its sources, and the same bytes each time."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from setup import agent
from setup.errors import SetupError

REPLACED = ("org/pytorch/serve/ServerInitializer", "org/pytorch/serve/grpcimpl/GRPCInterceptor")


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    if shutil.which("javac") is None or importlib.util.find_spec("ts") is None:
        pytest.skip("needs javac and torchserve, which `make dev` installs")
    folder = tmp_path_factory.mktemp("venv")
    frontend = folder / f"lib/python3.{sys.version_info[1]}/site-packages/ts/frontend"
    frontend.mkdir(parents=True)
    server = Path(importlib.util.find_spec("ts").origin).parent / "frontend/model-server.jar"
    (frontend / "model-server.jar").symlink_to(server)
    agent.complete_agent(folder, folder / "log")
    return folder


def test_the_jar_names_its_sources_and_is_built_once(venv):
    jar = venv / agent.JAR
    assert agent.read_digest(jar) == agent.digest_sources()
    built = jar.stat().st_mtime_ns
    agent.complete_agent(venv, venv / "log")
    assert jar.stat().st_mtime_ns == built


def test_the_same_sources_give_the_same_bytes(venv):
    first = (venv / agent.JAR).read_bytes()
    agent.build_agent(venv, venv / "log", agent.SOURCES, agent.digest_sources())
    assert (venv / agent.JAR).read_bytes() == first


def test_what_replaces_torchserves_classes_has_no_companions(venv):
    """One (of a lambda, a switch over an enumeration) would be looked for in TorchServe's own jar."""
    names = zipfile.ZipFile(venv / agent.JAR).namelist()
    replaced = [name for name in names if name.startswith("replaced/")]
    assert sorted(replaced) == [f"replaced/{name}.class" for name in REPLACED]
    known = zipfile.ZipFile(next(venv.glob("**/model-server.jar"))).namelist()
    assert {f"{name}.class" for name in REPLACED} <= set(known)
    source = (agent.SOURCES / "cpukit/Replacement.java").read_text()
    assert all(f'"{name}"' in source for name in REPLACED)
    assert not [name for name in names if name.startswith("org/")]


def test_a_changed_source_is_another_agent(tmp_path):
    (tmp_path / "a").mkdir()
    file = tmp_path / "a/A.java"
    file.write_text("class A {}")
    first = agent.digest_sources(tmp_path)
    file.write_text("class A { }")
    assert agent.digest_sources(tmp_path) != first


def test_a_broken_jar_is_none(tmp_path):
    (tmp_path / "x.jar").write_text("no zip")
    assert agent.read_digest(tmp_path / "x.jar") is None
    assert agent.read_digest(tmp_path / "missing.jar") is None


def test_without_torchserve_it_says_what_to_do(tmp_path):
    with pytest.raises(SetupError, match=r"(?s)no TorchServe in .*run `make setup` again"):
        agent.build_agent(tmp_path, tmp_path / "log", agent.SOURCES, "digest")
