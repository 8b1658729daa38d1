"""What the supervisor says of server and models; its OpenAPI document has each address that is served."""

from __future__ import annotations

import time
from dataclasses import replace
from http import HTTPStatus

import pytest

from config.protocols import PROBES, list_asked, list_routes
from server.state import Phase
from server.supervisor.probes import Readiness
from server.supervisor.protocols import answer
from tests.plans import make_instance, make_model, make_plan

TENSORS = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 8]}],
}
MODEL = make_model("small", handler="text_embeddings", tensors=TENSORS)
PLAN = replace(make_plan(1), instances={"a1": make_instance(1, {"small": MODEL})})


def ready(**models: tuple[int, int]) -> Readiness:
    return Readiness(phase=Phase.READY, models=models or {"small": (1, 1)}, at=time.monotonic())


def test_a_model_has_its_tensors():
    status, said = answer("/v2/models/small", PLAN, ready())
    assert (status, said["name"], said["versions"]) == (HTTPStatus.OK, "small", ["1.0"])
    assert {key: said[key] for key in TENSORS} == TENSORS
    assert answer("/v2/models/small/versions/1.0", PLAN, ready()) == (status, said)


@pytest.mark.parametrize(
    "path", ["/v2/models/small/ready", "/v2/models/small/versions/1.0/ready", "/v1/models/small"]
)
def test_a_model_is_ready_when_a_worker_serves_it(path):
    assert answer(path, PLAN, ready()) == (HTTPStatus.OK, {"name": "small", "ready": True})
    status, said = answer(path, PLAN, ready(small=(0, 1)))
    assert (status, said["ready"]) == (HTTPStatus.SERVICE_UNAVAILABLE, False)


def test_models_are_listed_for_both_protocols():
    _, said = answer("/v1/models", PLAN, ready())
    assert said["models"] == ["small"] == [one["id"] for one in said["data"]]


@pytest.mark.parametrize(
    "path", ["/v2/models/other", "/v2/models/small/versions/2.0", "/v2/models", "/v3", "/"]
)
def test_other_paths_have_no_answer(path):
    assert answer(path, PLAN, ready()) is None


def test_the_document_has_what_is_served():
    _, said = answer("/openapi.json", PLAN, ready())
    paths = {path for path, _ in list_routes(PLAN, "small")}
    assert {"/predictions/small", "/v1/embeddings", "/invocations"} <= paths
    assert said["paths"].keys() == {*paths, *list_asked(PLAN), "/ready", "/live"}
    assert {"/ready", "/live"} == {*PROBES.values()}
    names = [one["operationId"] for path in said["paths"].values() for one in path.values()]
    assert len({*names}) == len(names)


def test_addresses_without_a_model_name_are_there_where_one_model_is_meant():
    two = replace(PLAN, instances={"a1": make_instance(1, {"small": MODEL, "bert": make_model("bert")})})
    assert [path for path, route in list_routes(two, "small") if route.only] == ["/v1/embeddings"]
    assert [path for path, route in list_routes(two, "bert") if route.only] == []
    both = {"small": MODEL, "more": make_model("more", handler="text_embeddings")}
    twice = replace(PLAN, instances={"a1": make_instance(1, both)})
    assert [path for path, route in list_routes(twice, "small") if route.only] == []


def test_archives_that_others_made_have_the_kits_own_address_alone():
    foreign = replace(PLAN, instances={"a1": make_instance(1, {"old": make_model("old", kit=False)})})
    assert {route.protocol for _, route in list_routes(foreign, "old")} == {""}
    assert not [path for path in list_asked(foreign) if "old" in path]
