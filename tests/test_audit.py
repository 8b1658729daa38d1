"""`make audit`: where nobody can be asked nothing is called good, and what is accepted has a reason."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
IGNORED = re.findall(r"^([A-Z]\S+)", (REQUIREMENTS / "audit.ignore").read_text(), re.MULTILINE)
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo torch==2.8.0; exit; fi
wanted=$(cat)
echo "$wanted $*" >> "$CALLS"
case "$wanted" in urllib3*) echo "$PROBE" ;; esac
exit "$CODE"
"""


def audit(folder: Path, *, probe: str, code: int) -> tuple[int, list[str]]:
    """The exit code, and what pip-audit was asked; `probe` is its word on a package with vulnerabilities."""
    python, calls = folder / "python", folder / "calls"
    python.write_text(PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", REQUIREMENTS / "audit.sh", python],
        env={**os.environ, "PROBE": probe, "CODE": str(code), "CALLS": str(calls)},
        capture_output=True,
        check=False,
    )
    return done.returncode, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("probe", "code"),
    [
        ("No known vulnerabilities found", 0),
        ("ERROR:pip_audit._cli:urllib3: Dependency not found on PyPI and could not be audited", 1),
        ("ConnectionError: no route", 1),
    ],
)
def test_where_nobody_can_be_asked_nothing_is_called_good(tmp_path, probe, code):
    assert audit(tmp_path, probe=probe, code=code)[0] == 3


@pytest.mark.parametrize("code", [0, 1])
def test_the_verdict_is_of_all_but_what_is_accepted(tmp_path, code):
    got, calls = audit(tmp_path, probe="urllib3 1.24.1 PYSEC-2019-133 1.24.3", code=code)
    assert got == code
    assert calls[1].startswith("torch==2.8.0 ")
    assert re.findall(r"--ignore-vuln (\S+)", calls[1]) == IGNORED


def test_each_accepted_vulnerability_has_its_reason():
    lines = (REQUIREMENTS / "audit.ignore").read_text().splitlines()
    bare = [line for line in lines if not re.match(r"#|(CVE|GHSA|PYSEC)-\S+ \S+ < \S+: \S", line)]
    assert (bare, len(IGNORED) > 0) == ([], True)
