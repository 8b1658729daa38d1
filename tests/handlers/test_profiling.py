"""The live model is looked at when it is asked for, for so many runs, and then no more."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from handlers.replies import Reply
from handlers.request import Request
from handlers.shared.errors import BadRequest
from handlers.shared.profiling import HEADER, Profiler, parse_wish
from tests.handlers.stub import StubHandler, take_stub

MODEL = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
IMAGE = torch.ones(4, 3, 64, 64)
"""Of a smaller one PyTorch computes the convolution itself."""


def run(profiler: Profiler, times: int = 1) -> None:
    for _ in range(times):
        with profiler.watching(), torch.no_grad():
            MODEL(IMAGE)


def test_operators_of_so_many_runs_are_added_up():
    profiler = Profiler()
    profiler.ask("operators=2")
    run(profiler, 3)
    seen = profiler.describe()
    table = seen["operators"]["operators"]
    assert (seen["left"], seen["operators"]["runs"]) == ({}, 2)
    assert table["aten::relu"][0] == table["aten::conv2d"][0] == 2
    assert sum(own for _, own, _ in table.values()) <= 1e6 * seen["operators"]["seconds"]
    assert json.loads(json.dumps(seen))["operators"]["runs"] == 2


def test_onednns_lines_are_taken_and_others_go_where_they_would(capfd):
    profiler = Profiler()
    profiler.ask("onednn=1")
    with profiler.watching(), torch.no_grad():
        MODEL(IMAGE)
        print("[METRICS]one of TorchServe's", flush=True)
    run(profiler)
    seen = profiler.describe()["onednn"]
    assert seen["runs"] == 1
    assert "torch" in seen["copies"]
    assert sum(",exec,cpu,convolution," in line for line in seen["lines"]) == 1
    assert capfd.readouterr().out == "[METRICS]one of TorchServe's\n"


def test_a_model_that_fails_leaves_everything_as_it_was(capfd):
    profiler = Profiler()
    profiler.ask("operators=1 onednn=1")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), profiler.watching():
            raise ZeroDivisionError
    run(profiler)
    print("seen", flush=True)
    sys.stdout.flush()
    assert capfd.readouterr().out == "seen\n"
    assert profiler.describe()["left"] == {}


@pytest.mark.parametrize("wish", ["", "operators", "operators=0", "operators=33", "shell=1", "onednn=2 x=1"])
def test_a_wish_is_bounded(wish):
    with pytest.raises(
        BadRequest, match=f"{HEADER} must be `result`, or operators, onednn, itt with 1 to 32"
    ):
        parse_wish(wish)


def test_a_handler_counts_its_phases_and_looks_at_its_runs():
    handler = take_stub(StubHandler())
    handler.profiler.ask("operators=1")
    replies = handler.answer([Request(content=body) for body in (b"16", b"", b"32 64")])
    phases = handler.phases.describe()
    assert [isinstance(one, Reply) for one in replies] == [True] * 3
    assert (phases["requests"], phases["batches"]) == (3, 1)
    assert 0 < phases["read_s"] + phases["model_s"] <= phases["whole_s"]
    assert handler.profiler.describe()["operators"]["runs"] == 1
