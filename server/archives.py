"""What the kit's archives of a plan say about themselves, and whether they still are what was planned with.

An archive that others made has no description: it is in none of these dicts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from config.plan import ModelPlan, Plan
from handlers.answers import Tolerance, find_fault
from handlers.backends.catalogue import BACKENDS, OTHER_SUMS, name_variant, needs_wide_sums
from handlers.definition import Definition, NotOursError, Packed, read_packed
from handlers.sums import find_damage
from server.errors import ServerError


def _list_files(plan: Plan, *, kit: bool) -> dict[str, Path]:
    """Of the versions that are asked where a request names none."""
    models = {name: model for name, model in plan.models.items() if model.kit is kit}
    return {name: Path(plan.model_store) / one.archives[one.version] for name, one in models.items()}


def read_archives(plan: Plan) -> dict[str, Packed]:
    """By model; ServerError names those that are missing, those that others made too."""
    ours, others = _list_files(plan, kit=True), _list_files(plan, kit=False)
    if missing := [str(file) for file in (*ours.values(), *others.values()) if not file.is_file()]:
        raise ServerError(
            f'no archive: {", ".join(missing)}; build with: make models MODELS="{" ".join(ours)}"'
            + (", or give the right path in MODELS" if others else "")
        )
    return {name: read_archive(file) for name, file in ours.items()}


def read_archives_left(plan: Plan) -> dict[str, Packed]:
    """Those of a running server that are still there and sound; its workers have copies of their own."""
    found = {}
    for name, file in _list_files(plan, kit=True).items():
        with contextlib.suppress(ServerError):
            found[name] = read_archive(file)
    return found


def read_archive(file: Path) -> Packed:
    """The archive's own description; ServerError when it is not one of ours."""
    try:
        return read_packed(file)
    except NotOursError as problem:
        build = f"build it again: make models MODELS={file.stem}"
        raise ServerError(f"{file}: not an archive of this kit: {problem}; {build}") from problem


def check_chosen(archives: Iterable[Packed]) -> None:
    """ServerError for weights that nobody asked for: a server in the foreground is one for others."""
    if lacking := [one.definition.name for one in archives if one.definition.fell_back]:
        raise ServerError(
            f"{', '.join(lacking)}: random weights, because WEIGHTS=auto could have no others at the build; "
            "FOREGROUND=1 wants them chosen: make models WEIGHTS=random, WEIGHTS=pretrained or WEIGHTS=PATH"
        )


def check_precisions(plan: Plan, archives: Mapping[str, Packed]) -> None:
    """ServerError for archives that cannot be served as planned, which a worker would say only in its log.

    Planning looked too, but archives may have been built again since.
    """
    found = [_find_obstacle(archive, plan.models[name]) for name, archive in archives.items()]
    if problems := [problem for problem in found if problem]:
        raise ServerError("; ".join(problems))


def _find_obstacle(archive: Packed, model: ModelPlan) -> str:
    definition, variant = archive.definition, name_variant(model.backend, model.precision)
    build = f"make models MODELS={definition.name} BACKEND={model.backend} PRECISION={model.precision}"
    built, here = (text.partition("+")[0] for text in (definition.built_with["torch"], version("torch")))
    if built != here:  # the accuracy gate compared another torch's answers
        return f"{archive.path}: built with torch {built}, here is {here}; build it with that: {build}"
    if needs_wide_sums(definition.find_accuracy(variant) or {}):
        return f"{archive.path}: {variant} {OTHER_SUMS}; calibrate it here: {build}"
    needed = BACKENDS[model.backend].must_be_validated(model.precision)
    known = definition.variants.get(variant)
    lost = known.lost if known else "no build was asked for it" if needed else ""
    return lost and f"{archive.path}: {variant} is not in it: {lost}; use PRECISION=fp32, or: {build}"


def check_packed(archives: Iterable[Packed]) -> None:
    """ServerError when an archive holds anything else than what was built; 440 MB take half a second."""
    for archive in archives:
        if damage := find_damage(archive.path, archive.sums):
            build = f"build it again: make models MODELS={archive.definition.name}"
            raise ServerError(f"{archive.path}: not as it was built: {damage}; {build}")


def find_tolerance(definition: Definition, precision: str) -> Tolerance:
    """How far the numbers of an answer at this precision may be from the expected ones."""
    rules = definition.precisions[precision]
    return Tolerance(relative=rules.answer_relative, absolute=rules.answer_absolute)


def check_answer(definition: Definition, precision: str, answer: Any) -> str | None:
    """None when the answer to the example is right, else what is wrong with it (handlers/answers.py)."""
    return find_fault(answer, definition.example.expected, find_tolerance(definition, precision))
