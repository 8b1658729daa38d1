"""Fetches a Hugging Face repository through the hub's own cache, in which half a download may lie."""

from __future__ import annotations

from pathlib import Path

from models.download import check_reachable
from models.errors import BuildError, DownloadError
from models.files import TOKENIZER_FILES, find_weights_file, has_tokenizer

CHECKPOINT_FILES = (
    "config.json",
    "model.safetensors",
    "pytorch_model.bin",
    *TOKENIZER_FILES,
    "*tokenizer*.json",
    "merges.txt",
)


def fetch_repository(repository: str) -> Path:
    """The folder with the files of a model and its tokenizer, downloaded when the cache lacks one."""
    from huggingface_hub import constants, snapshot_download

    cached = find_cached_repository(repository)
    if cached is not None:
        return cached
    check_reachable(constants.ENDPOINT)
    try:
        return Path(snapshot_download(repository, etag_timeout=5, allow_patterns=list(CHECKPOINT_FILES)))
    except Exception as error:
        raise DownloadError(f"{repository} cannot be downloaded: {error}") from error


def find_cached_repository(repository: str) -> Path | None:
    """The cached folder if it is whole."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(repository, local_files_only=True, allow_patterns=list(CHECKPOINT_FILES))
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

    return str(hf_hub_url(repository, "config.json"))
