"""Proxies for the tests of a real HAProxy; without it they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proxy.proxies import Proxy, open_proxy


@pytest.fixture(scope="session")
def _lasting() -> Iterator[Proxy]:
    with open_proxy(foreign=True) as opened:
        yield opened


@pytest.fixture
def quiet(_lasting: Proxy) -> Proxy:
    """For tests that only ask: one for all, with a foreign model in a3; instances forget earlier requests."""
    for instance in _lasting.instances.values():
        instance.requests.clear()
    return _lasting


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """Two instances that are well, or what `planned` says."""
    serving, changes = getattr(request, "param", ((), {}))
    with open_proxy(*serving, **changes) as opened:
        yield opened
