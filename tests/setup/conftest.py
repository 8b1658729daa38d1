"""A machine and environment without fault, which each test spoils in one place."""

from __future__ import annotations

import pytest

from setup.facts import Facts, Haproxy, Java

PINS = {
    "torch": "2.8.0",
    "torchvision": "0.23.0",
    "intel_extension_for_pytorch": "2.8.0",
    "torchserve": "0.12.0",
    "transformers": "4.57.1",
}


@pytest.fixture
def good() -> Facts:
    return Facts(
        system="Linux",
        architecture="x86_64",
        cpu_flags=frozenset({"avx2", "avx512f"}),
        java=Java(path="/usr/bin/java", major=17, text="17.0.15"),
        java_home=None,
        haproxy=Haproxy(path="/usr/sbin/haproxy", version=(2, 6), text="2.6.12-1+deb12u1"),
        libraries={"jemalloc": "/usr/lib/libjemalloc.so.2", "tcmalloc": "/usr/lib/libtcmalloc.so.4"},
        tools=frozenset({"numactl", "lscpu", "ab", "curl", "javac", "apt-get"}),
        can_make_venv=True,
        python=(3, 11),
        venv=".venv",
        venv_python=(3, 11),
        iomp="/checkout/.venv/lib/libiomp5.so",
        versions=dict(PINS),
        pins=PINS,
    )
