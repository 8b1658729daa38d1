"""Debian's Prometheus and Alertmanager: `apt-get install prometheus prometheus-alertmanager`."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.docs.pages import ROOT

UNPACKED = ROOT / "run-observers"
"""Where .ci/run has the packages' files, without what would start their services."""


def find_program(name: str) -> str:
    """Of one of both; skipped where it is not installed."""
    found = shutil.which(name, path=f"{UNPACKED}/usr/bin{os.pathsep}{os.environ['PATH']}")
    if not found:
        pytest.skip(f"no {name}: apt-get install prometheus prometheus-alertmanager")
    return found
