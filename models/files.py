"""Which of a person's files make up their model: the weights, and what is read beside them.

Standard library only: values are judged before anything is installed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from models.errors import InputError

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
PREFERRED = ("model.safetensors", "pytorch_model.bin")
"""As save_pretrained names them; transformers' Trainer leaves optimizer.pt and others beside them."""
LABEL_FILES = ("labels.txt", "labels.json", "index_to_name.json")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model")
"""Any one of them holds a vocabulary."""
TOKENIZER_SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
BESIDE = (*LABEL_FILES, "config.json", *TOKENIZER_FILES, *TOKENIZER_SETTINGS)


def find_weights_file(path: Path) -> Path:
    """The file itself; in a folder the one save_pretrained writes, else the only weights file."""
    if path.is_file():
        return path
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    preferred = [path / name for name in PREFERRED if path / name in found]
    if preferred or len(found) == 1:
        return (preferred or found)[0]
    names = ", ".join(file.name for file in found) or "none"
    raise InputError(
        f"{path} must hold {' or '.join(PREFERRED)}, or exactly one weights file ({', '.join(SUFFIXES)}): "
        f"got {names}; name the file, as in WEIGHTS=MODEL={path}/FILE"
    )


def find_labels_file(folder: Path) -> Path | None:
    """The labels beside a user's weights, if there are any."""
    return next((folder / name for name in LABEL_FILES if (folder / name).is_file()), None)


def has_tokenizer(folder: Path) -> bool:
    """Whether a Hugging Face folder holds a tokenizer's vocabulary."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def hash_user_files(path: Path) -> str:
    """SHA-256 over the weights file and all that is read beside it, with their names."""
    file = find_weights_file(path)
    beside = [file.parent / name for name in BESIDE]
    return _hash_named({one.name: one for one in (file, *beside) if one.is_file()})


def hash_data(path: Path) -> str:
    """SHA-256 over a file, or over the names and contents of all files below a folder."""
    if path.is_file():
        return hash_file(path)
    return _hash_named({str(one.relative_to(path)): one for one in path.rglob("*") if one.is_file()})


def _hash_named(files: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        digest.update(f"{name}\0{hash_file(file)}\n".encode())
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
