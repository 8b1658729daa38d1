"""Both models over real HTTP, from the lines that start prints to errors, describe and a whole batch."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from tests.end_to_end.kit import ROOT, Kit


def printed_curls(kit: Kit) -> list[str]:
    lines = (kit.run_dir / "start.txt").read_text().splitlines()
    return [line for line in lines if line.startswith("curl ")]


def test_start_ends_with_a_line_and_a_call_for_each_model(kit):
    printed = (kit.run_dir / "start.txt").read_text()
    for name in ("bert", "resnet50"):
        count = len(kit.workers(name))
        line = rf"^{name}: {count} workers × 1 core, .*: \d+ checks passed"
        assert re.search(line, printed, re.MULTILINE)
    assert len(printed_curls(kit)) == 2


@pytest.mark.parametrize("model", ["resnet50", "bert"])
def test_the_printed_lines_work_when_pasted(kit, model):
    (line,) = [line for line in printed_curls(kit) if f"/predictions/{model}" in line]
    done = subprocess.run(
        ["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    if model == "resnet50":
        assert [set(one) for one in answer] == [{"label", "index", "probability"}] * 5
    else:
        assert set(answer["probabilities"]) == {"negative", "positive"}


@pytest.mark.parametrize("form", ["PNG", "WEBP", "BMP"])
def test_images_of_each_format_are_answered(kit, photo, form):
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photo)).save(buffer, format=form)
    answer = kit.predict("resnet50", buffer.getvalue())
    assert answer.status == 200
    assert len(answer.json) == 5


def test_base64_json_answers_as_the_raw_bytes_do(kit, photo):
    raw = kit.predict("resnet50", photo).json
    body = json.dumps({"data": base64.b64encode(photo).decode()}).encode()
    for content_type in ("application/json", "application/octet-stream"):
        answer = kit.predict("resnet50", body, content_type)
        assert answer.json[0]["label"] == raw[0]["label"]
        assert answer.json[0]["probability"] == pytest.approx(raw[0]["probability"], rel=1e-4)


def test_text_in_each_form_is_answered(kit):
    plain = kit.predict("bert", b"a fine day", "text/plain").json
    single = kit.predict("bert", b'{"text": "a fine day"}', "application/json").json
    several = kit.predict("bert", b'{"text": ["a fine day", "rain"]}', "application/json").json
    assert plain["probabilities"] == pytest.approx(single["probabilities"], abs=1e-4)
    assert several[0]["probabilities"] == pytest.approx(single["probabilities"], abs=1e-4)
    assert len(several) == 2


def test_texts_are_read_as_they_were_meant(kit):
    plain = kit.predict("bert", b'{"text": "a fine day"}', "application/json")
    marked = kit.predict("bert", b'\xef\xbb\xbf{"text": "a fine day"}', "application/json; charset=utf-8")
    assert marked.body == plain.body
    assert kit.predict("bert", b"{ a fine day", "text/plain").status == 200
    assert kit.predict("bert", b"{ a fine day").status == 400


@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
def test_wide_json_is_rejected_before_it_is_parsed(kit, content_type):
    answer = kit.predict("bert", b"[" + b"[]," * 100_000 + b"[]]", content_type)
    assert answer.status == 413
    assert "commas and brackets" in answer.json["error"]


@pytest.mark.parametrize(("path", "status"), [("predictions/bert", 415), ("models/bert/invoke", 404)])
def test_describe_is_not_for_holders_of_the_inference_token(kit, path, status):
    urlencoded = "application/x-www-form-urlencoded"
    answer = kit.request(path, b"", content_type=urlencoded, headers={"describe": "True"})
    assert answer.status == status
    assert b"pid" not in answer.body


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        ("resnet50", b'{"nothing": 1}', 'has no "data"'),
        ("bert", b'{"nothing": 1}', 'has no "text"'),
    ],
)
def test_a_wrong_body_is_a_400_that_says_what_is_wrong(kit, model, body, message):
    answer = kit.predict(model, body)
    assert answer.status == 400
    assert message in answer.json["error"]


def test_what_is_no_image_is_a_415_that_names_it(kit):
    answer = kit.predict("resnet50", b"%PDF-1.7 not an image")
    assert (answer.status, answer.json["error"][:15]) == (415, "the body is PDF")


def test_good_and_bad_requests_share_batches_without_harm(kit, photo):
    bodies = [photo if number % 5 else b"rubbish" for number in range(40)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda body: kit.predict("resnet50", body), bodies))
    assert [answer.status for answer in answers] == [200 if number % 5 else 415 for number in range(40)]
    assert len({answer.json[0]["label"] for answer in answers if answer.status == 200}) == 1


def test_without_the_token_nothing_is_answered(kit, photo):
    answer = kit.request("predictions/resnet50", photo, token="wrong")
    assert answer.status == 401
    assert "no valid token" in answer.json["error"]


def test_models_cannot_be_registered_from_outside(kit):
    answer = kit.request("models?url=http://127.0.0.1/x.mar", b" ", management=True)
    assert answer.status == 405


def test_a_second_start_changes_nothing(kit):
    before = kit.processes()
    done = kit.start()
    assert done.returncode == 0
    assert "already running" in done.stdout
    assert sorted(kit.processes()) == sorted(before)


def test_status_says_loudly_that_weights_are_random(kit):
    done = kit.call("server", "status")
    assert done.returncode == 0
    assert done.stdout.count("weights: random (seed 0)") == 2
    count = len(kit.workers("bert"))
    for model in ("bert", "resnet50"):
        assert re.search(rf"^{model}: {count}/{count} workers", done.stdout, re.MULTILINE)
