"""STACK: which engines there are, what the plan says of it, and what the launcher is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from config.errors import ConfigError
from config.rules.pinning import choose_pinning
from config.topology import read_topology
from handlers.engines import DEFAULT, ENGINES
from handlers.engines.engine import STACKS
from handlers.engines.stacks import DEFAULT_STACK, list_of_stack, name_store, read_stack
from setup.environment import REQUIREMENTS, SETS
from tests.config.planning import MACHINES, plan_machine


def test_the_stacks_are_those_that_the_set_up_knows():
    """It runs where the engines' files are not."""
    assert SETS == STACKS
    assert list_of_stack(DEFAULT_STACK)[0] == DEFAULT
    for stack in STACKS:
        pins = (REQUIREMENTS / stack / "serve.in").read_text()
        assert f"\n{ENGINES[list_of_stack(stack)[0]].distribution}==" in pins
    assert len({name_store(stack) for stack in STACKS}) == len(STACKS)


@pytest.mark.parametrize(
    ("backend", "engines", "ways"),
    [
        ("", ("openvino", "openvino"), ("default of STACK=current", "default of STACK=current")),
        ("bert=eager", ("eager", "openvino"), ("asked for", "default of STACK=current")),
        ("inductor", ("inductor", "inductor"), ("asked for", "asked for")),
    ],
)
def test_openvino_computes_what_nobody_named(backend, engines, ways):
    plan = plan_machine("two-cores", stack="current", backend=backend)
    chosen = [plan.models[name].engine for name in ("bert", "resnet50")]
    assert tuple(one.value for one in chosen) == engines
    assert tuple(one.reason.split(":")[0] for one in chosen) == ways
    assert plan.properties["ipex_enable"].value == "false"


def test_the_default_stack_plans_as_it_did():
    plan = plan_machine("two-cores")
    assert {one.engine.value for one in plan.models.values()} == {"ipex"}
    assert {one.engine.reason.split(":")[0] for one in plan.models.values()} == {"default"}


@pytest.mark.parametrize("backend", ["ipex", "bert=ipex"])
def test_ipex_is_refused_with_what_to_do(backend):
    message = (
        "BACKEND=ipex needs STACK=ipex, because its torch is another: got STACK=current, which has openvino, "
        "inductor, eager; name one of these, or use STACK=ipex"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan_machine("two-cores", stack="current", backend=backend)


def test_another_stack_is_refused():
    with pytest.raises(ConfigError, match="STACK must be one of ipex, current: got newest"):
        plan_machine("two-cores", stack="newest")


@pytest.mark.parametrize(
    ("written", "stack"), [(None, "ipex"), ({"location": "/x"}, "ipex"), ({"stack": "current"}, "current")]
)
def test_an_environment_says_what_it_is_for(tmp_path: Path, written, stack):
    if written is not None:
        (tmp_path / "setup.json").write_text(json.dumps(written))
    assert read_stack(tmp_path) == stack


@pytest.mark.parametrize(("workers", "said"), [(1, " --ninstances 1"), (2, "")])
def test_a_launcher_that_does_not_count_is_told(workers, said):
    """TorchServe itself says how many there are where there is more than one."""
    topology = read_topology(MACHINES / "cloud-adjacent-siblings")
    chunks = [(0, 2, 4, 6)] if workers == 1 else [(0, 2), (4, 6)]
    args = choose_pinning(topology, chunks, None, counted=True).args
    assert args is not None
    assert args.render() == f"--core_list 0,2,4,6 --ncores_per_instance {len(chunks[0])}{said}"
    plain = choose_pinning(topology, chunks, None).args
    assert plain is not None
    assert "--ninstances" not in plain.render()
