"""Proxies for the tests of a real HAProxy; without it they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proxy.proxies import HAPROXY, Proxy, open_proxy


@pytest.fixture(autouse=True, scope="session")
def _needs_haproxy() -> None:
    if HAPROXY is None:
        pytest.skip("HAProxy is not installed (apt install haproxy)")


@pytest.fixture(scope="session")
def _lasting(_needs_haproxy: None) -> Iterator[Proxy]:
    with open_proxy(foreign=True) as opened:
        yield opened


@pytest.fixture
def quiet(_lasting: Proxy) -> Proxy:
    """For tests that only ask: one for all, with a foreign model in a3; instances forget earlier requests."""
    for instance in _lasting.instances.values():
        instance.requests.clear()
    return _lasting


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Two instances that are well."""
    with open_proxy() as opened:
        yield opened
