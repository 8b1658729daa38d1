"""plan.json there and back."""

from __future__ import annotations

import json

import pytest

from config.errors import ConfigError
from config.plan import Plan, read_plan, write_plan
from tests.config.planning import plan_machine


@pytest.mark.parametrize("machine", ["two-cores", "no-numa", "two-sockets-smt"])
def test_round_trip(machine, tmp_path):
    plan = plan_machine(machine)
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path)
    assert again == read_plan(tmp_path / "plan.json")
    assert (again.to_json(), again.inputs, again.layout) == (plan.to_json(), plan.inputs, plan.layout)
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_from_before_off_and_auto_is_still_read():
    raw = json.loads(plan_machine("two-cores").to_json())
    del raw["timings"], raw["inputs"]["off"]
    assert Plan.from_json(json.dumps(raw)) == plan_machine("two-cores")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"p.json: not JSON: .*; run `make plan` again"),
        ("[]", r"p.json: must be a JSON object: got list; run `make plan` again"),
        ('{"schema": 7}', r"p.json: schema must be 4: got 7; run `make plan` again"),
        ('{"schema": 4}', r"p.json: not a plan: 'inputs'; run `make plan` again"),
    ],
)
def test_file_that_is_no_plan(text, message):
    with pytest.raises(ConfigError, match=message):
        Plan.from_json(text, "p.json")


def test_no_plan(tmp_path):
    with pytest.raises(ConfigError, match=r"no plan: .*plan.json: No such file.*; run `make plan` first"):
        read_plan(tmp_path)
