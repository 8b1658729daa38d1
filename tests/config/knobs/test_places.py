"""Each place that spells knobs, compared with the table; and each comparison, seen to fail."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
import yaml

from config.__main__ import build_parser
from config.knobs.knob import EVERY, Knob
from config.knobs.pages import WIDTH, render_help, render_markdown
from config.knobs.table import KNOBS, add_knobs, find
from config.rules.cores import EXAMPLE
from config.rules.instances import MAX_INSTANCES, find_port
from config.rules.requests import MAX_DEADLINE_MS, MIN_DEADLINE_MS, PRECISIONS
from docker import settings
from docker.image import run as image_run
from docker.image.__main__ import build_parser as build_image_parser
from handlers.engines.backend import AUTO
from models import request
from tests.config.knobs import makefile
from tests.config.knobs.makefile import ROOT
from tests.config.planning import make_inputs

Table = Mapping[str, Knob]
COMPOSE = (ROOT / "docker/compose.yaml").read_text()
BUILD_ARGUMENTS = {"PIP_INDEX", "BASE", "SNAPSHOT", "FILE"}
"""Of `python3 -m docker.image build` alone; make does not hand them on."""
ONE_COMMANDS_ALONE = {"DRY_RUN", "FOREGROUND"}
"""`make serve` refuses the one; a load test that stayed in front of its own server would never begin."""


def compare_commands(table: Table) -> set[object]:
    """What each command reads, by the Makefile; `inputs` only judges."""
    used = {
        (command, name)
        for command in makefile.COMMANDS
        for name in makefile.read_uses(command, frozenset({"inputs"})) - ONE_COMMANDS_ALONE
        if KNOBS[name].commands != EVERY
    }
    read = {
        (command, knob.name)
        for knob in table.values()
        for command in knob.commands
        if knob.commands != EVERY and knob.name not in ONE_COMMANDS_ALONE
    }
    return used ^ read


def compare_values(table: Table) -> set[object]:
    """Every value of the Makefile that can be given."""
    own = {*makefile.SOURCES} | {"FLAG", "NEWLINE"}
    return (makefile.find_references(makefile.TEXT) - own) ^ {k.name for k in table.values() if k.commands}


def compare_docs(table: Table) -> set[object]:
    """docs/knobs.md by name; that it is up to date to the letter is a test of its own."""
    written = re.findall(r"^- \*\*`(\w+)`\*\*", (ROOT / "docs/knobs.md").read_text(), re.MULTILINE)
    return {*written} ^ {*table}


class Spy(dict[str, str]):
    """An environment that remembers what was looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def get(self, key: str, default: object = None) -> object:
        self.seen.add(key)
        return default

    def __iter__(self) -> Iterator[str]:
        return iter(())


def compare_container(table: Table) -> set[object]:
    """What the entrypoint takes from its environment."""
    spy = Spy()
    with pytest.raises(settings.SettingsError, match="no archive"):
        settings.read_settings(spy)
    taken = {*settings.PLAN_KNOBS, *settings.OWN}
    return (taken ^ {knob.name for knob in table.values() if knob.container}) | (spy.seen - taken)


def read_image_options(command: str) -> set[str]:
    """Options of `python3 -m docker.image`, as knobs."""
    actions = build_image_parser()._subparsers._group_actions[0].choices[command]._actions
    names = {action.dest.upper() for action in actions} - {"HELP", "NAME", "STACK", *BUILD_ARGUMENTS}
    return {"IMAGE" if name == "TAG" else name for name in names}


def compare_image(table: Table) -> set[object]:
    """What `make image` and `make image-run` hand over."""
    return {
        (command, name)
        for command, target in (("build", "image"), ("run", "image-run"))
        for name in read_image_options(command)
        ^ {knob.name for knob in table.values() if target in knob.commands}
    }


def compare_image_run(table: Table) -> set[object]:
    """What `make image-run` passes on into the container."""
    passed = {k.name for k in table.values() if k.container and "image-run" in k.commands}
    return {*image_run.KNOBS, *image_run.FILES} ^ (passed - {"PORT"})


def compare_compose(table: Table) -> set[object]:
    """Variables of compose.yaml, with their defaults."""
    written = set(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))
    assert len(re.findall(r"\$\{?\w", COMPOSE)) == len(re.findall(r"\$\{\w+:-", COMPOSE))
    return written ^ {(knob.name, knob.compose) for knob in table.values() if knob.compose is not None}


def compare_compose_server(table: Table) -> set[object]:
    """What compose.yaml passes on into the server, each under its own name; files are for an override."""
    given = yaml.safe_load(COMPOSE)["services"]["server"]["environment"]
    assert given == {name: f"${{{name}:-}}" for name in given}
    inside = {"RUN_DIR", "STOP_SECONDS", "MODEL_STORE", "TLS_CERT", "TLS_KEY"}
    passed = {k.name for k in table.values() if k.container} - inside - {"PORT", "TOKEN_FILE"}
    return {*given} ^ passed


PLACES: dict[Callable[[Table], set[object]], str] = {
    compare_commands: "PRECISION",
    compare_values: "SCENARIO",
    compare_docs: "STOP_SECONDS",
    compare_container: "ALLOCATOR",
    compare_image: "BIND_MEMORY",
    compare_image_run: "OPENMP",
    compare_compose: "LOADTEST_PORT",
    compare_compose_server: "OPENMP",
}
"""Each comparison, and a knob of that place to take away."""


@pytest.mark.parametrize("compare", PLACES)
def test_every_place_has_the_knobs_of_the_table(compare):
    assert compare(KNOBS) == set()


@pytest.mark.parametrize("compare", PLACES)
def test_every_comparison_sees_a_knob_that_is_missing_extra_or_misspelt(compare):
    knob = KNOBS[PLACES[compare]]
    without = {name: one for name, one in KNOBS.items() if one is not knob}
    other = replace(knob, name=f"{knob.name[:-1]}X")
    for table, wrong in (
        (without, {knob.name}),
        ({**KNOBS, other.name: other}, {other.name}),
        ({**without, other.name: other}, {knob.name, other.name}),
    ):
        found = compare(table)
        assert {name for name in wrong if name in str(found)} == wrong


@pytest.mark.parametrize(("name", "default"), makefile.DEFAULTS.items())
def test_defaults_of_the_makefile(name, default):
    assert find(name).default == default


def test_defaults_within_the_makefiles_lines():
    found = re.findall(r"\$\(or \$\(([A-Z_]+)\),([^$()]+)\)", makefile.TEXT)
    assert {name for name, _ in found} >= {"IMAGE", "FORMAT"}
    assert [(name, default) for name, default in found if find(name).default != default] == []


DEFAULTS = {
    "BOUND": "loadtest.experiments.compare:DEFAULT_BOUND",
    "PAIRS": "loadtest.experiments.gate:DEFAULT_PAIRS",
    "REPEATS": "loadtest.experiments.ladder.load:TIMING.repeats",
    "MINUTES": "loadtest.experiments.soak:MINUTES",
    "BODIES": "loadtest.experiments.harm.fuzz:BODIES",
    "SEED": "loadtest.experiments.harm.fuzz:SEED",
    "PORT": "config.plan:Inputs.port",
    "PRECISION": "config.plan:Inputs.precision",
    "PROFILE": "config.plan:Inputs.profile",
    "DEADLINE_MS": "config.plan:Inputs.deadline_ms",
    "STOP_SECONDS": "docker.settings:STOP_SECONDS",
    "MODEL_STORE": "docker.settings:MODEL_STORE",
    "RUNGS": "loadtest.experiments.ladder.rungs:SETTINGS",
}


@pytest.mark.parametrize(("name", "place"), DEFAULTS.items())
def test_defaults_of_the_programs(name, place):
    module, _, path = place.partition(":")
    value: object = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    assert find(name).default == str(value)


def test_windows_are_as_long_as_each_experiment_says():
    ladder, targets = (
        importlib.import_module(f"loadtest.experiments.{one}").TIMING.seconds
        for one in ("ladder.load", "targets.experiment")
    )
    profile = importlib.import_module("loadtest.experiments.profile.experiment").SECONDS
    assert find("SECONDS").default == f"{ladder:g}, {targets:g} and {profile:g}"


def test_choices_of_the_programs():
    assert find("PRECISION").choices == (*PRECISIONS, AUTO)
    assert find("WEIGHTS").help.startswith(" | ".join(request.WORDS))
    assert find("DRIVER").choices == importlib.import_module("loadtest.scenarios.scenario").DRIVERS
    assert find("RUNGS").choices == (*importlib.import_module("loadtest.experiments.ladder.rungs").KINDS,)
    assert find("ENGINE").choices == importlib.import_module("docker.image.engines").NAMES


def test_limits_of_the_programs():
    assert f"1 to {MAX_INSTANCES}" in find("INSTANCES").help
    assert f"{MIN_DEADLINE_MS} to {MAX_DEADLINE_MS}" in find("DEADLINE_MS").help
    assert EXAMPLE in find("CORES").help
    last = find_port(make_inputs(port=0, generation="b"), MAX_INSTANCES) + 4
    assert f"from PORT + 10 to PORT + {last}" in find("PORT").help


def test_every_default_of_a_choice_is_one():
    for knob in KNOBS.values():
        if knob.choices and knob.name not in ("DRIVER", "ENGINE"):
            assert knob.default in knob.choices, knob.name


def test_parsers_take_their_help_from_the_table():
    parser = argparse.ArgumentParser()
    add_knobs(parser, ["RATE", "PRECISION"])
    assert "such as 20,80%; a share" in " ".join(parser.format_help().split())
    assert parser.parse_args([]) == argparse.Namespace(rate="", precision="")
    shown = " ".join(build_parser().format_help().split())
    for name in ("PRECISION", "PROFILE", "WORKERS", "TOPOLOGY"):
        assert find(name).usage.replace("%%", "%") in shown


def test_the_written_page_is_of_this_table():
    assert (ROOT / "docs/knobs.md").read_text() == render_markdown(), (
        "run: python3 -m config.knobs markdown > docs/knobs.md"
    )


def test_lines_are_short_enough():
    assert [line for line in (render_help() + render_markdown()).splitlines() if len(line) > WIDTH] == []
