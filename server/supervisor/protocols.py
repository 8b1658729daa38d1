"""What the standard protocols ask of a server and its models, and the OpenAPI document of all addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from config.plan import ModelPlan, Plan
from config.protocols import list_asked, list_routes
from handlers.definition import MODEL_VERSION
from server import VERSION
from server.supervisor.probes import Readiness

NAME = "torchserve-cpu-kit"
PLATFORM = "torchserve_cpu_kit"
Answer = tuple[HTTPStatus, dict[str, Any]]
ERRORS = {
    "400": "What was sent is wrong; `error` says what to send", "401": "No valid token",
    "404": "No such model", "413": "The body or its content is too large",
    "415": "The body's type or encoding is not taken",
    "503": "Overload, or no worker; Retry-After says when to try again", "504": "No response by the deadline",
}  # fmt: skip


TEXT = {"type": "string", "minLength": 1, "pattern": r"\S"}
"""Not only blanks."""


def answer(path: str, plan: Plan, readiness: Readiness) -> Answer | None:
    """Of a path of config.protocols.ASKED; None of another one."""
    if path not in list_asked(plan):
        return None
    kit = {name: model for name, model in plan.models.items() if model.kit}
    match path.strip("/").split("/"):
        case ["openapi.json"]:
            return HTTPStatus.OK, describe_addresses(plan)
        case ["v2"]:
            return HTTPStatus.OK, {"name": NAME, "version": VERSION, "extensions": ["binary_tensor_data"]}
        case ["v1", "models"]:
            # KServe's list of names, and OpenAI's of objects.
            listed = [{"id": name, "object": "model", "created": 0, "owned_by": NAME} for name in kit]
            return HTTPStatus.OK, {"models": [*kit], "object": "list", "data": listed}
        case ["v1", "models", name]:
            return _tell_ready(name, readiness)
        case ["v2", "models", name, *_, "ready"]:
            return _tell_ready(name, readiness)
        case ["v2", "models", name, *_]:
            return HTTPStatus.OK, {
                "name": name, "versions": [MODEL_VERSION], "platform": PLATFORM, **kit[name].tensors
            }  # fmt: skip
    raise AssertionError(path)


def _tell_ready(name: str, readiness: Readiness) -> Answer:
    ready = readiness.live and readiness.models.get(name, (0, 0))[0] > 0
    return HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, {"name": name, "ready": ready}


def describe_addresses(plan: Plan) -> dict[str, Any]:
    """OpenAPI 3.1 of what is served: its models, and no others."""
    paths: dict[str, Any] = {}
    for name, model in plan.models.items():
        for path, route in list_routes(plan, name):
            paths[path] = {
                method: {
                    "operationId": _name_operation(method, path), "tags": [name],
                    "summary": f"{name}: {route.summary}",
                    "parameters": [{"$ref": "#/components/parameters/deadline"}],
                    "requestBody": {"required": True, "content": _describe_body(name, model, route.protocol)},
                    "responses": _describe_responses(_describe_response(route.protocol)),
                }
                for method in (("post",) if route.protocol else ("post", "put"))
            }  # fmt: skip
    for path in list_asked(plan):
        paths[path] = {"get": _describe_question(path)}
    for path in ("/ready", "/live"):
        paths[path] = {"get": {**_describe_question(path), "security": []}}
    return {
        "openapi": "3.1.0",
        "info": {"title": NAME, "version": VERSION},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "parameters": {"deadline": {
                "name": "X-Deadline-Ms", "in": "header", "required": False,
                "description": "After so many ms the response is 504",
                "schema": {"type": "integer", "minimum": 1, "maximum": plan.proxy.largest_deadline_ms},
            }},
            "schemas": {"Error": {
                "type": "object", "required": ["code", "error"],
                "properties": {"code": {"type": "integer"}, "error": {"type": "string"}},
            }},
        },
    }  # fmt: skip


def _name_operation(method: str, path: str) -> str:
    return "_".join([method, *(part for part in path.replace(":", "/").replace(".", "_").split("/") if part)])


def _describe_question(path: str) -> dict[str, Any]:
    known = {"description": "OK", "content": {"application/json": {"schema": {"type": "object"}}}}
    responses = {
        "200": known,
        "401": _refer_error("No valid token"),
        "503": {**known, "description": "Not ready"},
    }
    return {"operationId": _name_operation("get", path), "summary": f"GET {path}", "responses": responses}


def _refer_error(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _describe_responses(schema: Mapping[str, Any]) -> dict[str, Any]:
    good = {"description": "The answer", "content": {"application/json": {"schema": schema}}}
    return {"200": good, **{code: _refer_error(text) for code, text in ERRORS.items()}}


def _describe_body(name: str, model: ModelPlan, protocol: str) -> dict[str, Any]:
    names = [one["name"] for one in model.tensors.get("inputs", ())]
    if not protocol and "text" not in names:
        return {"application/octet-stream": {}}
    schema = _describe_embeddings(name) if protocol == "openai" else _BODIES[protocol](names)
    return {"application/json": {"schema": schema}}


def _describe_texts(names: Sequence[str]) -> dict[str, Any]:
    properties = dict.fromkeys(names, TEXT)
    return {"type": "object", "required": ["text"], "additionalProperties": False, "properties": properties}


def _describe_instances(names: Sequence[str]) -> dict[str, Any]:
    one = {"type": "object", "required": ["b64"], "properties": {"b64": {"type": "string"}}}
    item = {"anyOf": [TEXT, _describe_texts(names)]} if "text" in names else one
    items = {"type": "array", "minItems": 1, "items": item}
    return {"type": "object", "required": ["instances"], "properties": {"instances": items}}


def _describe_tensors(names: Sequence[str]) -> dict[str, Any]:
    tensor = {
        "type": "object", "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"enum": [*names]}, "datatype": {"const": "BYTES"},
            "shape": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}},
            "data": {"type": "array", "items": {"type": "string"}},
            "parameters": {"type": "object"},
        },
    }  # fmt: skip
    inputs = {"type": "array", "minItems": 1, "items": tensor}
    return {
        "type": "object", "required": ["inputs"],
        "properties": {"id": {"type": "string"}, "parameters": {"type": "object"}, "inputs": inputs},
    }  # fmt: skip


def _describe_embeddings(name: str) -> dict[str, Any]:
    given = {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": TEXT}]}
    return {
        "type": "object", "required": ["model", "input"],
        "properties": {
            "model": {"const": name}, "input": given, "encoding_format": {"enum": ["float", "base64"]}
        },
    }  # fmt: skip


_BODIES = {"": _describe_texts, "v1": _describe_instances, "v2": _describe_tensors}


def _describe_response(protocol: str) -> dict[str, Any]:
    keys: Mapping[str, Sequence[str]] = {
        "": (), "v1": ("predictions",), "v2": ("model_name", "model_version", "outputs"),
        "openai": ("object", "data", "model", "usage"),
    }  # fmt: skip
    return {"type": "object", "required": [*keys[protocol]]} if protocol else {}
