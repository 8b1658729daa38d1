"""What one request may cost in a worker; the handler refuses what is beyond, by the limit's name.

Each name is one that the handler of that kind of model knows (`LIMITS` in handlers/): it has its own values
for servers without a plan, and these replace them.
"""

from __future__ import annotations

from config.definitions import ModelDefinition
from config.plan import Settings


def plan_limits(model: ModelDefinition) -> Settings:
    """By the kind of the model; a kind without limits has none."""
    plan = PLANS.get(model.kind)
    return plan(model) if plan else {}


def _plan_image(model: ModelDefinition) -> Settings:
    return {}


def _plan_text(model: ModelDefinition) -> Settings:
    return {}


PLANS = {"image": _plan_image, "text": _plan_text}
