"""Folders and files of a run: whose they are, one writer at a time, and each file whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

from config.errors import ConfigError

MARKER = ".cpu-kit"
PLAN_FILE = "plan.json"
LOCK = "start.lock"
CHECKOUT_RUN = Path(__file__).resolve().parent.parent / "run"
_MARKER_TEXT = (
    "The TorchServe CPU kit keeps a server's plan, state and logs here; `make clean` removes them.\n"
)
_OWN_FILES = {
    PLAN_FILE: {"schema", "settings", "instances"},
    "timings.json": {"schema", "settings", "models"},
    "tuned.json": {"schema", "made_for", "chosen"},
}
"""Files that show it too, by fields of each: a plan, a batch profile that `make tune` measured, a tuned plan
that `make clean` left."""
_OF_FILE_SYSTEMS = {"lost+found"}
"""An empty volume may hold it."""
_NAMES_SHOWN = 3
# sockaddr_un.sun_path holds 108 bytes with its final zero.
_SOCKET_PATH_BYTES = 107
# TorchServe's workers have .ts.sock.65535 in it (Connector.java), HAProxy <model>.sock, which it makes
# as <model>.sock.4194304.tmp and renames.
_PLAIN = re.compile(r"[\w./-]+", re.ASCII)
_LONGEST_SOCKET_NAME = len("/a-model-of-26-characters.sock.4194304.tmp")


def claim_run_folder(path: Path) -> None:
    """Make the folder and mark it as the kit's; ConfigError, and nothing is written, when it is another's."""
    check_run_folder(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (path / MARKER).exists():
        (path / MARKER).write_text(_MARKER_TEXT, encoding="utf-8")


def check_run_folder(path: Path) -> None:
    """Raise unless the folder is new, empty, or marked as the kit's by this very user."""
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"RUN_DIR must be a folder: got the file {path}; give another: RUN_DIR=…")
        entries = path.iterdir() if path.exists() else ()
        names = sorted(entry.name for entry in entries if entry.name not in _OF_FILE_SYSTEMS)
        mark = find_mark(path)
        owner = mark.stat().st_uid if names and mark else os.geteuid()
    except PermissionError as problem:
        raise ConfigError(f"RUN_DIR cannot be looked into: {explain_os_error(problem)}") from problem
    if names and mark is None:
        more = f" and {len(names) - _NAMES_SHOWN} more" * (len(names) > _NAMES_SHOWN)
        raise ConfigError(
            "RUN_DIR must be a new or empty folder, or one of the kit's: "
            f"{path} holds {', '.join(names[:_NAMES_SHOWN])}{more}; nothing was written; give an own folder: "
            "RUN_DIR=…"
        )
    if owner != os.geteuid():
        raise ConfigError(
            f"RUN_DIR must be of the user who runs this, {name_user(os.geteuid())}: {path} is of "
            f"{name_user(owner)}; run as {name_user(owner)}, or give an own folder: RUN_DIR=…"
        )


def find_temporary(path: Path) -> Path:
    """For a run directory's sockets and unpacked archives; in /tmp when its name is too long for a socket, or
    has letters that not every reader of a socket's name takes (HAProxy ends an address at a comma)."""
    inside = path / "tmp"
    short = len(os.fsencode(inside)) + _LONGEST_SOCKET_NAME <= _SOCKET_PATH_BYTES
    if short and _PLAIN.fullmatch(str(inside)):
        return inside
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return Path(f"/tmp/cpu-kit-{os.getuid()}-{digest}")


def find_mark(path: Path) -> Path | None:
    """What shows that the kit made this folder: its marker, its files, or that it is the checkout's own."""
    if (path / MARKER).is_file():
        return path / MARKER
    for name, fields in _OWN_FILES.items():
        with contextlib.suppress(OSError, ValueError):
            raw = json.loads((path / name).read_text(encoding="utf-8"))
            if isinstance(raw, dict) and raw.keys() >= fields:
                return path / name
    return path if path.resolve() == CHECKOUT_RUN else None


def name_user(uid: int) -> str:
    """A user's name; the number where it has none, as in most containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def explain_os_error(problem: OSError) -> str:
    """A sentence for what the system rejected: whose the file is, or the nearest folder above that may be
    looked at, decides nearly always."""
    what = f"{problem.strerror or problem}" + (f": {problem.filename}" if problem.filename else "")
    if not isinstance(problem, PermissionError):
        return what
    owner = ""
    if isinstance(problem.filename, str):
        for place in reversed((Path(problem.filename), *Path(problem.filename).parents)):
            with contextlib.suppress(OSError):
                owner = f"; {place} is of {name_user(place.stat().st_uid)}"
    return f"{what} (as {name_user(os.geteuid())}{owner}); run as its user"


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Only one plans or starts in a run directory at a time; the kernel frees it even when we are killed."""
    with (path / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise ConfigError(
                f"another start is under way in {path}; wait for it, or `make stop`"
            ) from problem
        yield


def write_text_atomically(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write beside the file and rename over it; `mode`, less the umask, holds from the first byte on."""
    draft = name_draft(path)
    draft.unlink(missing_ok=True)
    draft.touch(mode, exist_ok=False)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def name_draft(path: Path) -> Path:
    """What a killed writer leaves; hidden, so that no pattern for finished files finds it."""
    return path.with_name(f".{path.name}.new")
