"""Reads what the archives of a plan say about themselves, and compares their files with what was built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.plan import ModelPlan, Plan
from handlers.answers import Tolerance, find_fault
from handlers.backends.catalogue import BACKENDS, BASELINE, OTHER_SUMS, name_variant, needs_wide_sums
from handlers.sums import find_damage
from server.errors import ServerError

if TYPE_CHECKING:  # pydantic, which a Python without the environment has not
    from handlers.definition import Definition, Packed


def read_archives(plan: Plan, model_store: Path) -> dict[str, Packed]:
    """All archives of the plan; ServerError names those that are missing."""
    files = {name: model_store / str(model.archive.value) for name, model in plan.models.items()}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        raise ServerError(
            f'no archive: {", ".join(missing)}; build with: make models MODELS="{" ".join(files)}"'
        )
    return {name: read_archive(file) for name, file in files.items()}


def read_archives_left(plan: Plan, model_store: Path) -> dict[str, Packed]:
    """Those of a running server that are still there and sound; its workers have copies of their own."""
    found = {}
    for name, model in plan.models.items():
        with contextlib.suppress(ServerError):
            found[name] = read_archive(model_store / str(model.archive.value))
    return found


def check_chosen(archives: Iterable[Packed]) -> None:
    """ServerError for weights that nobody asked for: a server in the foreground is one for others."""
    lacking = [one.definition.name for one in archives if one.definition.fell_back]
    if lacking:
        raise ServerError(
            f"{', '.join(lacking)}: random weights, because WEIGHTS=auto could have no others at the build; "
            "FOREGROUND=1 wants them chosen: make models WEIGHTS=random, WEIGHTS=pretrained or WEIGHTS=PATH"
        )


def check_precisions(plan: Plan, archives: Mapping[str, Packed]) -> None:
    """ServerError for precisions that archives do not hold, which a worker would say only in its log, and for
    archives of another package set: what the gate judged was another torch's answers."""
    here = _read_release(version("torch"))
    problems = [
        f"{archive.path}: built with torch {built}, here is {here}; build it with that: "
        f"make models MODELS={name} BACKEND={plan.models[name].backend.value}"
        for name, archive in archives.items()
        if (built := _read_release(archive.definition.built_with["torch"])) != here
    ]
    problems += [
        problem
        for name, archive in archives.items()
        if (problem := explain_absence(archive, plan.models[name]))
    ]
    if problems:
        raise ServerError("; ".join(problems))


def explain_absence(archive: Packed, model: ModelPlan) -> str | None:
    """Why an archive cannot be served as planned, and what to do; None when it can."""
    backend, precision = BACKENDS[model.backend.value], str(model.precision.value)
    variant, definition = name_variant(backend.name, precision), archive.definition
    build = f"make models MODELS={definition.name} BACKEND={backend.name} PRECISION={precision}"
    known = definition.variants.get(variant)
    if known and known.lost:
        became = "could not be built" if known.not_built else "failed the accuracy gate"
        return (
            f"{archive.path}: {variant} {became}: {known.lost} (when the archive was built); "
            f"use PRECISION={BASELINE}, or try again, here or with other CALIBRATION: {build}"
        )
    if needs_wide_sums(definition.find_accuracy(variant) or {}):
        return f"{archive.path}: {variant} {OTHER_SUMS}; calibrate it here: {build}"
    if known or not backend.must_be_validated(precision):
        return None
    held = ", ".join([BASELINE, *sorted(definition.served)])
    return (
        f"{archive.path}: {variant} is not in it, because no build was asked for it: got {held}; "
        f"add it: {build}"
    )


def read_archive(file: Path) -> Packed:
    """The archive's own description; ServerError when it is not one of ours."""
    from handlers.definition import NotOursError, read_packed

    try:
        return read_packed(file)
    except NotOursError as problem:
        raise ServerError(
            f"{file}: not an archive of this kit: {problem}; build it again: make models MODELS={file.stem}"
        ) from problem


def _read_release(version: str) -> str:
    """2.8.0 of 2.8.0+cpu."""
    return version.partition("+")[0]


def find_tolerance(definition: Definition, precision: str) -> Tolerance:
    """How far the numbers of an answer at this precision may be from the expected ones."""
    rules = definition.precisions[precision]
    return Tolerance(relative=rules.answer_relative, absolute=rules.answer_absolute)


def check_answer(definition: Definition, precision: str, answer: Any) -> str | None:
    """None when the answer to the example is right, else what is wrong with it (handlers/answers.py)."""
    return find_fault(answer, definition.example.expected, find_tolerance(definition, precision))


def find_samples(plan: Plan, folder: Path) -> dict[str, Path]:
    """Model → the file that an earlier call wrote, for archives that are gone."""
    found = {name: sorted(folder.glob(f"{name}-*")) for name in plan.models}
    return {name: files[0] for name, files in found.items() if files}


def write_samples(archives: Mapping[str, Packed], folder: Path) -> dict[str, Path]:
    """Model → file with its canary's input, ready for curl."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}-{archive.definition.example.file}" for name, archive in archives.items()}
    for name, file in files.items():
        file.write_bytes(archives[name].body)
    return files


def check_packed(archives: Iterable[Packed]) -> None:
    """ServerError when an archive holds anything else than what was built; 440 MB take half a second."""
    for archive in archives:
        damage = find_damage(archive.path, archive.sums)
        if damage:
            raise ServerError(
                f"{archive.path}: not as it was built: {damage}; "
                f"build it again: make models MODELS={archive.definition.name}"
            )
