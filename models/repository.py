"""Fetches a Hugging Face repository through the hub's own cache, in which half a download may lie."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from models.download import check_reachable
from models.errors import BuildError, DownloadError
from models.files import CROSS_ENCODER_FILE, TOKENIZER_FILES, find_weights_file, has_tokenizer, hash_file

CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "pytorch_model.bin",
    *TOKENIZER_FILES,
    "*tokenizer*.json",
    "merges.txt",
    "modules.json",
    "1_Pooling/config.json",
    CROSS_ENCODER_FILE,
)


def fetch_repository(repository: str) -> Path:
    """The folder with the files of a model and its tokenizer, downloaded when the cache lacks one.

    `repository` is a name, or NAME@REVISION. What the cache holds is hashed each time.
    """
    folder = find_cached_repository(repository) or _download(repository)
    for file in folder.iterdir():
        check_blob(file)
    return folder


def _download(repository: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    name, revision = split_revision(repository)
    check_reachable(constants.ENDPOINT)
    try:
        found = snapshot_download(
            name, revision=revision, etag_timeout=5, allow_patterns=list(CHECKPOINT_FILES)
        )
    except Exception as error:
        raise DownloadError(f"{repository} cannot be downloaded: {error}") from error
    return Path(found)


def split_revision(repository: str) -> tuple[str, str | None]:
    """`name@revision`; without one the hub's newest is taken, once."""
    name, _, revision = repository.partition("@")
    return name, revision or None


def check_blob(file: Path) -> None:
    """BuildError when a cached file is not what the hub called it by.

    Its cache keeps a file under its hash: SHA-256 where it is large, else git's own (sha1 of a header and the
    content).
    """
    blob = file.resolve()
    if re.fullmatch("[0-9a-f]{64}", blob.name):
        got = hash_file(blob)
    elif re.fullmatch("[0-9a-f]{40}", blob.name):
        content = blob.read_bytes()
        got = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    else:
        return  # not the hub's cache
    if got != blob.name:
        raise BuildError(
            f"{file} is not what was downloaded: its hash is {got[:12]}…, not {blob.name[:12]}…; "
            f"delete {blob}, then it is downloaded again"
        )


def find_cached_repository(repository: str) -> Path | None:
    """The cached folder if it is whole."""
    from huggingface_hub import snapshot_download

    try:
        name, revision = split_revision(repository)
        folder = snapshot_download(
            name, revision=revision, local_files_only=True, allow_patterns=list(CHECKPOINT_FILES)
        )
    except Exception:  # not in the cache, which is no failure; the hub has many exceptions for it
        return None
    return Path(folder) if is_whole(Path(folder)) else None


def is_whole(folder: Path) -> bool:
    """Whether config, weights and tokenizer are there; a download that broke off leaves some."""
    try:
        find_weights_file(folder)
    except (BuildError, OSError):
        return False
    return (folder / "config.json").is_file() and has_tokenizer(folder)


def locate_repository(repository: str) -> str:
    """Address of a file that every repository of this kind has."""
    from huggingface_hub import hf_hub_url

    name, revision = split_revision(repository)
    return str(hf_hub_url(name, "config.json", revision=revision))
