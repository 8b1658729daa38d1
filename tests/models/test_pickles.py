"""A file that gets the better of the unpickler finds a process that can do nothing."""

from __future__ import annotations

import pytest
import torch

from models import pickles
from models.errors import BuildError
from models.state import read_checkpoint

EVIL = """
import io, os, socket, sys
sys.path.insert(0, sys.argv[1])
import torch
from models import pickles

def work(source, **options):
    if isinstance(source, io.BytesIO):  # the example that is read before the rights are given up
        return load(source, **options)
    attempts = {{
        "write": lambda: open({target!r}, "w"),
        "read": lambda: open("/etc/passwd"),
        "delete": lambda: os.unlink({victim!r}),
        "call": lambda: socket.socket(),
        "start": lambda: os.posix_spawn("/bin/true", ["true"], {{}}),
        "signal": lambda: os.kill(os.getppid(), 0),
    }}
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
            done.append(name)
        except OSError:
            pass
    raise RuntimeError(f"done: {{done}}")

load, torch.load = torch.load, work
{more}
pickles.convert()
"""
ALL = ["write", "read", "delete", "call", "start", "signal"]


@pytest.fixture
def file(tmp_path):
    torch.save({"a": torch.arange(4.0), "b": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "mine.pth")
    return tmp_path / "mine.pth"


@pytest.mark.parametrize(("more", "done"), [("", []), ("pickles.confine = lambda: None", ALL)])
def test_code_that_runs_while_a_file_is_read_does_no_harm(tmp_path, monkeypatch, file, more, done):
    """With the confinement taken out, the same code does all of it."""
    target, victim = tmp_path / "written", tmp_path / "victim"
    victim.touch()
    monkeypatch.setattr(pickles, "CHILD", EVIL.format(target=str(target), victim=str(victim), more=more))
    with pytest.raises(BuildError) as error:
        read_checkpoint(file)
    assert f"RuntimeError: done: {done}" in str(error.value)
    assert target.exists() == ("write" in done)
    assert victim.exists() != ("delete" in done)


def test_tensors_come_back_as_they_were(tmp_path, monkeypatch, file):
    monkeypatch.setattr(pickles, "WORKSPACES", tmp_path / "build")
    state, _ = read_checkpoint(file)
    assert state["a"].tolist() == [0, 1, 2, 3]
    assert state["b"].dtype == torch.bfloat16
    assert list((tmp_path / "build").iterdir()) == []


def test_where_no_such_process_can_be_made_a_pickle_is_rejected_unless_allowed(monkeypatch, file):
    unable = "from models import confinement; confinement.SECCOMP = -1; confinement.confine()"
    monkeypatch.setattr(pickles, "PROBE", f"import sys; sys.path.insert(0, sys.argv[1]); {unable}")
    with pytest.raises(BuildError, match="ALLOW_PICKLE=1"):
        read_checkpoint(file)
    assert read_checkpoint(file, allow_pickle=True)[0].keys() == {"a", "b"}


def test_a_file_that_blows_itself_up_is_stopped(tmp_path):
    torch.save({"a": torch.zeros(1).expand(1 << 31)}, tmp_path / "bomb.pth")
    with pytest.raises(BuildError, match=r"bomb\.pth cannot be read as weights \(RuntimeError: .*allocate"):
        read_checkpoint(tmp_path / "bomb.pth")
