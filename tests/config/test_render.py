"""The texts: golden files, stable bytes, and what java.util.Properties makes of them."""

from __future__ import annotations

import itertools
import re

import pytest

from config.render import SECTIONS, escape_value, render_environment, render_properties
from config.rules.network import render_allowed_urls
from config.write import render_table
from tests.config.planning import GOLDEN_MACHINES, golden_files, plan_machine


def parse_properties(text: str) -> dict[str, str]:
    """As Java reads one-line properties."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    pairs = (line.partition("=") for line in lines)
    return {key: unescape(value) for key, _, value in pairs}


def unescape(value: str) -> str:
    plain = re.sub(r"\\u([0-9a-f]{4})|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], value)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("machine", GOLDEN_MACHINES)
def test_golden(machine):
    """After an intended change: python -m tests.config.planning."""
    for file, text in golden_files(machine).items():
        assert file.read_text(encoding="utf-8") == text, file.name


def test_each_key_has_one_place():
    """TorchServe takes the last of two equal keys in silence."""
    shown = [key for keys in SECTIONS.values() for key in keys.split()]
    assert len(shown) == len(set(shown))
    planned = {*plan_machine("two-cores").properties, "models"}
    assert planned == set(shown)
    text = render_properties(plan_machine("two-cores"))
    assert sorted(parse_properties(text)) == sorted(planned)


def test_a_comment_stands_above_each_key():
    lines = render_properties(plan_machine("two-cores")).splitlines()
    for above, line in itertools.pairwise(lines):
        if "=" in line and not line.startswith("#"):
            assert above.startswith("# ")
            assert not above.startswith("# ----")


@pytest.mark.parametrize("value", ["plain", "C:\\x", " leading", "/srv/müller/模型/😀", "a=b:c#d!e"])
def test_escaping(value):
    escaped = escape_value(value)
    assert escaped.isascii()
    assert unescape(escaped) == value


@pytest.mark.parametrize("store", ["/srv/model-store", "/srv/a b,c.d(e)/ü"])
def test_allowed_urls(store):
    pattern = render_allowed_urls(store)
    assert "," not in pattern  # TorchServe splits there
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda m: re.escape(chr(int(m[1], 16))), pattern)
    allowed = re.compile(python.replace("(?-i)", ""))
    assert allowed.fullmatch(f"file://{store}/bert.mar")
    for other in (
        f"file://{store}/sub/bert.mar",
        "file:///etc/passwd",
        "http://x/bert.mar",
        f"file://{store}x/b.mar",
    ):
        assert not allowed.fullmatch(other)


def test_environment_file():
    text = render_environment(plan_machine("two-cores"))
    assert "\nTOKENIZERS_PARALLELISM=false\n" in text
    assert "MALLOC_CONF=oversize_threshold:1," in text


def test_table_shows_setting_value_and_reason():
    table = render_table(plan_machine("container-quota-v2"))
    assert "physical cores 8, usable 2 (quota: 2.5 CPUs)" in table
    assert re.search(r"server_cpus +-\n +not confined: CPUs are shared under a quota of 2.5 of 8 CPUs", table)
