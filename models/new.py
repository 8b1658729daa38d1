"""Writes `models/<name>/model.yaml` for a folder or file of weights: `make model FROM=…`.

What a Hugging Face folder says of its task is read from its JSON files alone; whether it can be served is
seen when its archive is built.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.errors import InputError
from models.files import CROSS_ENCODER_FILE, find_weights_file
from models.names import MODELS_FOLDER

SHIPPED = ("image_classifier", "text_classifier", "text_embeddings", "token_classifier")
"""Handlers; models/options.py says what each takes, and a test compares."""
TASKS = {
    "ForSequenceClassification": "text_classifier",
    "ForTokenClassification": "token_classifier",
}
"""End of a class of transformers → handler."""
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
"""As sentence-transformers writes them."""
ENTAILMENT = "entailment"
"""A label that only classifiers of pairs have (MNLI, RTE)."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
EXAMPLE_TEXT = "The parcel came late and the box was open, but nothing is missing."
EXAMPLE_QUERY = "Was the parcel complete?"


@dataclass(kw_only=True)
class Recognised:
    """What a folder is served by, and why."""

    handler: str
    why: str
    options: dict[str, Any] = field(default_factory=dict)


def write_model(
    source: Path,
    *,
    name: str = "",
    handler: str = "",
    architecture: str = "",
    folder: Path = MODELS_FOLDER,
) -> list[str]:
    """Lines that say what was recognised and what to do next; InputError says what cannot be served."""
    if str(source) == ".":
        raise InputError("FROM must be a folder or a file of weights: got none")
    if not source.exists():
        raise InputError(f"FROM must be a folder or a file of weights: got {source}, which does not exist")
    source = source.resolve()
    name = name or re.sub(
        r"[^A-Za-z0-9_.-]+", "-", source.name.split(".")[0] if source.is_file() else source.name
    )
    if not NAME.fullmatch(name):
        raise InputError(f"--name must be letters, digits and - _ . : got {name!r}")
    found = recognise(source, handler, architecture)
    target = folder / name / "model.yaml"
    if target.parent.exists():
        raise InputError(f"{target.parent} is there already; edit its model.yaml, or give another --name")
    target.parent.mkdir(parents=True)
    target.write_text(render(name, source, found, architecture), encoding="utf-8")
    return [f"{target}: {found.handler}, {found.why}", f"next: make serve MODELS={name}"]


def render(name: str, source: Path, found: Recognised, architecture: str) -> str:
    """model.yaml."""
    lines = [f"name: {name}", f"handler: {found.handler}", f"weights: {json.dumps(str(source))}"]
    if architecture:
        lines.append(f"architecture: {architecture}")
    if found.handler == "image_classifier":
        lines.append("# example: image.jpg   # beside this file; one that you know the answer to proves most")
    else:
        pair = {"text": EXAMPLE_QUERY, "text_pair": EXAMPLE_TEXT}
        example = pair if found.options.get("pairs") else EXAMPLE_TEXT
        lines.append(f"example: {json.dumps(example)}   # or one of yours")
    if found.options:
        lines.append(f"options: {json.dumps(found.options)}   # {found.why}")
    return "\n".join(lines) + "\n"


def recognise(source: Path, handler: str = "", architecture: str = "") -> Recognised:
    """InputError where nothing tells the task, or no handler is shipped for it."""
    if handler and handler not in SHIPPED:
        raise InputError(
            f"--handler must be one of {', '.join(SHIPPED)}: got {handler}; for another task write "
            "models/NAME/handler.py and model.yaml yourself (docs/models.md)"
        )
    config = source / "config.json"
    if handler == "image_classifier":
        if not architecture:
            raise InputError(
                "--handler image_classifier needs --arch, a classifier of torchvision.models: got none"
            )
        find_weights_file(source)
        return Recognised(handler="image_classifier", why=f"{architecture} of torchvision")
    if not config.is_file():
        raise InputError(
            f"{source} is no Hugging Face folder (it has no config.json); for a state dict of torchvision "
            "add --handler image_classifier --arch NAME, as in --arch resnet50 (in ARGS=); for anything else "
            "write a handler: docs/models.md"
        )
    said = _read(config)
    find_weights_file(source)
    named = str((said.get("architectures") or [""])[0])
    task = next((one for ending, one in TASKS.items() if named.endswith(ending)), "")
    if not task and ((source / "modules.json").is_file() or named.endswith("Model")):
        task = "text_embeddings"
    task = handler or task
    if not task:
        raise InputError(
            f"{config}: architectures is {named or 'missing'}; served are {', '.join(TASKS)}, and "
            "embeddings of a base model; for anything else write a handler: docs/models.md"
        )
    if task == "text_embeddings":
        assumed = (source / "modules.json").is_file()
        options = read_pooling(source) if assumed else {"pooling": "mean", "normalize": True}
        why = f"{named}, {options['pooling']} pooling{', normalised' if options['normalize'] else ''}"
        doubt = "" if assumed else " (assumed: no modules.json of sentence-transformers says so)"
        return Recognised(handler=task, why=why + doubt, options=options)
    if task == "token_classifier":
        return Recognised(handler=task, why=f"{named}, {_count(said)} labels")
    pairs = takes_pairs(source, said)
    labels = _count(said)
    what = f"{named}, {labels} label{'s' * (labels != 1)}" + (", pairs of texts" if pairs else "")
    return Recognised(handler=task, why=what, options={"pairs": True} if pairs else {})


def _count(config: dict[str, Any]) -> int:
    return len(config.get("id2label") or {}) or int(config.get("num_labels", 2))


def takes_pairs(folder: Path, config: dict[str, Any]) -> bool:
    """Whether a sequence classifier's files say that it was trained on pairs of texts."""
    labels = [str(one).lower() for one in (config.get("id2label") or {}).values()]
    return read_cross_encoder(folder, config) is not None or ENTAILMENT in labels


def read_cross_encoder(folder: Path, config: dict[str, Any]) -> str | None:
    """The activation function of a CrossEncoder of sentence-transformers, of which three versions wrote three
    fields; empty where it names none, None where it is no CrossEncoder."""
    file = folder / CROSS_ENCODER_FILE
    apart = _read(file) if file.is_file() else {}
    if apart.get("model_type") == "CrossEncoder":
        return str(apart.get("activation_fn") or "")
    if config.get("sentence_transformers"):
        return str(config["sentence_transformers"].get("activation_fn") or "")
    earliest = config.get("sbert_ce_default_activation_function")
    return str(earliest) if earliest else None


def read_pooling(folder: Path) -> dict[str, Any]:
    """`pooling` and `normalize` by sentence-transformers' files; InputError for other modules than these."""
    modules = folder / "modules.json"
    if not modules.is_file():
        raise InputError(
            f"{modules} is missing, which says how tokens are pooled; in model.yaml say "
            "options: {pooling: mean, normalize: true}, or pooling: cls"
        )
    parts = {str(one["type"]).rsplit(".", 1)[-1]: str(one.get("path", "")) for one in _read(modules)}
    unknown = sorted(parts.keys() - {"Transformer", "Pooling", "Normalize"})
    pooling = _read(folder / parts.get("Pooling", "1_Pooling") / "config.json")
    chosen = [name for name, on in pooling.items() if name.startswith("pooling_mode") and on is True]
    if unknown or len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise InputError(
            f"{modules}: served are Transformer, Pooling (mean or CLS) and Normalize: got "
            f"{', '.join([*unknown, *chosen]) or 'no pooling'}"
        )
    return {"pooling": POOLINGS[chosen[0]], "normalize": "Normalize" in parts}


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON: {error}") from error
