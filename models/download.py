"""Fetches public pretrained weights, and gives up quickly where there is no internet."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NoReturn

import torch

from models.errors import BuildError, DownloadError
from models.files import hash_file
from models.progress import say

RETRY_SECONDS = 2.0
"""How long an up-to-date archive may wait to hear whether better weights can be had by now."""
CONNECT_TIMEOUT_S = 5.0
"""A host that has not answered by then is taken for unreachable."""
BLOCK_BYTES = 1 << 20


def check_reachable(url: str, *, seconds: float = CONNECT_TIMEOUT_S) -> None:
    """DownloadError unless the host answers in time, name look-up included, with whatever status."""
    _ask_in_time(url, seconds)


def check_offered(url: str, *, seconds: float) -> None:
    """DownloadError unless the file itself is there; a proxy that rejects it answers, too."""
    status = _ask_in_time(url, seconds)
    if status >= http.client.BAD_REQUEST:
        raise DownloadError(f"{_name_host(url)} answers HTTP {status}")


def _ask_in_time(url: str, seconds: float) -> int:
    # In a thread: a name look-up knows no time-out.
    answers: list[int | str] = []
    worker = threading.Thread(target=lambda: answers.append(_ask(url, seconds)), daemon=True)
    worker.start()
    worker.join(seconds)
    answer = answers[0] if answers else f"nothing within {seconds:g} s"
    if isinstance(answer, str):
        raise DownloadError(f"{_name_host(url)} does not answer: {answer}")
    return answer


def _ask(url: str, seconds: float) -> int | str:
    """The status, or why there is none."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", "") or error) or type(error).__name__


def _name_host(url: str) -> str:
    return urllib.parse.urlparse(url).hostname or url


def locate_checkpoint(url: str) -> Path:
    """Where torch's own cache keeps it."""
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]


def fetch_checkpoint(url: str, *, sha256: str = "") -> Path:
    """A checkpoint in torch's own cache, downloaded when missing, and hashed each time it is used.

    Its hash must be `sha256` where that is known, begin as its name says, and be that of the first use, which
    is kept beside it.
    """
    target = locate_checkpoint(url)
    if not target.is_file():
        _fetch(url, target)
    _check_kept(target, check_file(target, sha256=sha256))
    return target


def _fetch(url: str, target: Path) -> None:
    check_reachable(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        _download(url, part)
        check_name(hash_file(part), name=target.name)
        shutil.move(part, target)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"the download of {target.name} broke off: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _download(url: str, part: Path) -> None:
    started = time.monotonic()
    with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as response, part.open("wb") as file:
        total, done, told = int(response.headers.get("Content-Length", 0)), 0, started
        while block := response.read(BLOCK_BYTES):
            file.write(block)
            done += len(block)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                say(f"  {done >> 20} of {total >> 20} MiB, {told - started:.0f} s", sys.stderr)
    if total and done != total:
        raise OSError(f"got {done} of {total} bytes")


def check_name(got: str, *, name: str) -> None:
    """DownloadError when a download's SHA-256 does not begin as its name says."""
    if not got.startswith(_read_digits(name)):
        raise DownloadError(f"{name} arrived with another content: sha256 {got[:12]}…")


def _read_digits(name: str) -> str:
    """`11ad3fa6` of resnet50-11ad3fa6.pth; nothing where a name holds none."""
    found = re.search(r"-([0-9a-f]{8,64})\.", name)
    return found.group(1) if found else ""


def check_file(file: Path, *, sha256: str = "") -> str:
    """The SHA-256 of a cached file; BuildError when it is not `sha256`, or not what its name begins with.

    No DownloadError: for that WEIGHTS=auto would take random weights.
    """
    got = hash_file(file)
    for wanted, source in (
        (sha256, "weights_sha256 in model.yaml"),
        (_read_digits(file.name), "its name"),
    ):
        if not got.startswith(wanted):
            _reject(file, got, wanted, source)
    return got


def _check_kept(file: Path, got: str) -> None:
    """Compare with what the first use wrote down, or be the first."""
    kept = file.with_name(f"{file.name}.sha256")
    if not kept.exists():
        kept.write_text(f"{got}  {file.name}\n", encoding="utf-8")
        say(f"  {file.name}: first use: sha256 {got} is kept in {kept}")
        return
    wanted = kept.read_text(encoding="utf-8").partition(" ")[0]
    if got != wanted:
        _reject(file, got, wanted, str(kept), more="; delete both if a new content is meant")


def _reject(file: Path, got: str, wanted: str, source: str, *, more: str = "") -> NoReturn:
    raise BuildError(
        f"{file} has sha256 {got[:12]}…, but {source} says {wanted[:12]}…; delete the file, then it is "
        f"downloaded again{more}"
    )
