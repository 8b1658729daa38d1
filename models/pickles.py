"""Reads other people's pickles (.pt, .pth, .bin) in a process that can do nothing else, as safetensors.

torch.load(weights_only=True) runs no code of the file as long as its own unpickler has no errors, and it had
some (docs/security.md). So it runs without other files, network and processes; tensors by name come back.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors.torch import load_file, save

from models.checkpoint import State, describe_failure, load_tensors, pick_tensors
from models.confinement import confine
from models.errors import BuildError
from models.workspace import open_workspace

ROOT = Path(__file__).parent.parent
WORKSPACES = ROOT / "run" / "build"
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from models.pickles import convert; convert()"
PROBE = "import sys; sys.path.insert(0, sys.argv[1]); from models.confinement import confine; confine()"
SECONDS, CPU_SECONDS = 1200, 600
"""In all, for a file on the slowest disk; to read a few GB takes seconds."""
BASE_BYTES, TIMES = 2 << 30, 4
"""Memory beyond that of the libraries: tensors as read, contiguous, and as bytes."""
ANSWER_BYTES = 1 << 16
SHOWN_CHARACTERS = 600


def read_pickle(path: Path, *, allowed: bool) -> tuple[State, str]:
    """(tensors by name, what must be said of them); `allowed` is ALLOW_PICKLE: read in this process."""
    if allowed:
        with path.open("rb") as source:
            return pick_tensors(load_tensors(source, path.name), name=path.name)
    _check_confinement(path)
    with open_workspace(WORKSPACES, "weights") as work:
        problem, note = _run(path, work)
        if problem:
            raise BuildError(problem)
        return load_file(work / "result"), note


def _check_confinement(path: Path) -> None:
    """Tried before the file is looked at: no file may say itself that it should be trusted."""
    done = subprocess.run([sys.executable, "-I", "-c", PROBE, str(ROOT)], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BuildError(
            f"{path.name} is a pickle, which is only read in a process without rights, and this machine "
            f"cannot make one: {reason}; save it as safetensors, or trust it with ALLOW_PICKLE=1"
        )


def _run(path: Path, work: Path) -> tuple[str, str]:
    """(what is wrong with the file, what must be said of it); without the former `result` holds tensors."""
    (work / "empty").mkdir()
    with (
        path.open("rb") as source,
        (work / "result").open("wb") as result,
        (work / "said").open("wb") as said,
    ):
        held = (source.fileno(), result.fileno())
        try:
            code = subprocess.run(
                [sys.executable, "-I", "-c", CHILD, str(ROOT), path.name, *map(str, held)],
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL, timeout=SECONDS,
                # One thread, so that none has to be started once that is forbidden.
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                cwd=work / "empty", pass_fds=held,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
    with (work / "said").open("rb") as said:
        return _parse(path, said.read(ANSWER_BYTES), code)


def _parse(path: Path, said: bytes, code: int) -> tuple[str, str]:
    answer = None
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(said)
    if code == 0 and isinstance(answer, list) and [type(one) for one in answer] == [str, str]:
        return _clean(answer[0]), _clean(answer[1])
    return f"{path.name} cannot be read as weights: what read it ended with code {code}", ""


def _clean(text: str) -> str:
    """What an untrusted file may have put into a message must not move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:SHOWN_CHARACTERS]


def convert() -> None:
    """The process without rights: one open file as safetensors to another, the outcome to its output."""
    name, problem, note = sys.argv[2], "", ""
    try:
        note = _convert(
            name, os.fdopen(int(sys.argv[3]), "rb"), os.fdopen(int(sys.argv[4]), "wb", buffering=0)
        )
    except BuildError as error:
        problem = str(error)
    except Exception as error:  # torch.load has no common class for what may be wrong with a file
        problem = describe_failure(name, error)
    os.write(1, json.dumps([problem, note]).encode())
    os._exit(0)  # without what Python does at its end, which needs rights


def _convert(name: str, source: BinaryIO, result: BinaryIO) -> str:
    torch.set_num_threads(1)
    _warm_up()
    most = BASE_BYTES + TIMES * os.fstat(source.fileno()).st_size
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = {"AS": mapped + most, "FSIZE": most, "CPU": CPU_SECONDS, "CORE": 0}
    for which, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{which}"), (limit, limit))
    confine()
    state, note = pick_tensors(load_tensors(source, name), name=name)
    # Copies, because tensors of a state dict may share their memory and safetensors' may not.
    content = memoryview(save({key: tensor.detach().contiguous().clone() for key, tensor in state.items()}))
    while content:
        content = content[result.write(content) :]
    return note


def _warm_up() -> None:
    """Import all that reading and writing import late: afterwards no file can be opened."""
    for zipped in (True, False):
        small = io.BytesIO()
        example = {"a": torch.nn.Parameter(torch.zeros(2)), "b": torch.zeros(2, dtype=torch.int64)}
        torch.save(torch.nn.Module().state_dict() | example, small, _use_new_zipfile_serialization=zipped)
        small.seek(0)
        save({"a": load_tensors(small, "")["b"]})
