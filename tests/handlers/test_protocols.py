"""Standard protocols are answered as /predictions answers each of their items."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest

from handlers.protocols import MOST_ITEMS, describe_outputs, open_call, tabulate
from handlers.request import JSON_BYTES, PROTOCOL, Request
from tests.handlers.context import Sent, plain, rows_and_context

TEXTS = ["good", "the room was awful", "food"]
SCORES = {"rel": 1e-4, "abs": 1e-5}


def call(protocol: str, body: Any, *, tail: bytes = b"") -> Sent:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    headers = {PROTOCOL: protocol, **({JSON_BYTES: str(len(data))} if tail else {})}
    return plain(data + tail, "application/octet-stream" if tail else "", **headers)


def ask(handler, folder, *sent: Sent) -> list[tuple[int, bytes, str]]:
    """(Status, body, content type) of each, all in one batch."""
    rows, context = rows_and_context(folder, *sent)
    bodies = handler.handle(rows, context)
    kinds = [context.get_response_content_type(place) for place in range(len(sent))]
    return [
        (context.statuses.get(place, (200, ""))[0], body, kinds[place]) for place, body in enumerate(bodies)
    ]


def ask_json(handler, folder, *sent: Sent) -> list[Any]:
    return [json.loads(body) for _, body, _ in ask(handler, folder, *sent)]


def tensor(values: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": "text", "shape": [len(values)], "datatype": "BYTES", "data": values, **more}


def elements(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def read_output(answer: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in answer["outputs"] if one["name"] == name]
    return found


@pytest.fixture
def expected(texts, tiny_text) -> list[Any]:
    return ask_json(texts, tiny_text, *[plain(text.encode()) for text in TEXTS])


def test_v1_answers_each_instance(texts, tiny_text, expected):
    (answer,) = ask_json(
        texts, tiny_text, call("v1", {"instances": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]})
    )
    assert [one["label"] for one in answer["predictions"]] == [one["label"] for one in expected]
    for got, one in zip(answer["predictions"], expected, strict=True):
        assert got["probabilities"] == pytest.approx(one["probabilities"], **SCORES)


def test_v1_takes_bytes(images, tiny_image, smoke):
    instance = {"b64": base64.b64encode(smoke).decode()}
    answer, alone = ask_json(images, tiny_image, call("v1", {"instances": [instance] * 2}), plain(smoke))
    assert [[row["label"] for row in one] for one in answer["predictions"]] == [
        [row["label"] for row in alone]
    ] * 2


def test_v2_answers_tensors(texts, tiny_text, expected):
    body = {"id": "a-7", "inputs": [tensor(TEXTS)]}
    (answer,) = ask_json(texts, tiny_text, call("v2", body))
    assert (answer["model_name"], answer["id"]) == ("tiny_text", "a-7")
    label, scores = read_output(answer, "label"), read_output(answer, "probabilities")
    assert (label["datatype"], label["shape"]) == ("BYTES", [3])
    assert label["data"] == [one["label"] for one in expected]
    assert (scores["datatype"], scores["shape"]) == ("FP32", [3, 3])
    assert scores["parameters"]["labels"] == [*expected[0]["probabilities"]]
    assert scores["data"] == pytest.approx(
        [p for one in expected for p in one["probabilities"].values()], **SCORES
    )


@pytest.mark.parametrize("shape", [[3], [3, 1]])
def test_v2_takes_binary_tensors(texts, tiny_text, expected, shape):
    tail = elements(*(text.encode() for text in TEXTS))
    given = {
        "name": "text",
        "shape": shape,
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(tail)},
    }
    wanted = [{"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "label"}]
    ((status, body, kind),) = ask(
        texts, tiny_text, call("v2", {"inputs": [given], "outputs": wanted}, tail=tail)
    )
    assert (status, kind) == (200, "application/octet-stream")
    end = body.index(b"\n") + 1
    head = json.loads(body[:end])
    assert [one["name"] for one in head["outputs"]] == ["probabilities", "label"]
    assert head["outputs"][0]["parameters"]["binary_data_size"] == len(body) - end == 9 * 4
    assert struct.unpack("<9f", body[end:]) == pytest.approx(
        [p for one in expected for p in one["probabilities"].values()], **SCORES
    )


def test_v2_takes_images(images, tiny_image, smoke):
    parameters = {"content_type": "base64"}
    as_json = tensor([base64.b64encode(smoke).decode()], name="data", parameters=parameters)
    tail = elements(smoke)
    as_bytes = {
        "name": "data",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(tail)},
    }
    first, second, alone = ask_json(
        images, tiny_image, call("v2", {"inputs": [as_json]}), call("v2", {"inputs": [as_bytes]}, tail=tail),
        plain(smoke),
    )  # fmt: skip
    assert first == second
    assert read_output(first, "label") == {
        "name": "label", "datatype": "BYTES", "shape": [1, len(alone)],
        "data": [row["label"] for row in alone],
    }  # fmt: skip


def test_items_are_rows_of_the_batch_beside_other_requests(texts, tiny_text, expected):
    call_all, alone = ask_json(texts, tiny_text, call("v1", {"instances": TEXTS}), plain(TEXTS[1].encode()))
    assert len(call_all["predictions"]) == len(TEXTS)
    assert alone["label"] == expected[1]["label"]


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_a_wrong_item_is_named_and_fails_its_request_alone(texts, tiny_text, protocol):
    values = ["good", " ", "bad"]
    body = {"instances": values} if protocol == "v1" else {"inputs": [tensor(values)]}
    (bad, good) = ask(texts, tiny_text, call(protocol, body), call("v1", {"instances": ["good"]}))
    assert (bad[0], good[0]) == (400, 200)
    assert json.loads(bad[1])["error"].startswith("item 1: ")


GOOD = tensor(["a"])
WRONG = [
    ("v1", {}, "instances"),
    ("v1", {"instances": "a"}, "instances"),
    ("v1", {"instances": []}, "items"),
    ("v1", {"instances": ["a"] * (MOST_ITEMS + 1)}, "items"),
    ("v1", {"instances": [1]}, "instances[0]"),
    ("v1", {"instances": [{"b64": "?"}]}, "base64"),
    ("v1", b"no JSON", "JSON"),
    ("v2", {"inputs": []}, "inputs"),
    ("v2", {"inputs": [1]}, "inputs[0]"),
    ("v2", {"inputs": [{**GOOD, "shape": []}]}, "shape"),
    ("v2", {"inputs": [{**GOOD, "shape": [-1]}]}, "shape"),
    ("v2", {"inputs": [{**GOOD, "shape": [2]}]}, "data"),
    ("v2", {"inputs": [{**GOOD, "shape": [10**12, 0], "data": []}]}, "shape"),
    ("v2", {"inputs": [{**GOOD, "shape": [MOST_ITEMS + 1, 0], "data": []}]}, "items"),
    ("v2", {"inputs": [{**GOOD, "shape": [1] * 9}]}, "shape"),
    ("v2", {"inputs": [{**GOOD, "shape": [1, 10**4000]}]}, "shape"),
    ("v2", {"inputs": [{**GOOD, "name": str(number)} for number in range(65)]}, "64 tensors"),
    ("v2", {"inputs": [GOOD, GOOD]}, "same name"),
    ("v2", {"inputs": [{**GOOD, "parameters": [1]}]}, "parameters"),
    ("v2", {"inputs": [{**GOOD, "datatype": ["FP32"]}]}, "datatype"),
    ("v2", {"inputs": [{**GOOD, "datatype": "UINT8", "data": [-1]}]}, "UINT8"),
    ("v2", {"inputs": [{**GOOD, "datatype": "INT64", "data": [True]}]}, "INT64"),
    ("v2", {"inputs": [{**GOOD, "datatype": "BOOL", "data": [7]}]}, "BOOL"),
    ("v2", b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1e999]}]}', "FP32"),
    ("v2", {"inputs": [{**GOOD, "parameters": {"binary_data_size": "A" * 9999}}]}, "binary_data_size"),
    ("v2", {"inputs": [{**GOOD, "shape": [0], "data": []}]}, "items"),
    ("v2", {"inputs": [{**GOOD, "datatype": "TEXT"}]}, "datatype"),
    ("v2", {"inputs": [{**GOOD, "data": [1]}]}, "strings"),
    ("v2", {"inputs": [{**GOOD, "parameters": {"binary_data_size": 9}}]}, "binary_data_size"),
    ("v2", {"inputs": [GOOD, {**tensor(["a", "b"]), "name": "text_pair"}]}, "first dimension"),
    ("v2", {"inputs": [GOOD], "outputs": [{"name": "nothing"}]}, "nothing"),
    ("v2", {"inputs": [GOOD], "outputs": 1}, "outputs"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "body", "said"), WRONG, ids=str)
def test_what_is_wrong_is_said(texts, tiny_text, protocol, body, said):
    ((status, answer, _), good) = ask(texts, tiny_text, call(protocol, body), plain(b"good"))
    assert (status, good[0]) == (400, 200)
    assert said in json.loads(answer)["error"]
    assert len(answer) < 1000


@pytest.mark.parametrize(
    ("size", "tail"),
    [
        ("x", elements(b"a")),
        ("99999", elements(b"a")),
        ("9" * 5000, elements(b"a")),
        ("\u0663", elements(b"a")),
        ("", elements(b"a") + b"more"),
        ("", elements(b"a")[:-1]),
    ],
)
def test_broken_binary_bodies_are_rejected(texts, tiny_text, size, tail):
    told = {**GOOD, "parameters": {"binary_data_size": 5}}
    del told["data"]
    data = json.dumps({"inputs": [told]}).encode()
    headers = {PROTOCOL: "v2", JSON_BYTES: size or str(len(data))}
    ((status, _, _),) = ask(texts, tiny_text, plain(data + tail, "application/octet-stream", **headers))
    assert status == 400


def test_forms_are_for_predictions_alone(texts, tiny_text):
    body = b'--x\r\nContent-Disposition: form-data; name="data"\r\n\r\na\r\n--x--'
    kind = "x-multipart/form-data; boundary=x"
    sent = plain(body, kind, header="content-type", **{PROTOCOL: "v2"})
    ((status, _, _),) = ask(texts, tiny_text, sent)
    assert status == 415


def test_numbers_reach_a_handler_as_nested_lists():
    values = struct.pack("<12f", *range(12))
    told = {
        "name": "x",
        "shape": [2, 2, 3],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(values)},
    }
    data = json.dumps({"inputs": [told]}).encode()
    request = Request(content=data + values, protocol="v2", json_bytes=str(len(data)))
    first, second = open_call(request, name="m").items
    assert first.content == {"x": [[0, 1, 2], [3, 4, 5]]}
    assert second.content == {"x": [[6, 7, 8], [9, 10, 11]]}
    told = {"name": "x", "shape": [2, 2], "datatype": "INT64", "data": [[1, 2], [3, 4]]}
    request = Request(content={"inputs": [told]}, protocol="v2")
    assert [one.content for one in open_call(request, name="m").items] == [{"x": [1, 2]}, {"x": [3, 4]}]


def test_outputs_do_not_depend_on_the_values():
    """Of a model of several labels, of whole numbers and numbers that no datatype holds."""
    several = [{"labels": ["a", "b"], "ok": True}, {"labels": [], "ok": False}]
    for answers in (several, several[:1], several[1:]):
        assert [one.name for one in tabulate(answers)] == ["ok", "answer"]
    for value in (2**63, 1e300, "\ud800"):
        assert [one.name for one in tabulate([{"x": value}])] == ["answer"]


def test_the_whole_answer_can_be_asked_for(texts, tiny_text, expected):
    (answer,) = ask_json(
        texts, tiny_text, call("v2", {"inputs": [tensor(TEXTS)], "outputs": [{"name": "answer"}]})
    )
    (output,) = answer["outputs"]
    assert [json.loads(one)["label"] for one in output["data"]] == [one["label"] for one in expected]


def test_bytes_that_are_no_text_are_rejected_where_a_text_is_meant(texts, tiny_text):
    tail = elements(b"good") + elements(b"\xff")
    told = [
        {"name": name, "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
        for name, size in (("text", 8), ("text_pair", 5))
    ]
    ((status, answer, _),) = ask(texts, tiny_text, call("v2", {"inputs": told}, tail=tail))
    assert (status, "UTF-8" in json.loads(answer)["error"]) == (400, True)


def test_answers_become_tensors():
    (column,) = tabulate([{"embedding": [1.0, 2.0]}, {"embedding": [3.0, 4.0]}])
    assert (column.name, column.datatype, column.shape, [*column.data]) == (
        "embedding",
        "FP32",
        (2, 2),
        [1, 2, 3, 4],
    )
    entities = [{"entities": [{"text": "A"}]}, {"entities": []}]
    (column,) = tabulate(entities)
    assert (column.name, [json.loads(one) for one in column.data]) == ("answer", entities)
    cut = [{"label": "a", "truncated": {"tokens": 3}}, {"label": "b"}]
    assert [one.name for one in tabulate(cut)] == ["label", "answer"]
    assert [one["shape"] for one in describe_outputs([{"label": "a", "probability": 0.5}] * 5)] == [
        [-1, 5],
        [-1, 5],
    ]
    assert math.prod(tabulate([{"ok": True}])[0].shape) == 1
