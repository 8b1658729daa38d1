"""Whose lines are passed on: the door's and each TorchServe's, of this run alone."""

from __future__ import annotations

import io
import json

import pytest

from docker.lines import Speaker
from docker.logs import Following
from server.rundir import RunDir

LINE = "2025-01-01T12:00:00,250 [ERROR] main a.B - "


@pytest.fixture
def run(tmp_path):
    return RunDir.at(tmp_path)


def write(log, text):
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def follow(run, while_it_runs):
    """Lines as parsed; all that is written by the end is passed on."""
    stream = io.StringIO()
    with Following(Speaker(stream=stream), run):
        while_it_runs()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def name(lines):
    return {(line["source"], line.get("instance"), line["message"]) for line in lines}


def test_a_server_without_a_door_has_no_instances(run):
    def serve():
        write(run.server_log, f"{LINE}bad")
        write(run.model_log, "Backend received inference at: 1")
        write(run.console_log, "java says")

    assert name(follow(run, serve)) == {("torchserve", None, "bad"), ("console", None, "java says")}


def test_door_and_instances_are_named_also_those_that_come_with_a_reload(run):
    run.instance("a1").path.mkdir(parents=True)

    def serve():
        write(run.door_log, "[ALERT]    (7) : no")
        write(run.instance("a1").server_log, f"{LINE}one")
        write(run.instance("b1").model_log, f"{LINE}two")

    lines = follow(run, serve)
    assert name(lines) == {("door", None, "no"), ("torchserve", "a1", "one"), ("worker", "b1", "two")}
    assert {line["level"] for line in lines} == {"error"}


def test_what_an_earlier_run_left_is_not_told_again(run):
    logs = (run.door_log, run.server_log, run.instance("a1").server_log)
    for log in logs:
        write(log, "old")

    def start_anew():
        run.instance("a1").logs.rename(run.instance("a1").previous_logs)
        for log in logs:
            write(log, "new")

    assert {message for _, _, message in name(follow(run, start_anew))} == {"new"}
