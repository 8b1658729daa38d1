"""The image handler from load to answer, in eager and TorchScript, without IPEX."""

from __future__ import annotations

import base64
import json

import pytest

from handlers.answers import Tolerance, find_fault
from handlers.definition import read_folder
from handlers.image_classifier import ImageClassifier
from tests.cpu import BF16
from tests.handlers.context import FakeContext, Sent, form, plain, rows_and_context


def ask(images, tiny_image, bodies):
    context = FakeContext(tiny_image)
    answers = images.handle([{"body": body} for body in bodies], context)
    return [json.loads(answer) for answer in answers], context


def test_the_smoke_request_gets_the_answer_that_was_packed(images, tiny_image, smoke):
    expected = read_folder(tiny_image).example.expected
    (answer,), _ = ask(images, tiny_image, [smoke])
    assert [one["label"] for one in answer] == [one["label"] for one in expected]
    assert find_fault(answer, expected, Tolerance(relative=1e-3, absolute=0.0)) is None


def test_top_k_labels_come_best_first_with_their_index(images, tiny_image, smoke):
    (answer,), context = ask(images, tiny_image, [smoke])
    assert [set(one) for one in answer] == [{"label", "index", "probability"}] * 3
    assert all(images.labels[one["index"]] == one["label"] for one in answer)
    probabilities = [one["probability"] for one in answer]
    assert probabilities == sorted(probabilities, reverse=True)
    assert context.content_types == {0: "application/json"}


def test_base64_json_answers_as_raw_bytes_do(images, tiny_image, smoke):
    body = {"data": base64.b64encode(smoke).decode()}
    answers, _ = ask(images, tiny_image, [smoke, body, json.dumps(body).encode(), bytearray(smoke)])
    assert all(answer[0]["label"] == answers[0][0]["label"] for answer in answers)


def test_one_bad_request_does_not_touch_its_batch(images, tiny_image, smoke):
    bodies = [smoke, b"rubbish", smoke, {"nothing": 1}, smoke, b"", smoke]
    answers, context = ask(images, tiny_image, bodies)
    assert {position: code for position, (code, _) in context.statuses.items()} == {1: 415, 3: 400, 5: 400}
    assert answers[1]["error"].startswith("the body is text (7 bytes starting b'rubbish')")
    assert "has no \"data\": got 'nothing'" in answers[3]["error"]
    good = [answers[position][0]["label"] for position in (0, 2, 4, 6)]
    assert len(set(good)) == 1


@pytest.mark.parametrize(
    "sent",
    [
        plain(b"", describe="True"),
        form(describe="True"),
        form(content_type="application/x-www-form-urlencoded", describe="True"),
        # the addresses beside /predictions, which put no header of their own
        Sent(headers={"content-type": "application/x-www-form-urlencoded", "describe": "True"}),
        Sent(headers={"describe": "True", "explain": "False"}),
        form(("describe", "", b"True")),
    ],
)
def test_a_prediction_is_no_describe_call_whatever_its_headers(images, tiny_image, sent):
    rows, context = rows_and_context(tiny_image, sent)
    (answer,) = images.handle(rows, context)
    assert json.loads(answer)["code"] in (400, 415)
    assert b"pid" not in answer


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x", "Host": "h", "Accept": "*/*"}])
def test_the_management_apis_describe_call_is_answered(images, tiny_image, headers):
    rows, context = rows_and_context(tiny_image, Sent(headers={**headers, "describe": "True"}))
    (answer,) = images.handle(rows, context)
    assert "pid" in json.loads(answer)


def describe(images, folder, wish):
    rows, context = rows_and_context(folder, Sent(headers={"X-Cpu-Kit-Profile": wish, "describe": "True"}))
    return json.loads(images.handle(rows, context)[0])["profile"]


def test_the_describe_call_alone_asks_for_a_look_at_the_next_runs(images, tiny_image, smoke):
    assert describe(images, tiny_image, "operators=1 onednn=1") == {
        "left": {"operators": 1, "onednn": 1}, "rejected": "",
    }  # fmt: skip
    ask(images, tiny_image, [smoke])
    ask(images, tiny_image, [smoke])
    seen = describe(images, tiny_image, "result")
    assert (seen["left"], seen["operators"]["runs"], seen["onednn"]["runs"]) == ({}, 1, 1)
    assert describe(images, tiny_image, "operators=99")["rejected"].endswith("got operators=99")
    rows, context = rows_and_context(tiny_image, plain(smoke, **{"X-Cpu-Kit-Profile": "operators=1"}))
    images.handle(rows, context)
    assert images.profiler.describe()["left"] == {}


def test_describe_answers_what_is_in_effect(images, tiny_image):
    (answer,) = images.handle([{}], FakeContext(tiny_image, describe=True))
    described = json.loads(answer)
    assert described["weights"] == "random (seed 0)"
    assert described["precision"] == "fp32"
    assert described["graph"]["kind"] == "frozen torchscript"
    assert described["memory_format"]["input"] == "channels_last"
    assert (
        described["memory_format"]["convolutions"] == described["memory_format"]["channels_last_weights"] > 0
    )
    assert [step["name"] for step in described["steps"]] == [
        "build_eager", "channels_last", "trace", "freeze", "warm_up", "self_check",
    ]  # fmt: skip
    assert described["backend"]["name"] == "eager"


@pytest.mark.parametrize(
    ("off", "kind", "layout"),
    [
        (["channels_last", "trace", "freeze"], "eager", "contiguous"),
        (["trace"], "eager", "channels_last"),
        (["freeze"], "torchscript", "channels_last"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_baselines_need_no_other_code(tiny_image, smoke, monkeypatch, off, kind, layout, precision):
    monkeypatch.setenv("CPU_KIT_OPTIONS", json.dumps({"tiny_image": {"off": off, "precision": precision}}))
    images = ImageClassifier()
    images.initialize(FakeContext(tiny_image))
    described = images.describe()
    assert described["graph"]["kind"] == kind
    assert described["memory_format"]["input"] == layout
    assert described["precision"] == precision
    (answer,), _ = ask(images, tiny_image, [smoke])
    assert len(answer) == 3
