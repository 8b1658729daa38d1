"""Which of a person's files make up their model: the weights, and what is read beside them.

Standard library only: values are validated before anything is installed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from models.errors import InputError

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
"""The last two are Lightning's and timm's."""
PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""As save_pretrained names them; transformers' Trainer leaves optimizer.pt and others beside them."""
LABEL_FILES = ("labels.txt", "labels.json", "index_to_name.json")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Any one of them holds a vocabulary that is read as it is."""
SENTENCEPIECE_FILES = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
"""A vocabulary that has to be converted first."""
INDEX = ".index.json"
"""Ends the name of the file that says which shard holds which tensor."""
ADAPTER_FILE = "adapter_config.json"
TOKENIZER_SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
CROSS_ENCODER_FILE = "config_sentence_transformers.json"
"""Where sentence-transformers 5.7 keeps what earlier ones wrote into config.json."""
BESIDE = (
    *LABEL_FILES,
    "config.json",
    CROSS_ENCODER_FILE,
    *TOKENIZER_FILES,
    *SENTENCEPIECE_FILES,
    *TOKENIZER_SETTINGS,
)


def find_weights_file(path: Path) -> Path:
    """The file itself; in a folder the one save_pretrained writes (the index, of shards), else the only
    weights file."""
    if path.is_file():
        return path
    if (path / ADAPTER_FILE).is_file():
        raise InputError(
            "an adapter (PEFT) is no whole model; merge it with its base, save the tokenizer beside it, and "
            "give that folder: python -c 'from peft import AutoPeftModelForSequenceClassification as A; "
            'A.from_pretrained("FOLDER").merge_and_unload().save_pretrained("MERGED")\' '
            f"(got {path})"
        )
    found = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES))
    preferred = [path / name for name in PREFERRED if (path / name).is_file()]
    if preferred or len(found) == 1:
        return (preferred or found)[0]
    names = ", ".join(file.name for file in found) or "none"
    raise InputError(
        f"{path} must hold {' or '.join(PREFERRED)}, or exactly one weights file ({', '.join(SUFFIXES)}): "
        f"got {names}; name the file, as in WEIGHTS=MODEL={path}/FILE"
    )


def list_shards(file: Path) -> list[Path]:
    """The files that an index names, in its own folder; none where the file is no index."""
    if not file.name.endswith(INDEX):
        return []
    try:
        names = sorted(set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()))
        shards = [file.parent / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} must name a file for each tensor (weight_map): got {error!r}") from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(f"{file} names {missing[0]}, which is not beside it; copy all shards there")
    return shards


def list_travelling(folder: Path) -> list[Path]:
    """Files and folders beside model.yaml that go into the archive with a handler of their own. Weights files
    do not: the weights that are asked for are packed as safetensors."""
    return [
        one
        for one in sorted(folder.iterdir())
        if one.name not in ("model.yaml", "__pycache__")
        and not one.name.startswith(".")
        and not one.name.endswith((*SUFFIXES, INDEX))
    ]


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
    return _hash_named({one.name: one for one in (file, *list_shards(file), *beside) if one.is_file()})


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
