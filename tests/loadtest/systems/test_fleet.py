"""Systems are started once, looked at once, kept while they are needed, and never left up."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from loadtest.errors import LoadTestError, RefusedError
from loadtest.systems.fleet import PLACES, Fleet, Member, Site
from loadtest.systems.system import System


class Logged(System):
    """Says what is done with it."""

    def halt(self):
        self.start["log"].append(f"halt {self.name}")

    def resume(self):
        self.start["log"].append(f"go {self.name}")


def make_member(name, log, *, inspect=lambda system: {"name": system.name}, refused=""):
    @contextlib.contextmanager
    def start(_site):
        if refused:
            raise RefusedError("config failed", refused)
        log.append(f"+{name}")
        try:
            yield Logged(name=name, models=(), start={"log": log})
        finally:
            log.append(f"-{name}")

    return Member(name=name, open=start, inspect=inspect)


@pytest.fixture
def log():
    return []


def make_site(folder=Path("unused")):
    return Site(store=folder, folder=folder, first_port=9000, say=print)


@pytest.fixture
def fleet():
    return Fleet(site=make_site())


def test_a_system_is_started_and_looked_at_once(fleet, log):
    member = make_member("a", log)
    with fleet.opened():
        first, again = fleet.bring(member, halt=True), fleet.bring(member, halt=False)
    assert log == ["+a", "halt a", "go a", "-a"]
    assert (first.halted, again.halted) == (True, False)
    assert first.system is again.system
    assert again.seen == {"name": "a"}
    assert again.start == {"log": log}


def test_what_is_not_needed_goes_down_and_the_rest_stays(fleet, log):
    for name in "abc":
        fleet.bring(make_member(name, log), halt=True)
    fleet.keep_only(["b"])
    assert sorted(log[-2:]) == ["-a", "-c"]
    assert list(fleet.up) == ["b"]
    fleet.keep_only(())
    assert log[-1] == "-b"


def test_a_refused_system_is_not_up_and_others_are(fleet, log):
    with fleet.opened():
        with pytest.raises(RefusedError) as problem:
            fleet.bring(make_member("a", log, refused="int8 needs IPEX"), halt=True)
        fleet.bring(make_member("b", log), halt=True)
        assert list(fleet.up) == ["b"]
    assert problem.value.reason == "int8 needs IPEX"


def test_a_system_that_cannot_be_looked_at_goes_down_again(fleet, log):
    def fail(_system):
        raise LoadTestError("it does not answer")

    with pytest.raises(LoadTestError, match="it does not answer"):
        fleet.bring(make_member("a", log, inspect=fail), halt=True)
    assert (log, fleet.up) == (["+a", "-a"], {})


def test_nothing_stays_up_behind_an_error(fleet, log):
    with contextlib.suppress(LoadTestError), fleet.opened():
        fleet.bring(make_member("a", log), halt=False)
        raise LoadTestError("cut off")
    assert log[-1] == "-a"


def test_places_have_folders_and_ports_of_their_own(tmp_path):
    site = make_site(tmp_path)
    places = [site.place("kit") for _ in range(PLACES)]
    assert len({folder for folder, _ in places}) == len({port for _, port in places}) == PLACES
    assert all(folder.is_dir() for folder, _ in places)
