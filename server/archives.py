"""Reads what an archive, a plain zip, says about itself, and compares its files with what was built.

Their hashes stand in the archive's own SHA256SUMS, in the form of sha256sum(1), and that file's hash is its
id. It is no signature: who rewrites it too makes another archive, with another id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from config.plan import ModelPlan, Plan
from handlers.backends.catalogue import BACKENDS, BASELINE, OTHER_SUMS, name_variant, needs_wide_sums
from server.errors import ServerError

SUMS_FILE = "SHA256SUMS"
"""Written by the build: the hash of every other file, one a line (models/archive.py)."""


@dataclass(frozen=True, kw_only=True)
class Canary:
    """An input whose answer is known."""

    file: str
    """Name of the input, in the archive and in run/samples (with the model's name before it)."""
    body: bytes
    """The input."""
    content_type: str
    """How it is sent."""
    expected: Mapping[str, float]
    """Label → probability (or value, of a regression), best first."""
    tolerance: Mapping[str, Mapping[str, float]]
    """Precision → {relative, absolute}."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One archive of the model store."""

    name: str
    """The model's name."""
    path: Path
    """The file."""
    archive_id: str
    """SHA-256 of SHA256SUMS, so it changes whenever anything that was packed changes."""
    files: Mapping[str, str]
    """File → SHA-256 at build, of everything packed but SHA256SUMS itself."""
    weights: str
    """Where the weights come from."""
    fell_back: bool
    """Whether it has random weights only because WEIGHTS=auto could have no others."""
    notes: tuple[str, ...]
    """What a user must know, such as a stand-in vocabulary."""
    canary: Canary
    """Proof that it answers right."""
    accuracy: Mapping[str, Mapping[str, Any]]
    """Backend and precision → what the accuracy gate saw at build; FP32, the reference, has none."""
    asked: frozenset[str]
    """Backends and precisions beside FP32 that a build was asked for; no other was judged."""
    torch: str
    """The release it was built and judged with."""
    lost: Mapping[str, str]
    """Of these, why they cannot be served: the gate refused them, or they could not be built there."""


def read_archives(plan: Plan, model_store: Path) -> dict[str, Archive]:
    """All archives of the plan; ServerError names those that are missing."""
    files = {name: model_store / str(model.archive.value) for name, model in plan.models.items()}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        raise ServerError(
            f'no archive: {", ".join(missing)}; build with: make models MODELS="{" ".join(files)}"'
        )
    return {name: read_archive(file) for name, file in files.items()}


def read_archives_left(plan: Plan, model_store: Path) -> dict[str, Archive]:
    """Those of a running server that are still there and sound; its workers have copies of their own."""
    found = {}
    for name, model in plan.models.items():
        with contextlib.suppress(ServerError):
            found[name] = read_archive(model_store / str(model.archive.value))
    return found


def check_chosen(archives: Iterable[Archive]) -> None:
    """ServerError for weights that nobody asked for: a server in the foreground is one for others."""
    lacking = [archive.name for archive in archives if archive.fell_back]
    if lacking:
        raise ServerError(
            f"{', '.join(lacking)}: random weights, because WEIGHTS=auto could have no others at the build; "
            "FOREGROUND=1 wants them chosen: make models WEIGHTS=random, WEIGHTS=pretrained or WEIGHTS=PATH"
        )


def check_precisions(plan: Plan, archives: Mapping[str, Archive]) -> None:
    """ServerError for precisions that archives do not hold, which a worker would say only in its log, and for
    archives of another package set: what the gate judged was another torch's answers."""
    here = _read_release(version("torch"))
    problems = [
        f"{archive.path}: built with torch {archive.torch}, here is {here}; build it with that: "
        f"make models MODELS={name} BACKEND={plan.models[name].backend.value}"
        for name, archive in archives.items()
        if archive.torch != here
    ]
    problems += [
        problem
        for name, archive in archives.items()
        if (problem := explain_absence(archive, plan.models[name]))
    ]
    if problems:
        raise ServerError("; ".join(problems))


def explain_absence(archive: Archive, model: ModelPlan) -> str | None:
    """Why an archive cannot be served as planned, and what to do; None when it can."""
    backend, precision = BACKENDS[model.backend.value], str(model.precision.value)
    variant = name_variant(backend.name, precision)
    build = f"make models MODELS={archive.name} BACKEND={backend.name} PRECISION={precision}"
    if variant in archive.lost:
        return (
            f"{archive.path}: {variant} {archive.lost[variant]} (when the archive was built); "
            f"use PRECISION={BASELINE}, or try again, here or with other CALIBRATION: {build}"
        )
    if needs_wide_sums(archive.accuracy.get(variant, {})):
        return f"{archive.path}: {variant} {OTHER_SUMS}; calibrate it here: {build}"
    if variant in archive.asked or not backend.must_be_judged(precision):
        return None
    held = ", ".join([BASELINE, *sorted(archive.asked - archive.lost.keys())])
    return (
        f"{archive.path}: {variant} is not in it, because no build was asked for it: got {held}; "
        f"add it: {build}"
    )


def read_archive(file: Path) -> Archive:
    """The archive's own description; ServerError when it is not one of ours."""
    try:
        with zipfile.ZipFile(file) as archive:
            definition = json.loads(archive.read("definition.json"))
            canary = json.loads(archive.read("canary.json"))
            sums = archive.read(SUMS_FILE)
            return _parse_archive(file, definition, canary, archive.read(canary["file"]), sums)
    except (OSError, zipfile.BadZipFile, KeyError, TypeError, ValueError) as problem:
        raise ServerError(
            f"{file}: not an archive of this kit: {problem}; build it again: make models MODELS={file.stem}"
        ) from problem


def _parse_archive(
    file: Path, definition: dict[str, Any], canary: dict[str, Any], body: bytes, sums: bytes
) -> Archive:
    return Archive(
        name=definition["name"],
        path=file,
        archive_id=hashlib.sha256(sums).hexdigest(),
        files=parse_sums(sums.decode()),
        weights=definition["weights"],
        fell_back=definition["request"]["source"] == "auto" and definition["weights"].startswith("random"),
        notes=tuple(definition.get("notes", ())),
        canary=Canary(
            file=canary["file"],
            body=body,
            content_type=canary["content_type"],
            expected=canary["expected"],
            tolerance=canary["tolerance"],
        ),
        accuracy=definition["accuracy"],
        asked=frozenset(definition["judged_with"]),
        torch=_read_release(definition["built_with"]["torch"]),
        lost={
            **{name: f"could not be built: {one['cause']}" for name, one in definition["not_built"].items()},
            **{name: f"failed the accuracy gate: {why}" for name, why in definition["refused"].items()},
        },
    )


def _read_release(version: str) -> str:
    """2.8.0 of 2.8.0+cpu."""
    return version.partition("+")[0]


def parse_sums(text: str) -> dict[str, str]:
    """`<sha256>  <name>` a line → name → hash; ValueError for anything else."""
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {name: digest for digest, name in pairs}


def check_answer(canary: Canary, precision: str, answer: Any) -> str | None:
    """None when the canary's answer is right, else what is wrong with it.

    Right: the best expected label is in the answer, its probability within absolute + relative × expected.
    """
    label, expected = next(iter(canary.expected.items()))
    got = read_scores(answer).get(label)
    if got is None:
        return f"expected the label {label!r}: got {json.dumps(answer)[:200]}"
    tolerance = canary.tolerance[precision]
    allowed = tolerance["absolute"] + tolerance["relative"] * abs(expected)
    if not abs(got - expected) <= allowed:  # `not <=` is also true for NaN
        return f"expected {label!r} with {expected:.4f} ± {allowed:.4f}: got {got:.4f}"
    return None


def read_scores(answer: Any) -> dict[str, float]:
    """Label → probability (or value, of a regression) of an image model's list or a text model's object;
    nothing of anything else."""
    try:
        if isinstance(answer, list):
            return {str(one["label"]): float(one.get("probability", one.get("score"))) for one in answer}
        scores = answer.get("probabilities", answer.get("scores"))
        return {str(label): float(score) for label, score in scores.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def find_samples(plan: Plan, folder: Path) -> dict[str, Path]:
    """Model → the file that an earlier call wrote, for archives that are gone."""
    found = {name: sorted(folder.glob(f"{name}-*")) for name in plan.models}
    return {name: files[0] for name, files in found.items() if files}


def write_samples(archives: Mapping[str, Archive], folder: Path) -> dict[str, Path]:
    """Model → file with its canary's input, ready for curl."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}-{archive.canary.file}" for name, archive in archives.items()}
    for name, file in files.items():
        file.write_bytes(archives[name].canary.body)
    return files


_BLOCK_BYTES = 1 << 20
_SHOWN = 3
_DAMAGED = "damaged"
# What Python writes beside the handlers that it imports.
_BYTE_CODE = "__pycache__"


def check_packed(archives: Iterable[Archive]) -> None:
    """ServerError when an archive holds anything else than what was built; 440 MB take half a second."""
    for archive in archives:
        changes = find_changes(archive, hash_packed(archive.path))
        if changes:
            raise ServerError(
                f"{archive.path}: not as it was built: {render_changes(changes)}; "
                f"build it again: make models MODELS={archive.name}"
            )


def check_unpacked(archive: Archive, folder: Path) -> list[str]:
    """What differs between an archive and the folder it was unpacked to, in words; a link is damage, and byte
    code is not looked at."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    names = {str(path.relative_to(folder)): path for path in found}
    hashes = {name: _hash_file(path) for name, path in names.items() if f"{_BYTE_CODE}/" not in name}
    return find_changes(archive, hashes)


def find_changes(archive: Archive, found: Mapping[str, str]) -> list[str]:
    """Every file that differs, is missing or was not built in, by name."""
    built = {**archive.files, SUMS_FILE: archive.archive_id}
    words = {
        **dict.fromkeys(built.keys() - found.keys(), "is missing"),
        **dict.fromkeys(found.keys() - built.keys(), "was not built in"),
        **{name: _tell(built[name], found[name]) for name in built.keys() & found.keys()},
    }
    return [f"{name} {words[name]}" for name in sorted(words) if words[name]]


def _tell(built: str, found: str) -> str:
    if built == found:
        return ""
    return "is damaged" if found == _DAMAGED else f"has sha256 {found[:12]}…, {built[:12]}… was built"


def render_changes(changes: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return ", ".join(changes[:_SHOWN]) + more


def hash_packed(file: Path) -> dict[str, str]:
    """SHA-256 of every member by name; what is packed twice, or fails the zip's own sum, is damaged."""
    with zipfile.ZipFile(file) as archive:
        found = {name: _hash_member(archive, name) for name in archive.namelist()}
        times = Counter(archive.namelist())
    return {name: digest if times[name] == 1 else _DAMAGED for name, digest in found.items()}


def _hash_member(archive: zipfile.ZipFile, name: str) -> str:
    try:
        with archive.open(name) as stream:
            return _hash(stream)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        return _DAMAGED


def _hash_file(path: Path) -> str:
    if path.is_symlink():
        return _DAMAGED
    with path.open("rb") as stream:
        return _hash(stream)


def _hash(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
