"""The fuzz draws many different bodies, finds 5xx and growth, and keeps what failed to be sent again."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from random import Random

import pytest

from loadtest.experiments.harm import fuzz
from loadtest.experiments.harm.bodies import FORM
from loadtest.experiments.harm.client import RESET, SILENT, Outcome, Request
from loadtest.experiments.harm.fuzz import Failure, find_grown, render_failures, run_fuzz
from loadtest.experiments.harm.mutations import CHANGES, Case, change_seed, draw_cases
from loadtest.experiments.harm.row import Look
from loadtest.experiments.harm.seeds import make_seeds
from loadtest.experiments.soak import Growth
from loadtest.systems.fleet import Site

SEEDS = make_seeds()


@pytest.fixture(scope="module")
def cases():
    return draw_cases(SEEDS, 400, 7)


def test_so_many_different_bodies_are_drawn_the_same_each_time(cases):
    assert len({case.request for case in cases}) == 400
    assert draw_cases(SEEDS, 400, 7) == cases
    assert draw_cases(SEEDS, 400, 8) != cases


def test_even_one_can_be_drawn():
    assert len(draw_cases(SEEDS, 1, 7)) == 1


def test_both_models_and_every_kind_of_body_are_among_them(cases):
    assert {case.model for case in cases} == {"resnet50", "bert"}
    assert {case.request.path for case in cases} == {"/predictions/resnet50", "/predictions/bert"}
    origins = Counter(case.origin for case in cases)
    assert {"json", "text", "form", "multipart"} <= set(origins)
    assert len(origins) > 40
    assert len({case.request.content_type for case in cases}) > 10
    assert any(case.request.headers for case in cases)


def test_every_place_of_a_body_is_changed():
    body, chance = bytes(1000), Random(7)
    flipped = [CHANGES[0](chance, body, SEEDS) for _ in range(2000)]
    places = Counter(next((at for at in range(1000) if one[at]), 1000) // 100 for one in flipped)
    assert all(140 < places[tenth] < 260 for tenth in range(10))


@pytest.mark.parametrize("mutate", CHANGES, ids=lambda one: one.__name__)
def test_each_change_changes_most_bodies_and_takes_any(mutate):
    chance = Random(7)
    assert sum(mutate(chance, bytes(range(100)), SEEDS) != bytes(range(100)) for _ in range(50)) > 30
    assert isinstance(mutate(chance, b"", SEEDS), bytes)


def test_a_changed_body_keeps_its_type_mostly():
    chance = Random(7)
    own = {one.name: one.content_type for one in SEEDS}
    changed = [change_seed(chance, SEEDS) for _ in range(300)]
    assert 200 < sum(own[case.origin] == case.request.content_type for case in changed) < 300


@pytest.mark.parametrize(("late", "broken"), [(109.9, 0), (111.0, 1)])
def test_a_worker_may_grow_a_little(late, broken):
    growth = Growth(model="bert", pid=5, early_mib=100.0, late_mib=late)
    found = list(find_grown([growth]))
    assert len(found) == broken
    assert found in ([], ["bert worker 5 grew from 100 to 111 MiB (+11.0 %), promised: 10 %"])


def make_look(*pids, mib=100.0):
    return Look(
        java=1,
        resident_mib=dict.fromkeys(pids, mib),
        peak_mib=dict.fromkeys(pids, mib),
        cpu_s=dict.fromkeys(pids, 1.0),
        out_of_memory=0,
        log_kib=0.0,
    )


class FakeVictim:
    """Fails bodies that begin with x, those with y only in company."""

    port, token = 1, "secret"

    def __init__(self, *looks):
        self.looks = list(looks) or [make_look(2), make_look(2)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def ask(self, model, body, kind):
        return Request(path=f"/{model}", body=body, content_type=kind, token=self.token)

    def forget_peaks(self):
        return None

    def look(self):
        return self.looks.pop(0)

    def find_models(self):
        return {2: "bert"}

    def time_canaries(self):
        return 0.1

    def send(self, request):
        return Outcome(status=503 if request.body.startswith(b"x") else 200)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """(bodies, victim) → exit code, what was said, what was kept."""
    kinds = {b"x": Outcome(status=503), b"y": Outcome(failure=RESET), b"z": Outcome(status=400)}

    def send(requests, *_, at_most_s, **__):
        assert all(request.token == "secret" for request in requests)
        return [kinds.get(request.body[:1], kinds[b"z"]) for request in requests if request.body != b"late"]

    def run(*bodies, victim=None):
        cases = [Case(origin="jpeg", model="m", request=Request(path="/p", body=body)) for body in bodies]
        monkeypatch.setattr(fuzz, "send_all", send)
        monkeypatch.setattr(fuzz, "draw_cases", lambda *_: cases)
        monkeypatch.setattr(fuzz, "Victim", lambda *_: victim or FakeVictim())
        said: list[str] = []
        site = Site(store=tmp_path, folder=tmp_path, first_port=1, say=said.append)
        code = run_fuzz(site, results=tmp_path, bodies=len(bodies))
        (file,) = tmp_path.glob("*/fuzz.json")
        return code, "\n".join(said), file

    return run


def test_what_failed_is_kept_and_sent_again_alone(run):
    code, said, file = run(b"xa", b"za", b"y'")
    kept = json.loads(file.read_text())
    assert code == 1
    assert [(one["got"], one["alone"], one["file"]) for one in kept["failures"]] == [
        ("503", "503", "0000-jpeg.body"),
        (RESET, "200", "0001-jpeg.body"),
    ]
    failures = [file.parent / "failures" / one["file"] for one in kept["failures"]]
    assert [one.read_bytes() for one in failures] == [b"xa", b"y'"]
    assert kept["kinds"] == {"400": 1, "503": 1, RESET: 1}
    assert kept["broken"] == ["2 bodies were not answered, or with 5xx, promised: none"]
    assert "BROKEN: 2 bodies were not answered" in said


def test_a_server_that_stands_is_exit_code_0(run):
    code, said, _ = run(b"za", b"zb")
    assert code == 0
    assert "bert worker 2 grew from 100 to 100 MiB (+0.0 %)" in said
    assert "BROKEN" not in said


@pytest.mark.parametrize(
    ("bodies", "looks", "text"),
    [
        ([b"z", b"late"], [make_look(2), make_look(2)], "only 1 of 2 bodies could be sent within 240 s"),
        ([b"z"], [make_look(2, 3), make_look(2)], "1 workers lost, promised: 0"),
        ([b"z"], [make_look(2), make_look(2, mib=120.0)], "grew from 100 to 120 MiB (+20.0 %), promised"),
    ],
)
def test_a_broken_promise_says_what_it_got(run, bodies, looks, text):
    code, said, _ = run(*bodies, victim=FakeVictim(*looks))
    assert code == 1
    assert text in said


@pytest.mark.parametrize(
    ("outcome", "failed"),
    [
        (Outcome(status=200), False),
        (Outcome(status=499), False),
        (Outcome(status=500), True),
        (Outcome(failure=SILENT), True),
    ],
)
def test_a_clients_fault_is_4xx(outcome, failed):
    assert fuzz.is_failure(outcome) is failed


def test_the_line_that_sends_it_again_says_every_header(tmp_path):
    request = Request(path="/predictions/bert", body=b"x", content_type=FORM, headers=(("describe", "True"),))
    words = shlex.split(fuzz.render_curl(request, tmp_path / "0001-form.body"))
    assert words == [
        "curl", "-i", "-H", "Authorization: Bearer $TOKEN", "-H", f"Content-Type: {FORM}",
        "-H", "describe: True", "--data-binary", "@0001-form.body", "$URL/predictions/bert",
    ]  # fmt: skip
    assert "-H 'Content-Type:'" in fuzz.render_curl(Request(path="/p", body=b"x"), tmp_path / "a")


def test_some_failures_are_listed_the_most_frequent_first():
    kinds = [*(f"png-{number}" for number in range(11)), *["jpeg"] * 2]
    failures = [
        Failure(origin=kind, got="503", answer='{"a":\n 1}', alone="400", file="a", again="curl a")
        for kind in kinds
    ]
    lines = render_failures(failures)
    assert lines[:2] == ["  2 × jpeg: 503 (alone: 400): curl a", '    {"a": 1}']
    assert lines[20:] == ["  … and 2 more kinds in fuzz.json"]
