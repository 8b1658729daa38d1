"""HAProxy accepts what is rendered, without a warning; and runs it."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace

import pytest

from config.plan import Plan
from config.render import render_proxy
from tests.plans import make_instance, make_plan
from tests.proxy.proxies import Proxy, call_haproxy, plan_proxy, planned, sending, wait_for


def plan_others(folder: str) -> Plan:
    """The other generation, of several models."""
    instances = {f"b{number}": make_instance(4 + number) for number in (1, 2)}
    return replace(make_plan(run_dir=folder), generation="b", instances=instances)


@pytest.mark.parametrize(
    ("make", "asked", "spoilt"),
    [
        *((plan_proxy, asked, "") for asked in ({}, {"instances": 4}, {"foreign": True})),
        (plan_proxy, {"threads": 4, "places": 1, "large_places": 1}, ""), (plan_others, {}, ""),
        (plan_proxy, {}, "mode http"),
    ],
)  # fmt: skip
def test_it_has_nothing_to_say_but_of_what_is_wrong(make, asked, spoilt):
    with tempfile.TemporaryDirectory(prefix="a b'c\"d$E#f\\g%h{é[1],", dir="/tmp") as folder:
        text = render_proxy(plan := make(folder, **asked))
        call = call_haproxy(plan, "-c", text=text.replace(spoilt, spoilt[:-1]) if spoilt else text)
        checked = subprocess.run(**call, capture_output=True, text=True, check=False)
    said = (checked.returncode, checked.stdout + checked.stderr)
    assert (said == (0, "Configuration file is valid\n")) is not bool(spoilt)


@planned("nobody")
def test_no_instance_gets_requests_before_the_supervisor_says_so_and_then_is_asked_whether_it_lives(
    proxy: Proxy,
):
    answer = proxy.ask()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert b"no instance of this model is available now" in answer.body
    proxy.serve("a2")
    assert [proxy.ask().status for _ in range(4)] == [200] * 4
    assert not proxy.instances["a1"].requests
    assert not proxy.instances["a1"].checks
    proxy.serve("a1")
    wait_for(lambda: all(backend.checks for backend in proxy.instances.values()))


@planned(threads=4)
def test_several_threads(proxy: Proxy):
    with sending(100, lambda _: [proxy.ask(b"x" * 100_000).status for _ in range(5)]) as answers:
        pass
    assert answers == [[200] * 5] * 100
