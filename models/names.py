"""Which models there are. Standard library only: names are validated before anything is installed."""

from __future__ import annotations

from pathlib import Path

MODELS_FOLDER = Path(__file__).parent


def list_models(folder: Path = MODELS_FOLDER) -> list[str]:
    """Names of all models that have a definition, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/model.yaml"))
