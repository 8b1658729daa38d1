"""Each place that names settings names those of the table."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import yaml

from config.knobs.commands import WIDTH, render_help, render_markdown
from config.knobs.table import EVERY, KNOBS, add_knobs

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = (ROOT / "docker/compose.yaml").read_text()


def test_the_makefile_takes_the_settings_of_the_table():
    text = (ROOT / "Makefile").read_text()
    defined = set(re.findall(r"^([A-Z][A-Z0-9_]*) *:?= *", text, re.MULTILINE))
    taken = set(re.findall(r"\$\((?:value|call given,|call listed,) ?([A-Z0-9_]+)\)", text)) - defined
    assert taken - {*KNOBS} == set()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", text, re.MULTILINE))
    assert {goal for knob in KNOBS.values() if knob.commands != EVERY for goal in knob.commands} <= targets


def test_compose_takes_the_settings_of_the_table_with_their_defaults():
    written = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))
    assert len(re.findall(r"\$\{?\w", COMPOSE)) == len(re.findall(r"\$\{\w+:-", COMPOSE))
    assert written == {(knob.name, knob.compose) for knob in KNOBS.values() if knob.compose is not None}
    given = yaml.safe_load(COMPOSE)["services"]["server"]["environment"]
    assert given == {name: f"${{{name}:-}}" for name in given}
    assert {*given} <= {knob.name for knob in KNOBS.values() if knob.container}


def test_every_default_of_a_choice_is_one():
    for knob in KNOBS.values():
        if knob.choices and knob.name != "DRIVER":
            assert knob.default in knob.choices, knob.name


def test_parsers_take_their_help_from_the_table():
    parser = argparse.ArgumentParser()
    add_knobs(parser, ["RATE", "PRECISION"])
    assert "such as 20,80%; a share" in " ".join(parser.format_help().split())
    assert parser.parse_args([]) == argparse.Namespace(rate="", precision="")


def test_the_written_page_is_of_this_table():
    assert (ROOT / "docs/knobs.md").read_text() == render_markdown(), (
        "run: python3 -m config.knobs markdown > docs/knobs.md"
    )
    assert [line for line in (render_help() + render_markdown()).splitlines() if len(line) > WIDTH] == []
