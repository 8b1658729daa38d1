"""The built image serves both models with nothing but what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.image.containers import (
    NO_RIGHTS,
    Container,
    own_port,
    read_canary,
    start_container,
    write_secret,
)

TOKEN = "a-token-made-for-the-tests"


@pytest.fixture(scope="module")
def both(engine, tag, store, tmp_path_factory) -> Iterator[Container]:
    """Both models, with a token of our own."""
    token = write_secret(tmp_path_factory.mktemp("secret"), TOKEN)
    arguments = ["--store", str(store), "--token-file", str(token)]
    with start_container(engine, tag, "cpu-kit-test-both", own_port(), arguments) as container:
        container.wait_until_healthy()
        yield container


def test_the_size_is_said_and_within_its_limit(built):
    assert "at most 1.80 GB" in built
    print(built)


def test_both_models_answer(both, store):
    status, body = both.predict("resnet50", read_canary(store), TOKEN)
    assert (status, len(json.loads(body))) == (200, 5)
    status, body = both.predict("bert", b"a fine day", TOKEN, "text/plain")
    assert (status, set(json.loads(body)["probabilities"])) == (200, {"negative", "positive"})


def test_verify_inside_finds_everything_as_planned(both):
    assert "verify: all " in both.run_inside("kit", "verify")


def test_only_the_token_of_the_file_opens_it_and_the_log_does_not_tell_it(both, store):
    assert both.predict("resnet50", read_canary(store), "another-token")[0] == 401
    calls = [line["message"] for line in both.log if line["message"].startswith("curl ")]
    assert all('-H "Authorization: Bearer $TOKEN"' in call for call in calls)
    assert both.read_token() == TOKEN
    assert TOKEN not in both.call("logs", both.name)


def test_it_is_not_root_and_has_no_rights(both):
    assert both.run_inside("id", "-u").strip() == "10001"
    assert both.read_rights() == NO_RIGHTS


def test_only_its_own_folder_can_be_written(both):
    assert both.run_inside("sh", "-c", "touch /run/kit/x && echo yes").strip() == "yes"
    for folder in ("/", "/tmp", "/opt/kit", "/model-store", "/etc", "/dev"):
        assert not both.run_inside("sh", "-c", f"touch {folder}/x 2>/dev/null && echo yes", check=False)


def test_only_predictions_are_served_beyond_loopback(both):
    listening = both.read_listening()
    assert {(both.port, True), *((both.port + one, False) for one in range(1, 5))} == listening


def test_without_the_capability_memory_is_not_bound_and_that_is_said(both):
    nodes = both.plan["layout"]["memory_nodes"]
    assert set(map(str, nodes["value"])) == {"None"}
    assert "CAP_SYS_NICE" in nodes["reason"]
    assert f"memory: {nodes['reason']}" in [line["message"] for line in both.log]
