"""What protects a server: each planted fault of TorchServe's process is seen, and nothing else is blamed."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from config.render import render_properties
from server.verify.evidence import NOT_CHECKABLE
from server.verify.probes import LARGER_REQUEST, LARGEST_REQUEST, REGISTER
from server.verify.registry import FRONTEND_CHECKS, judge


def with_frontend(evidence, **values):
    """The evidence with another TorchServe process; mappings are updated."""
    old = evidence.frontend
    merged = {
        name: {**getattr(old, name), **value} if isinstance(value, dict) else value
        for name, value in values.items()
    }
    return dataclasses.replace(evidence, frontend=dataclasses.replace(old, **merged))


PLANNED = ", ".join(f"127.0.0.1:{port}" for port in (9383, 9384))
SOCKETS = "inference, management, metrics"
PRIVATE = "in a folder of mode 700"
SIZES = "16777216 bytes: {}; one more: {}"
INSTALL = "Custom python dependency for model allowed"
ANYWHERE = "[file://.*|http(s)?://.*]"
FAULTS = [
    ("predictions for all", {"listening": {"*:9380": "TorchServe"}}, "addresses", f"*:9380, {PLANNED}"),
    ("a debugger", {"listening": {"127.0.0.1:5": "TorchServe"}}, "addresses", f"127.0.0.1:5, {PLANNED}"),
    ("a worker", {"listening": {"127.0.0.1:9": "worker"}}, "addresses", f"127.0.0.1:9 (worker), {PLANNED}"),
    ("unreadable sockets", {"listening": None}, "addresses", "cannot be read"),
    ("no socket", {"sockets": ("inference", "metrics")}, "sockets", f"inference, metrics {PRIVATE}"),
    ("others may enter", {"sockets_mode": 0o755}, "sockets", f"{SOCKETS} in a folder of mode 755"),
    ("another's folder", {"sockets_own": False}, "sockets", f"{SOCKETS} {PRIVATE} of another user"),
    ("gRPC answers", {"answers": {"gRPC inference": "0"}}, "gRPC", "gRPC inference: status 0"),
    ("gRPC silent", {"answers": {"gRPC management": "refused"}}, "gRPC", "gRPC management: status refused"),
    ("model API on", {"answers": {REGISTER: "400"}}, "model API", "taken"),
    ("model API answers oddly", {"answers": {REGISTER: "500"}}, "model API", "500"),
    ("archives from anywhere", {"configuration": {"Allowed Urls": ANYWHERE}}, "allowed_urls", ANYWHERE),
    ("archives install", {"configuration": {INSTALL: "true"}}, "archives install", "true"),
    ("larger requests", {"answers": {LARGER_REQUEST: "100"}}, "request size", SIZES.format(100, 100)),
    ("smaller requests", {"answers": {LARGEST_REQUEST: "413"}}, "request size", SIZES.format(413, 413)),
    ("larger answers", {"configuration": {"Maximum Response Size": "9"}}, "response size", "9"),
    ("another heap", {"flags": ("-Xmx64m",)}, "JVM flags", "-Xmx64m"),
    ("no flags", {"flags": ()}, "JVM flags", "none"),
    ("java's environment unreadable", {"environment": None}, "JVM flags", "cannot be read"),
    ("properties changed", {"properties_now": "0"}, "config.properties", "changed since the start"),
    ("properties gone", {"properties_now": None}, "config.properties", "gone"),
]


@pytest.mark.parametrize(
    ("values", "item", "got"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS]
)
def test_a_fault_is_seen_and_nothing_else(plan, evidence, values, item, got):
    result = judge(plan, with_frontend(evidence, **values))
    assert [(one.finding.item, one.finding.got) for one in result.differences] == [(item, got)]
    assert all(one.finding.cure for one in result.differences)


def test_every_check_has_a_fault_here(plan, evidence):
    items = {check(plan, evidence.frontend).item for check in FRONTEND_CHECKS}
    assert items == {item for _, _, item, _ in FAULTS}


def test_properties_edited_before_the_start_are_seen(plan, evidence):
    edited = render_properties(plan).replace(
        "inference_address=unix:/kit/run/instances/a1/tmp/inference.sock",
        "inference_address=http://0.0.0.0:80",
    )
    digest = hashlib.sha256(edited.encode()).hexdigest()
    result = judge(plan, with_frontend(evidence, properties_now=digest, properties_at_start=digest))
    assert [(one.finding.item, one.finding.got) for one in result.differences] == [
        ("config.properties", "not the plan's when TorchServe read it")
    ]


@pytest.mark.parametrize("name", ["_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
@pytest.mark.parametrize("given", ["-Xmx64m", "-javaagent:/tmp/spy.jar"])
def test_flags_of_the_shell_are_seen_beside_the_planned_ones(plan, evidence, name, given):
    (one,) = judge(plan, with_frontend(evidence, environment={name: given})).differences
    assert one.finding.got == f"{plan.java.vmargs.value}; {name}={given}"


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_server_too_busy_to_answer_is_not_checkable_and_no_difference(plan, evidence, status):
    busy = dict.fromkeys((REGISTER, LARGEST_REQUEST, LARGER_REQUEST), status)
    result = judge(plan, with_frontend(evidence, answers=busy))
    assert result.good
    unchecked = {one.finding.item for one in result.judged if one.finding.state == NOT_CHECKABLE}
    assert unchecked == {"model API", "request size"}


def test_a_record_that_is_gone_is_not_checkable_and_said_so(plan, evidence):
    silent = dataclasses.replace(evidence.frontend, configuration={}, properties_at_start=None)
    result = judge(plan, dataclasses.replace(evidence, frontend=silent))
    assert result.good
    unchecked = {one.finding.item for one in result.judged if one.finding.state == NOT_CHECKABLE}
    assert unchecked == {"config.properties", "allowed_urls", "archives install", "response size"}
