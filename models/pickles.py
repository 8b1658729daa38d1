"""Reads other people's pickles (.pt, .pth, .bin) in a process that can do nothing else, as safetensors.

torch.load(weights_only=True) runs no code of the file as long as its own unpickler has no errors, and it had
some (docs/supply.md). So it runs where a file that gets the better of it has won nothing: without other
files, network and processes. What comes back are tensors by name and nothing else.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

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
SHOWN, SHOWN_CHARACTERS = 5, 600

State = dict[str, torch.Tensor]


def read_pickle(path: Path, *, allowed: bool) -> State:
    """Tensors by name; `allowed` is ALLOW_PICKLE: read in this process instead."""
    if allowed:
        return pick_tensors(_load(path), name=path.name)
    _check_confinement(path)
    with open_workspace(WORKSPACES, "weights") as work:
        problem = _run(path, work)
        if problem:
            raise BuildError(problem)
        return load_file(work / "result")


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


def _run(path: Path, work: Path) -> str:
    """What is wrong with the file, by the process that reads it; empty when `result` holds the tensors."""
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


def _parse(path: Path, said: bytes, code: int) -> str:
    try:
        answer = json.loads(said)
    except ValueError:
        answer = None
    if isinstance(answer, str) and code == 0:
        return _clean(answer)
    return f"{path.name} cannot be read as weights: what read it ended with code {code}"


def _clean(text: str) -> str:
    """What a stranger's file may have put into a message must not move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:SHOWN_CHARACTERS]


def convert() -> None:
    """The process without rights: one open file as safetensors to another, the outcome to its output."""
    problem = ""
    try:
        _convert()
    except BuildError as error:
        problem = str(error)
    except Exception as error:  # torch.load has no common class for what may be wrong with a file
        problem = describe_failure(sys.argv[2], error)
    os.write(1, json.dumps(problem).encode())
    os._exit(0)  # without what Python does at its end, which needs rights


def _convert() -> None:
    source, result = os.fdopen(int(sys.argv[3]), "rb"), os.fdopen(int(sys.argv[4]), "wb", buffering=0)
    size = os.fstat(source.fileno()).st_size
    torch.set_num_threads(1)
    _warm_up()
    limit_resources(memory_bytes=BASE_BYTES + TIMES * size, file_bytes=BASE_BYTES + TIMES * size)
    confine()
    state = pick_tensors(_load(source), name=sys.argv[2])
    # Copies, because tensors of a state dict may share their memory and safetensors' may not.
    content = memoryview(save({name: tensor.detach().contiguous().clone() for name, tensor in state.items()}))
    while content:
        content = content[result.write(content) :]


def describe_failure(name: str, error: Exception) -> str:
    """For what is no file of weights at all."""
    return (
        f"{name} cannot be read as weights ({type(error).__name__}: {error}); "
        "save it with torch.save(model.state_dict(), …) or as safetensors"
    )


def _load(source: Any) -> Any:
    return torch.load(source, map_location="cpu", weights_only=True)


def _warm_up() -> None:
    """Import all that reading and writing import late: afterwards no file can be opened."""
    for zipped in (True, False):
        small = io.BytesIO()
        example = {"a": torch.nn.Parameter(torch.zeros(2)), "b": torch.zeros(2, dtype=torch.int64)}
        torch.save(torch.nn.Module().state_dict() | example, small, _use_new_zipfile_serialization=zipped)
        small.seek(0)
        save({"a": torch.load(small, weights_only=True)["b"]})


def pick_tensors(state: Any, *, name: str) -> State:
    """The state dict in what a file holds; BuildError says what it holds instead."""
    # Training scripts often save {"state_dict": …} and DataParallel's "module." prefix.
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(_is_entry(*item) for item in state.items()):
        raise BuildError(
            f"{name} holds no state dict, which is tensors by name: got {_describe(state)}; "
            "save it with torch.save(model.state_dict(), …)"
        )
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state


def _is_entry(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)


def _describe(state: Any) -> str:
    if not isinstance(state, dict):
        return f"a {type(state).__name__}"
    wrong = [f"{key!r}: {type(value).__name__}" for key, value in state.items() if not _is_entry(key, value)]
    return f"{{{', '.join(wrong[:SHOWN])}}}"
