"""Intervals from fewer drawings: these tests hold what is chosen, not the third digit."""

from __future__ import annotations

import pytest

from loadtest.experiments.tune import curve


@pytest.fixture(autouse=True, scope="package")
def fewer_drawings():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "RESAMPLES", 200)
        yield
