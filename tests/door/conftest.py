"""Doors for the tests of a real HAProxy; without it they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.door.doors import HAPROXY, Door, open_door


@pytest.fixture(autouse=True, scope="session")
def _needs_haproxy() -> None:
    if HAPROXY is None:
        pytest.skip("HAProxy is not installed (apt install haproxy)")


@pytest.fixture(scope="session")
def _lasting(_needs_haproxy: None) -> Iterator[Door]:
    with open_door() as opened:
        opened.serve()
        yield opened


@pytest.fixture
def quiet(_lasting: Door) -> Door:
    """As `door`, for tests that only ask: one for all, whose instances have forgotten the others."""
    for instance in _lasting.instances.values():
        instance.requests.clear()
    return _lasting


@pytest.fixture
def door() -> Iterator[Door]:
    """Two instances that are well."""
    with open_door() as opened:
        opened.serve()
        yield opened
