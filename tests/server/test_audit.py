"""A hole is accepted by name and until a day, or the audit fails; what was not asked is not called good."""

from __future__ import annotations

import json
import zipfile
from datetime import date, timedelta
from importlib.util import find_spec

import pytest

from server import audit as server_audit
from server.audit import (
    GOOD,
    HOLES,
    NOT_ASKED,
    NOT_RUN,
    Accepted,
    Answer,
    Hole,
    audit,
    find_jar,
    main,
    parse_answer,
    parse_version,
    read_accepted,
    read_installed,
    read_java,
)
from server.errors import ServerError

TODAY = date(2026, 1, 1)
INSTALLED = {"torch": "2.8.0", "pillow": "13.0.0", "netty": "4.1.53.Final"}
TORCH = Accepted(id="CVE-1", package="torch", fixed="2.10.0", why="no pickles", until=TODAY)
NETTY = Accepted(id="CVE-2", package="netty", fixed="4.1.59", why="not used", until=TODAY)
HOLE = Hole(package="torch", version="2.8.0", names=("PYSEC-7", "CVE-1"), fixed=("2.10.0",))


def test_what_is_accepted_is_printed_with_its_reason_and_good():
    lines, code = audit([TORCH, NETTY], INSTALLED, Answer(holes=(HOLE,)), TODAY)
    assert code == GOOD
    assert lines == [
        "accepted, 2:",
        "  torch 2.8.0  CVE-1  (fixed in 2.10.0, until 2026-01-01)\n    no pickles",
        "  netty 4.1.53.Final  CVE-2  (fixed in 4.1.59, until 2026-01-01)\n    not used",
    ]


def test_a_hole_that_is_not_in_the_list_fails():
    new = Hole(package="pillow", version="13.0.0", names=("PYSEC-8", "CVE-3"), fixed=())
    lines, code = audit([TORCH], INSTALLED, Answer(holes=(HOLE, new)), TODAY)
    assert code == HOLES
    assert lines[-2:] == ["not accepted, 1:", "  pillow 13.0.0  PYSEC-8, CVE-3  (fixed in -)"]


def test_an_acceptance_is_of_one_package():
    other = Hole(package="torch", version="2.8.0", names=("CVE-2",), fixed=())
    _, code = audit([NETTY], INSTALLED, Answer(holes=(other,)), TODAY)
    assert code == HOLES


def test_an_acceptance_ends():
    lines, code = audit([NETTY], INSTALLED, Answer(), TODAY + timedelta(days=1))
    assert (code, lines[:2]) == (HOLES, ["accepted, 0:", "accepted no longer; look at them again:"])


def test_what_is_mended_or_not_installed_is_not_listed():
    newer = {**INSTALLED, "netty": "4.1.59.Final"}
    del newer["torch"]
    assert audit([TORCH, NETTY], newer, Answer(), TODAY) == (["accepted, 0:"], GOOD)


def test_what_could_not_be_asked_is_said_and_is_not_good():
    """pip-audit's own verdict on packages it skips is "no known vulnerabilities", exit code 0."""
    entries = [{"name": "torch", "skip_reason": "not found"}, {"name": "Pillow", "version": "13.0.0"}]
    said = json.dumps({"dependencies": entries})
    answer = parse_answer(said, "", {"torch": "2.8.0", "pillow": "13.0.0", "numpy": "2"})
    assert answer.unasked == {"torch": "not found", "numpy": "pip-audit left it out"}
    lines, code = audit([], INSTALLED, answer, TODAY)
    assert code == NOT_ASKED
    assert lines[1] == "PyPI could not be asked of 2 packages: numpy, torch"


@pytest.mark.parametrize("said", ["", "{", "[]"])
def test_without_an_answer_nothing_was_asked(said):
    answer = parse_answer(said, "…\nConnectionError: no route\n", {"torch": "2.8.0"})
    assert answer.unasked == {"torch": "ConnectionError: no route"}
    _, code = audit([TORCH], INSTALLED, answer, TODAY)
    assert code == NOT_ASKED


def test_holes_come_with_all_their_names():
    vulns = [{"id": "PYSEC-7", "aliases": ["CVE-1"], "fix_versions": ["2.10.0"]}]
    said = json.dumps({"dependencies": [{"name": "torch", "version": "2.8.0", "vulns": vulns}]})
    assert parse_answer(said, "", {"torch": "2.8.0"}) == Answer(holes=(HOLE,), unasked={})


def test_versions_are_compared_by_their_numbers():
    assert parse_version("4.1.53.Final") < parse_version("4.1.108.Final")
    assert parse_version("2.8.0") < parse_version("2.10.0")


def test_java_libraries_are_read_from_the_jar(tmp_path):
    jar = tmp_path / "model-server.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/io.netty.versions.properties", "netty-codec-http.version=4.1.53.Final\n")
        archive.writestr("META-INF/DEPENDENCIES", "… org.apache.logging.log4j:log4j-core:jar:2.17.1\n")
    assert read_java(jar) == {"netty": "4.1.53.Final", "log4j": "2.17.1"}


def test_the_list_is_of_what_is_installed():
    """An entry for what is not there, or is mended, would be kept for ever."""
    dated, accepted = read_accepted()
    here = {**read_installed(), **read_java(find_jar())}
    assert dated >= date(2026, 1, 1)
    assert [one.id for one in accepted if one.package not in here] == []
    assert [one.id for one in accepted if parse_version(here[one.package]) >= parse_version(one.fixed)] == []
    assert len({(one.package, one.id) for one in accepted}) == len(accepted)


def test_a_list_without_a_reason_is_refused(tmp_path):
    file = tmp_path / "accepted.yaml"
    file.write_text("dated: 2026-01-01\naccepted: [{id: CVE-1, package: torch}]\n")
    with pytest.raises(ServerError, match=r"each with id, package, fixed, why, until: got .*missing"):
        read_accepted(file)


def test_the_list_is_printed_when_nothing_can_be_asked(monkeypatch, capsys):
    monkeypatch.setattr(
        server_audit, "find_spec", lambda name: None if name == "pip_audit" else find_spec(name)
    )
    assert main() == NOT_ASKED
    said = capsys.readouterr().out
    assert "torch 2.8.0  CVE-2026-24747" in said
    assert "pip-audit is not installed: `make audit` installs it" in said
    assert said.endswith("audit: not all could be asked\n")


def test_a_broken_list_is_not_run(monkeypatch, capsys):
    def fail():
        raise ServerError("broken")

    monkeypatch.setattr(server_audit, "read_accepted", fail)
    assert main(lambda _: Answer()) == NOT_RUN
    assert capsys.readouterr().err == "error: broken\n"
