"""haproxy.cfg: golden files, a reason above each line, texts that stay as they are, no secret in it."""

from __future__ import annotations

import itertools
import json
import re
import shlex

import pytest

from config.door import LISTENER, list_variables, name_prediction, render_door
from config.door.process import quote, render_refusal
from tests.config.doors import FILES, GOLDEN_DOORS, golden_door, plan_behind_door


@pytest.mark.parametrize("machine", GOLDEN_DOORS)
def test_golden(machine):
    """After an intended change: python -m tests.config.doors."""
    file, text = golden_door(machine)
    assert file.read_text(encoding="utf-8") == text


def test_each_group_of_lines_has_a_reason_above():
    bare = []
    for above, line in itertools.pairwise(render_door(plan_behind_door(), FILES).splitlines()):
        if line.startswith("    ") and not above.startswith("    ") and not line.startswith("    # "):
            bare.append(line)
    assert not bare


def test_all_that_the_environment_is_asked_for_is_known():
    plan = plan_behind_door()
    text = render_door(plan, FILES)
    asked = set(re.findall(r"\$\{(\w+)\}", text))
    given = list_variables(plan, serving=["a2"])
    assert asked == set(given)
    assert (given["KIT_STATE_a1"], given["KIT_STATE_a2"]) == ("disabled", "enabled")
    assert given[LISTENER] == "127.0.0.1:8080"
    assert list_variables(plan, listener="fd@3")[LISTENER] == "fd@3"


def test_variables_of_models_have_names_of_their_own():
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
