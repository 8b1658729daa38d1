"""Reads other people's pickles (.pt, .pth, .bin) in a process that can do nothing else, as safetensors.

torch.load(weights_only=True) runs no code of the file as long as its own unpickler has no errors, and it had
some (docs/supply.md). So it runs where a file that gets the better of it has won nothing: without other
files, network and processes. What comes back are tensors by name and nothing else.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load_file, save

from models.checkpoint import State, is_torchscript, make_stand_ins, pick_tensors
from models.confinement import confine, limit_resources
from models.errors import BuildError
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from models.pickles import convert; convert()"
PROBE = "import sys; sys.path.insert(0, sys.argv[1]); from models.confinement import confine; confine()"
SECONDS = 1200
"""In all, for a file on the slowest disk."""
BASE_BYTES, TIMES = 2 << 30, 4
"""Memory beyond that of the libraries: tensors as read, contiguous, and as bytes."""
ANSWER_BYTES = 1 << 16
SHOWN_CHARACTERS = 600
CAUSE_CHARACTERS = 120


def read_pickle(path: Path, *, allowed: bool) -> tuple[State, str]:
    """(tensors by name, what must be said of them); `allowed` is ALLOW_PICKLE: read in this process."""
    if allowed:
        with path.open("rb") as source:
            return pick_tensors(_load(source, path.name), name=path.name)
    _check_confinement(path)
    with open_workspace(WORKSPACES, "weights") as work:
        problem, note = _run(path, work)
        if problem:
            raise BuildError(problem)
        return load_file(work / "result"), note


def _check_confinement(path: Path) -> None:
    """Tried before the file is looked at: no file may say itself that it should be trusted."""
    command = [sys.executable, "-I", "-c", PROBE, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BuildError(
            f"{path.name} is a pickle, which is only read in a process without rights, and this machine "
            f"cannot make one: {reason}; save it as safetensors, or trust it with ALLOW_PICKLE=1"
        )


def _run(path: Path, work: Path) -> tuple[str, str]:
    """(what is wrong with the file, what must be said of it) by the process that reads it; nothing is wrong
    when `result` holds the tensors."""
    (work / "empty").mkdir()
    said = work / "answer"
    with path.open("rb") as source, (work / "result").open("wb") as result, said.open("wb") as answer:
        held = (source.fileno(), result.fileno())
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", CHILD, str(ROOT), path.name, *map(str, held)],
            stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.DEVNULL,
            # One thread, so that none has to be started once that is forbidden.
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            cwd=work / "empty",
            pass_fds=held,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    with said.open("rb") as answered:
        return _parse(path, answered.read(ANSWER_BYTES), code)


def _parse(path: Path, said: bytes, code: int) -> tuple[str, str]:
    try:
        answer = json.loads(said)
    except ValueError:
        answer = None
    if code == 0 and isinstance(answer, list) and [type(one) for one in answer] == [str, str]:
        return _clean(answer[0]), _clean(answer[1])
    return f"{path.name} cannot be read as weights: what read it ended with code {code}", ""


def _clean(text: str) -> str:
    """What a stranger's file may have put into a message must not move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:SHOWN_CHARACTERS]


def convert() -> None:
    """The process without rights: one open file as safetensors to another, the outcome to its output."""
    problem = note = ""
    try:
        note = _convert()
    except BuildError as error:
        problem = str(error)
    except Exception as error:  # torch.load has no common class for what may be wrong with a file
        problem = describe_failure(sys.argv[2], error)
    os.write(1, json.dumps([problem, note]).encode())
    os._exit(0)  # without what Python does at its end, which needs rights


def _convert() -> str:
    source, result = os.fdopen(int(sys.argv[3]), "rb"), os.fdopen(int(sys.argv[4]), "wb", buffering=0)
    size = os.fstat(source.fileno()).st_size
    torch.set_num_threads(1)
    _warm_up()
    limit_resources(memory_bytes=BASE_BYTES + TIMES * size, file_bytes=BASE_BYTES + TIMES * size)
    confine()
    state, note = pick_tensors(_load(source, sys.argv[2]), name=sys.argv[2])
    # Copies, because tensors of a state dict may share their memory and safetensors' may not.
    content = memoryview(save({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}))
    while content:
        content = content[result.write(content) :]
    return note


def describe_failure(name: str, error: Exception) -> str:
    """For what is no file of weights at all, without torch's advice to read it as code."""
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, pickle.UnpicklingError):
        # What torch.load's unpickler said, before torch.load wrapped it in its advice.
        cause = str(error.__context__ or "").split(". ")[0]
    if not cause or "weights_only" in cause:
        cause = "it is no file of torch.save"
    return (
        f"{name} cannot be read as weights ({' '.join(cause.split())[:CAUSE_CHARACTERS]}); "
        'save it with torch.save(model.state_dict(), "weights.pth") or as safetensors'
    )


def _load(source: BinaryIO, name: str) -> Any:
    if is_torchscript(source):
        raise BuildError(
            f"{name} is a TorchScript file, which holds code; save its weights: "
            f'torch.save(torch.jit.load("{name}").state_dict(), "weights.pth")'
        )
    with torch.serialization.safe_globals(make_stand_ins(source)):
        return torch.load(source, map_location="cpu", weights_only=True)


def _warm_up() -> None:
    """Import all that reading and writing import late: afterwards no file can be opened."""
    for zipped in (True, False):
        small = io.BytesIO()
        example = {"a": torch.nn.Parameter(torch.zeros(2)), "b": torch.zeros(2, dtype=torch.int64)}
        torch.save(torch.nn.Module().state_dict() | example, small, _use_new_zipfile_serialization=zipped)
        small.seek(0)
        save({"a": _load(small, "")["b"]})
