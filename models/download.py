"""Fetches public pretrained weights, and gives up quickly where there is no internet."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import torch

CONNECT_TIMEOUT_S = 5.0
"""A host that has not answered by then is taken for unreachable."""
BLOCK_BYTES = 1 << 20


class DownloadError(Exception):
    """Public weights cannot be had now; not an error where random weights will do."""


def check_reachable(url: str) -> None:
    """DownloadError unless the host answers within the time-out, with whatever status."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_TIMEOUT_S):
            pass
    except urllib.error.HTTPError:
        return
    except OSError as error:
        host = urllib.parse.urlparse(url).hostname
        raise DownloadError(f"{host} does not answer: {getattr(error, 'reason', error)}") from error


def fetch_checkpoint(url: str) -> Path:
    """A checkpoint in torch's own cache, downloaded when missing; its name holds the start of its SHA-256."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    target = folder / url.rpartition("/")[2]
    if target.is_file():
        return target
    check_reachable(url)
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        _download(url, part)
        _check_hash(part, name=target.name)
        shutil.move(part, target)
    except OSError as error:
        raise DownloadError(f"the download of {target.name} broke off: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _download(url: str, part: Path) -> None:
    started = time.monotonic()
    with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as response, part.open("wb") as file:
        total, done, told = int(response.headers.get("Content-Length", 0)), 0, started
        while block := response.read(BLOCK_BYTES):
            file.write(block)
            done += len(block)
            if time.monotonic() - told > 5:
                told = time.monotonic()
                print(
                    f"  {done >> 20} of {total >> 20} MiB, {told - started:.0f} s",
                    flush=True,
                    file=sys.stderr,
                )
    if total and done != total:
        raise OSError(f"got {done} of {total} bytes")


def _check_hash(part: Path, *, name: str) -> None:
    wanted = re.search(r"-([0-9a-f]{8,})\.", name)
    if wanted is None:
        return
    got = hashlib.sha256(part.read_bytes()).hexdigest()
    if not got.startswith(wanted.group(1)):
        raise DownloadError(f"{name} arrived with another content: sha256 {got[:12]}…")
