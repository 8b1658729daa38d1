"""Addresses of the standard protocols: one table for the reverse proxy, the supervisor and /openapi.json.

A prediction's address names the protocol of its body (handlers/protocols.py); the kit's own, which is
TorchServe's, has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from config.plan import ModelPlan, Plan
from handlers.definition import MODEL_VERSION

EMBEDDINGS = "text_embeddings"
"""The handler that /v1/embeddings is of."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """An address of predictions; `{model}` and `{version}` are those of the plan."""

    path: str
    protocol: str
    """As handlers/protocols.py calls it; "": the kit's own."""
    summary: str
    only: bool = False
    """There where one model alone can be meant."""


ROUTES = (
    Route(path="/predictions/{model}", protocol="", summary="TorchServe's own"),
    Route(path="/predictions/{model}/{version}", protocol="", summary="of a version"),
    Route(path="/v2/models/{model}/infer", protocol="v2", summary="Open Inference Protocol"),
    Route(path="/v2/models/{model}/versions/{version}/infer", protocol="v2", summary="of a version"),
    Route(path="/v1/models/{model}:predict", protocol="v1", summary="KServe v1"),
    Route(path="/v1/embeddings", protocol="openai", summary="OpenAI's embeddings", only=True),
    Route(path="/invocations", protocol="", summary="SageMaker", only=True),
)
PROBES = {"/ready": "/ready", "/live": "/live", "/ping": "/ready", "/v2/health/ready": "/ready",
          "/v2/health/live": "/live"}  # fmt: skip
"""Address that needs no token → what the supervisor is asked."""
ASKED = (
    "/v2", "/v2/models/{model}", "/v2/models/{model}/ready", "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/ready", "/v1/models", "/v1/models/{model}", "/openapi.json",
)  # fmt: skip
"""What the supervisor says of server and models, to who has the token."""


def list_routes(plan: Plan, name: str) -> Iterator[tuple[str, Route]]:
    """(Path, route) of a model's predictions; others' archives have the kit's own alone."""
    model = plan.models[name]
    for route in ROUTES:
        if (route.protocol and not model.kit) or (route.only and not _is_only(plan, route, model)):
            continue
        for version in sorted(model.archives) if "{version}" in route.path else [""]:
            yield route.path.format(model=name, version=quote(version, safe="")), route


def _is_only(plan: Plan, route: Route, model: ModelPlan) -> bool:
    if route.protocol == "openai":
        return [one for one in plan.models.values() if one.handler == EMBEDDINGS] == [model]
    return len(plan.models) == 1


def list_asked(plan: Plan) -> Iterator[str]:
    """Paths of ASKED, for the kit's models."""
    for path in ASKED:
        for name in [name for name, one in plan.models.items() if one.kit] if "{model}" in path else [""]:
            yield path.format(model=name, version=MODEL_VERSION)
