"""Public clients of the standard protocols against one server; run in an environment of their own.

clients.py [--embeddings] URL MODEL TOKEN ITEM…: prints a JSON object of check → "" or what went wrong. ITEM
is a text, or @ and a file whose bytes are one. The model has one input of BYTES, and its outputs have the
items as their first dimension.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import tritonclient.http as triton
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

FLAGS = [word for word in sys.argv[1:] if word.startswith("--")]
URL, MODEL, TOKEN, *GIVEN = (word for word in sys.argv[1:] if word not in FLAGS)
ITEMS = [Path(one[1:]).read_bytes() if one.startswith("@") else one.encode() for one in GIVEN]
TEXTS = not GIVEN[0].startswith("@")
TENSOR = np.array(ITEMS, dtype=np.object_)


def headers(**more: str) -> dict[str, str]:
    """Of one request: the clients add to what they are given."""
    return {"Authorization": f"Bearer {TOKEN}", **more}


def open_triton() -> triton.InferenceServerClient:
    return triton.InferenceServerClient(URL.removeprefix("http://"), concurrency=1)


def make_input(name: str, binary: bool) -> triton.InferInput:
    one = triton.InferInput(name, [len(ITEMS)], "BYTES")
    one.set_data_from_numpy(TENSOR, binary_data=binary)
    return one


def check_triton_says_what_is_there() -> None:
    client = open_triton()
    assert client.is_server_live(headers=headers())
    assert client.is_server_ready(headers=headers())
    assert client.is_model_ready(MODEL, headers=headers())
    assert client.get_server_metadata(headers=headers())["name"]
    said = client.get_model_metadata(MODEL, headers=headers())
    assert said["name"] == MODEL
    assert [one["datatype"] for one in said["inputs"]] == ["BYTES"]
    assert said["outputs"]


def list_outputs(client: triton.InferenceServerClient) -> list[str]:
    return [one["name"] for one in client.get_model_metadata(MODEL, headers=headers())["outputs"]]


def check_triton_infers(binary: bool) -> None:
    client = open_triton()
    said = client.get_model_metadata(MODEL, headers=headers())
    names = list_outputs(client)
    asked = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
    # The client has no way to write bytes that are not a text as JSON: then the outputs alone are.
    inputs = [make_input(said["inputs"][0]["name"], binary or not TEXTS)]
    # Without one KServe takes a body for tensors.
    kind = {} if binary else {"Content-Type": "application/json"}
    result = client.infer(MODEL, inputs, outputs=asked, request_id="an-id", headers=headers(**kind))
    assert result.get_response()["id"] == "an-id"
    for name in names:
        found = result.as_numpy(name)
        assert found.shape[0] == len(ITEMS), (name, found.shape)


def check_triton_infers_json() -> None:
    check_triton_infers(binary=False)


def check_triton_infers_binary() -> None:
    check_triton_infers(binary=True)


def check_triton_gets_an_error() -> None:
    client = open_triton()
    wrong = triton.InferInput("text", [2], "BYTES")
    wrong.set_data_from_numpy(np.array([b"a", b"b"], dtype=np.object_), binary_data=False)
    wrong._data = ["a"]
    with contextlib.suppress(triton.InferenceServerException):
        client.infer(MODEL, [wrong], headers=headers())
        raise AssertionError("a tensor with too few elements was taken")


async def ask_kserve(protocol: str, ask: Callable[[InferenceRESTClient], Any]) -> Any:
    client = InferenceRESTClient(RESTConfig(protocol=protocol, timeout=60))
    try:
        return await ask(client)
    finally:
        await client.close()


def check_kserve_v2() -> None:
    async def ask(client: InferenceRESTClient) -> None:
        assert await client.is_server_live(URL, headers=headers())
        assert await client.is_server_ready(URL, headers=headers())
        assert await client.is_model_ready(URL, MODEL, headers=headers())
        one = InferInput("text" if TEXTS else "data", [len(ITEMS)], "BYTES")
        one.set_data_from_numpy(TENSOR, binary_data=not TEXTS)
        response = await client.infer(
            URL, InferRequest(model_name=MODEL, infer_inputs=[one]), model_name=MODEL, headers=headers()
        )
        assert response.model_name == MODEL
        assert all(output.shape[0] == len(ITEMS) for output in response.outputs)

    asyncio.run(ask_kserve("v2", ask))


def check_kserve_v1() -> None:
    async def ask(client: InferenceRESTClient) -> None:
        assert await client.is_model_ready(URL, MODEL, headers=headers())
        response = await client.infer(URL, {"instances": [*GIVEN]}, model_name=MODEL, headers=headers())
        assert len(response["predictions"]) == len(ITEMS)

    if TEXTS:
        asyncio.run(ask_kserve("v1", ask))


def check_openai_embeds() -> None:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=TOKEN, max_retries=0)
    assert MODEL in [one.id for one in client.models.list().data]
    answer = client.embeddings.create(model=MODEL, input=[*GIVEN], encoding_format="float")
    coded = client.embeddings.create(model=MODEL, input=[*GIVEN])  # its default is base64
    assert [one.index for one in answer.data] == [*range(len(ITEMS))]
    assert answer.usage.prompt_tokens > 0
    for ours, theirs in zip(answer.data, coded.data, strict=True):
        assert np.allclose(ours.embedding, theirs.embedding, atol=1e-6)
    with contextlib.suppress(openai.NotFoundError):
        client.embeddings.create(model="another", input="a")
        raise AssertionError("a model that is not there was answered")


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in globals().items()
    if name.startswith("check_") and check is not check_triton_infers
}
if "--embeddings" not in FLAGS:
    del CHECKS["openai_embeds"]


def run(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc(limit=-2)
    return ""


print(json.dumps({name: run(check) for name, check in CHECKS.items()}))
