"""The engines: what can compute a model, a file each; a new one is its file and a line in ENGINES.

Importing them needs the standard library alone: plan and verify ask them too, before anything is installed.
"""

from __future__ import annotations

from handlers.engines.eager import EagerEngine
from handlers.engines.engine import Engine
from handlers.engines.inductor import InductorEngine
from handlers.engines.ipex import IpexEngine
from handlers.engines.openvino import OpenVinoEngine

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (IpexEngine(), OpenVinoEngine(), InductorEngine(), EagerEngine())
}
"""The default first."""
DEFAULT = next(iter(ENGINES))
SWITCHED = {engine.switch: engine.name for engine in ENGINES.values() if engine.switch}
"""Property of TorchServe's configuration → the engine it names."""


def name_variant(engine: str, precision: str) -> str:
    """What is built and judged as one: `ipex int8`."""
    return f"{engine} {precision}"
