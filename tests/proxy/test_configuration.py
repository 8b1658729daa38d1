"""HAProxy accepts what is rendered, without a warning; and runs it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from config.plan import PROXY_FILE, Plan
from config.proxy import list_variables
from tests.plans import make_instance, make_plan
from tests.proxy.proxies import HAPROXY, Proxy, open_proxy, plan_proxy, together, wait_for, write_files

VALID = (0, "Configuration file is valid\n")


def check(plan: Plan, old: str = "", new: str = "") -> tuple[int, str]:
    """HAProxy's status and output for the configuration, in which `new` replaces `old`."""
    write_files(plan)
    file = Path(plan.run_dir, PROXY_FILE)
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    checked = subprocess.run(
        [str(HAPROXY), "-c", "-f", str(file)],
        env={**os.environ, **list_variables(plan)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return checked.returncode, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "asked", [{}, {"instances": 4}, {"foreign": True}, {"threads": 4, "places": 1, "large_places": 1}]
)
def test_it_has_nothing_to_say(tmp_path, asked):
    assert check(plan_proxy(tmp_path, **asked)) == VALID


def test_nor_about_the_other_generation_and_several_models(tmp_path):
    instances = {f"b{number}": make_instance(4 + number) for number in (1, 2)}
    assert check(replace(make_plan(run_dir=tmp_path), generation="b", instances=instances)) == VALID


def test_paths_with_blanks_and_quotes():
    with tempfile.TemporaryDirectory(prefix="a b'c\"d$E#f\\g%h{é[1],", dir="/tmp") as folder:
        assert check(plan_proxy(folder, foreign=True)) == VALID


def test_it_would_say_something(tmp_path):
    assert check(plan_proxy(tmp_path), "mode http", "mode htp")[0] == 1


def test_instances_are_asked_whether_they_live(proxy: Proxy):
    wait_for(lambda: all(backend.checks for backend in proxy.instances.values()))


def test_no_instance_gets_requests_before_the_supervisor_says_so():
    with open_proxy("nobody") as proxy:
        assert proxy.ask().status == 503
        proxy.serve("a2")
        assert [proxy.ask().status for _ in range(4)] == [200] * 4
        assert not proxy.instances["a1"].requests
        assert not proxy.instances["a1"].checks


def test_several_threads():
    with open_proxy(threads=4) as proxy:
        answers = together(100, lambda _: [proxy.ask(b"x" * 100_000).status for _ in range(5)])
        assert answers == [[200] * 5] * 100
