"""The rungs of RUNGS=engines: each engine in each precision that it offers, set up as the ladder's top."""

from __future__ import annotations

from collections.abc import Collection

from config.rules.requests import PRECISIONS
from handlers.engines import ENGINES, name_variant
from handlers.engines.engine import Engine
from loadtest.experiments.ladder.rungs import Rung
from loadtest.experiments.ladder.settings import FROZEN, IPEX, ITEMS, OFF, ON, Settings


def list_engine_rungs(missing: Collection[str] = ()) -> list[Rung]:
    """By precision, the default engine first; those in `missing` are not installed, and not measured."""
    rungs: list[Rung] = []
    for precision in PRECISIONS:
        for engine in ENGINES.values():
            if precision in engine.flags:
                rungs.append(_make_rung(engine, precision, rungs, missing))
    return rungs


def _make_rung(engine: Engine, precision: str, rungs: list[Rung], missing: Collection[str]) -> Rung:
    settings = make_settings(engine, precision)
    before = _find_before(settings, [one for one in rungs if not one.reason])
    absence = f"{engine.name} is not installed (make setup BACKEND={engine.name})"
    return Rung(
        name=f"{engine.name}-{precision}",
        label=name_variant(engine.name, precision),
        before=before.name if before else None,
        own=tuple(one for one in ITEMS if before and getattr(settings, one) != getattr(before.settings, one)),
        settings=settings,
        reason=absence if engine.name in missing else "",
    )


def _find_before(settings: Settings, measured: list[Rung]) -> Rung | None:
    """The first engine in the same precision; where it is that itself, in the first precision."""
    alike = [one for one in measured if one.settings.precision == settings.precision]
    return next(iter([*alike, *measured]), None)


def make_settings(engine: Engine, precision: str) -> Settings:
    """An engine that is not on TorchScript names its graph as itself."""
    scripted = any(step.name == "trace" for step in engine.steps)
    return Settings(
        ipex=ON if engine.name == IPEX else OFF,
        graph=FROZEN if scripted else engine.name,
        precision=precision,
    )
