"""config.properties as Java reads it, haproxy.cfg against golden files, the description, and what is written.

`python -m tests.config.test_render` writes the golden files again.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest

from config import render
from config.errors import ConfigError
from config.plan import InstancePlan, Plan, read_plan
from config.proxy import INSTANCE_NAMES, LISTENER, ProxyFiles, list_variables, name_prediction
from config.render import describe_plan, escape_value, render_properties, render_proxy
from tests.plans import make_instance, make_model, make_plan, make_proxy

GOLDEN = Path(__file__).parent / "golden"
ARCHIVES = {"1.0": "/archives/old.mar", "2.0": "/other/old-2.mar"}
FOREIGN = make_model("old", kit=False, archives=ARCHIVES, version="2.0", backend="", precision="", limits={})


def plan_with(*instances: InstancePlan, **changes: Any) -> Plan:
    return replace(
        make_plan(), instances={f"a{n}": one for n, one in enumerate(instances, start=1)}, **changes
    )


def plan_foreign() -> Plan:
    """A kit model in a1 and an archive that others made in a2."""
    kit = make_instance(1, {"bert": make_model("bert")})
    return plan_with(kit, make_instance(2, {"old": FOREIGN}, kit=False))


PLANS = {"two-instances": make_plan(), "foreign": plan_foreign()}


def drop_comments(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line and not line.lstrip().startswith("#"))


def parse_properties(text: str) -> dict[str, str]:
    """As Java reads one-line properties; no key may be there twice."""
    pairs = [line.partition("=") for line in drop_comments(text).splitlines()]
    assert len({key for key, _, _ in pairs}) == len(pairs)
    return {key: unescape(value) for key, _, value in pairs}


def unescape(value: str) -> str:
    plain = re.sub(r"\\u([0-9a-f]{4})|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], value)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("name", ["a1", "a2"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_java_reads_what_is_planned(plan, name):
    planned, read = plan.instances[name], parse_properties(render_properties(plan, name))
    assert read.pop("vmargs") == "-Xms640m -Xmx640m -XX:+UseSerialGC"
    models = json.loads(read.pop("models"))
    assert read == planned.properties
    for model, own in planned.models.items():
        assert models.pop(model) == {
            version: {
                "defaultVersion": version == own.version, "marName": archive.rpartition("/")[2],
                "minWorkers": own.workers, "maxWorkers": own.workers, "batchSize": own.batch_size,
                "maxBatchDelay": own.max_batch_delay_ms, "responseTimeout": own.response_timeout_s,
                "startupTimeout": own.startup_timeout_s,
            }
            for version, archive in own.archives.items()
        }  # fmt: skip
    assert models == {}


def test_no_key_is_lost_or_forgotten():
    planned = make_instance(1).properties
    more = plan_with(make_instance(1, properties={**planned, "prefer_direct_buffer": "true"}))
    with pytest.raises(ValueError, match=r"must have a line for each planned key: add prefer_direct_buffer$"):
        render_properties(more, "a1")
    less = {key: value for key, value in planned.items() if key != "job_queue_size"}
    with pytest.raises(jinja2.UndefinedError, match="job_queue_size"):
        render_properties(plan_with(make_instance(1, properties=less)), "a1")


@pytest.mark.parametrize(
    "value", ["C:\\x", " leading", "/srv/müller/模型/😀", "a=b:c#d!e", "a\nb=c", "{{ x }}"]
)
def test_values_are_escaped(value):
    assert escape_value(value).isascii()
    plan = plan_with(make_instance(1, properties={**make_instance(1).properties, "model_store": value}))
    assert parse_properties(render_properties(plan, "a1"))["model_store"] == value


def test_reasons_are_comments_above_their_lines():
    """And can be nothing else."""
    reasons = {
        "a1.properties.job_queue_size": "all that\nnumber_of_gpu=7 may wait",
        "a1.bert.batch_size": "within the SLO",
        "a1.bert.maxconn": "next batches",
        "a1.java.heap_mib": "all bodies",
        "a2.properties.model_store": "of the neighbour",
        "proxy.places": "room\nquit",
    }
    plan, plain = (replace(make_plan(), reasons=each) for each in (reasons, {}))
    text, config = render_properties(plan, "a1"), render_proxy(plan)
    for pattern in (
        r"\n# all that number_of_gpu=7 may wait\njob_queue_size=20\n",
        r"\n# bert batch_size: within the SLO\nmodels=",
        r"\n# java heap_mib: all bodies\nvmargs=",
    ):
        assert re.search(pattern, text)
    assert "neighbour" not in text
    assert re.search(r"\n    # room quit\n    http-request return .* be_conn\(bert.entry\)", config)
    assert re.search(r"\n    # next batches\n    server a1 .* maxconn 8 check", config)
    assert drop_comments(text) == drop_comments(render_properties(plain, "a1"))
    assert drop_comments(config) == drop_comments(render_proxy(plain))


@pytest.mark.parametrize("name", PLANS)
def test_golden(name):
    golden = (GOLDEN / f"{name}.haproxy.cfg").read_text(encoding="utf-8")
    assert drop_comments(render_proxy(PLANS[name])) == golden


def test_each_group_of_lines_has_a_reason_above():
    section = re.compile(r"(frontend|backend|defaults|global)\b.*|# ---- \w+ ----|")
    for text in (render_proxy(plan_foreign()), render_properties(make_plan(), "a1")):
        for above, line in itertools.pairwise(text.splitlines()):
            if section.fullmatch(above) and not section.fullmatch(line):
                assert line.lstrip().startswith("#"), line


def test_variables():
    plan = make_plan()
    known = list_variables(plan, serving=["a2"])
    assert set(re.findall(r"\$\{(\w+)\}", render_proxy(plan))) == set(known)
    assert (known["KIT_STATE_a1"], known["KIT_STATE_a2"]) == ("disabled", "enabled")
    assert known[LISTENER] == "127.0.0.1:8080"
    assert list_variables(plan, listener="fd@3")[LISTENER] == "fd@3"
    assert name_prediction("a-b.c", "ms") == "proc.a_2d_b_2e_c_ms"
    assert name_prediction("a-b", "us") != name_prediction("a.b", "us")


def test_places_are_of_both_generations():
    assert (INSTANCE_NAMES[0], INSTANCE_NAMES[-1], len(INSTANCE_NAMES)) == ("a1", "b4", 8)
    with pytest.raises(ValueError, match=r"instances must be of a1, .*: got a5$"):
        render_proxy(plan_with(*map(make_instance, range(1, 6))))


def test_tls():
    text = render_proxy(make_plan(proxy=make_proxy(tls_cert="/x/cert.pem", tls_key="/x/key.pem")))
    certificate = ProxyFiles.of(Path("/kit/run")).certificate
    assert f' "${{{LISTENER}}}" ssl crt "{certificate}" alpn http/1.1 ssl-min-ver TLSv1.2\n' in text
    assert "ssl" not in render_proxy(make_plan())


@pytest.mark.parametrize("text", ["plain", 'a "b" c', "back\\slash", "$HOME ${HOME}", "it's # no comment"])
def test_quoting(text):
    """As a shell reads double quotes, for these characters; Python's shlex leaves \\$ as it is."""
    assert [word.replace("\\$", "$") for word in shlex.split(render.quote(text))] == [text]


def test_an_error_is_json():
    words = shlex.split(render.render_error(503, 'say "please" — or \\', "retry-after 1"))
    body = words[words.index("lf-string") + 1]
    assert body.endswith("}\\n")
    assert json.loads(body[:-2]) == {"code": 503, "error": 'say "please" — or \\'}
    assert words[-6:] == ["hdr", "x-request-id", "%[unique-id]", "hdr", "retry-after", "1"]


def test_the_description_fits_screens_and_shows_equal_instances_once():
    text = describe_plan(make_plan())
    assert max(map(len, text.splitlines())) <= 100 >= len(text.splitlines())
    apart = describe_plan(plan_with(make_instance(1), make_instance(2, memory_mib=1)))
    for pattern, shown, count in (
        (r"^INSTANCES a1, a2\b", text, 1),
        (r"^  port +a1: 8090; a2: 8100$", text, 1),
        (r"^  cores_per_worker +1  # one core per worker: no barriers between threads$", text, 1),
        (r"^MODEL bert .*: fp32$", text, 1),
        (r"^INSTANCE a\d$", apart, 2),
        (r"^MODEL old in a2: as archived$", describe_plan(plan_foreign()), 1),
    ):
        assert len(re.findall(pattern, shown, re.MULTILINE)) == count, pattern


def test_summary():
    assert render.summarize(make_plan()) == (
        "planned: bert, resnet50 · workers 2 × cores 1 · fp32 · jemalloc · intel OpenMP · "
        "2 instances behind HAProxy on port 8080"
    )
    instances = make_instance(1), make_instance(2, {"old": FOREIGN}, pinned=False)
    summary = render.summarize(plan_with(*instances, reasons={"a2.pinned": "a quota"}))
    assert " · NOT PINNED: a quota · bert fp32, old as archived, resnet50 fp32 · " in summary


def test_files_are_written_where_a_start_reads_them(tmp_path, monkeypatch):
    plan, later = make_plan(run_dir=tmp_path), replace(make_plan(3, run_dir=tmp_path), generation="b")
    render.write_plan_files(plan)
    assert read_plan(tmp_path) == plan
    assert (tmp_path / "haproxy.cfg").read_text(encoding="utf-8") == render_proxy(plan)
    for name in plan.instances:
        file = tmp_path / "instances" / name / "config.properties"
        assert file.read_text(encoding="utf-8") == render_properties(plan, name)
    render.write_next(later)
    assert (read_plan(tmp_path), read_plan(tmp_path / "next")) == (plan, later)
    assert (tmp_path / "next/haproxy.cfg").exists()
    assert (tmp_path / "instances/a3/config.properties").exists()
    monkeypatch.setattr(render, "render_proxy", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        render.write_plan_files(later)
    assert read_plan(tmp_path) == plan  # the plan is last


def test_nothing_is_written_where_a_folder_is_somebody_elses(tmp_path):
    (tmp_path / "instances/a2").mkdir(parents=True)
    (tmp_path / "instances/a2/thesis.txt").touch()
    (tmp_path / ".cpu-kit").touch()
    with pytest.raises(ConfigError, match="RUN_DIR"):
        render.write_plan_files(make_plan(run_dir=tmp_path))
    assert not list(tmp_path.rglob("*.properties")) + list(tmp_path.rglob("haproxy.cfg"))


if __name__ == "__main__":
    for name, plan in PLANS.items():
        (GOLDEN / f"{name}.haproxy.cfg").write_text(drop_comments(render_proxy(plan)), encoding="utf-8")
