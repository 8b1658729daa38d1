"""haproxy.cfg: golden files, a reason above each line, texts that stay as they are, no secret in it."""

from __future__ import annotations

import itertools
import json
import re
import shlex

import pytest

from config.door import ENDING, LISTENER, list_variables, name_prediction, render_door
from config.door.process import quote, render_refusal
from tests.config.doors import FILES, GOLDEN_DOORS, golden_door, plan_behind_door


@pytest.mark.parametrize("machine", GOLDEN_DOORS)
def test_golden(machine):
    """After an intended change: python -m tests.config.doors."""
    file, text = golden_door(machine)
    assert file.read_text(encoding="utf-8") == text


def read_sections(text: str) -> dict[str, list[str]]:
    """By first line; without comments."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            section = sections.setdefault(line.split(" from ")[0], [])
        elif line.strip() and not line.lstrip().startswith("#"):
            section.append(line.strip())
    return sections


def test_each_group_of_lines_has_a_reason_above():
    bare = []
    for above, line in itertools.pairwise(render_door(plan_behind_door(), FILES).splitlines()):
        if line.startswith("    ") and not above.startswith("    ") and not line.startswith("    # "):
            bare.append(line)
    assert not bare


def test_one_line_of_a_kind_for_each_model_and_instance():
    sections = read_sections(render_door(plan_behind_door(port=8000), FILES))
    for model in ("bert", "resnet50"):
        small = [line for line in sections[f"backend {model}"] if line.startswith("server ")]
        large = [line for line in sections[f"backend {model}.large"] if line.startswith("server ")]
        assert [line.split()[1] for line in small] == ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"]
        assert [line.split()[:3] for line in large] == [line.split()[:3] for line in small]
        assert small[0].startswith('server a1 "unix@/kit/run/instances/a1/tmp/inference.sock" maxconn 2 ')
        assert all(line.endswith(f'check "${{KIT_STATE_{line.split()[1]}}}"') for line in small)
        assert all(line.endswith(f"track {model}/{line.split()[1]}") for line in large)


def test_all_that_the_environment_is_asked_for_is_known():
    plan = plan_behind_door()
    text = render_door(plan, FILES)
    asked = set(re.findall(r"\$\{(\w+)\}", text))
    given = list_variables(plan, serving=["a2"])
    assert asked == set(given)
    assert (given["KIT_STATE_a1"], given["KIT_STATE_a2"]) == ("disabled", "enabled")
    assert given[LISTENER] == "127.0.0.1:8080"
    assert list_variables(plan, listener="fd@3")[LISTENER] == "fd@3"


def test_figures_of_predictions_begin_with_none():
    globals_ = read_sections(render_door(plan_behind_door(), FILES))["global"]
    assert "set-var proc.resnet50_us int(0)" in globals_
    assert f"set-var {ENDING} int(0)" in globals_
    assert name_prediction("a-b.c", "ms") == "proc.a_2d_b_2e_c_ms"
    assert name_prediction("a-b", "us") != name_prediction("a.b", "us")


def test_tls():
    text = render_door(plan_behind_door(tls_cert="/x/cert.pem", tls_key="/x/key.pem"), FILES)
    assert 'bind "${KIT_DOOR}" ssl crt "/kit/run/door.pem" alpn http/1.1 ssl-min-ver TLSv1.2\n' in text
    assert "ssl" not in render_door(plan_behind_door(), FILES)


@pytest.mark.parametrize(
    "text", ["plain", 'a "b" c', "back\\slash", "$HOME and ${HOME}", "it's # no comment"]
)
def test_quoting(text):
    """As a shell reads double quotes, for these characters; Python's shlex leaves \\$ as it is."""
    assert [word.replace("\\$", "$") for word in shlex.split(quote(text))] == [text]


def test_a_refusal_is_json():
    words = shlex.split(render_refusal(503, 'say "please" — or \\', "retry-after 1"))
    body = words[words.index("lf-string") + 1]
    assert body.endswith("}\\n")
    assert json.loads(body[:-2]) == {"code": 503, "error": 'say "please" — or \\'}
    assert words[-6:] == ["hdr", "x-request-id", "%[unique-id]", "hdr", "retry-after", "1"]
