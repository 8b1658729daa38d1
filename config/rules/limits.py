"""What one request may cost in a worker; the handler refuses what is beyond, by the limit's name.

Each name is one that the handler of that kind of model knows (`LIMITS` in handlers/): it has its own values
for servers without a plan, and these replace them.
"""

from __future__ import annotations

from config.definitions import ModelDefinition
from config.plan import Settings
from config.rules.work import plan_text_work


def plan_limits(model: ModelDefinition, precision: str, batch: int, models: int) -> Settings:
    """By the kind of the model, of `models` on the same cores; a kind without limits has none."""
    if model.kind == "image":
        return _plan_image(model)
    if model.kind == "text" and model.token_lengths:
        return plan_text_work(model, precision, batch, models)
    return {}


def _plan_image(model: ModelDefinition) -> Settings:
    return {}
