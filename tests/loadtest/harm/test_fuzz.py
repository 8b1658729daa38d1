"""The fuzz draws many different bodies, finds 5xx and growth, and keeps what failed to be sent again."""

from __future__ import annotations

import shlex
from collections import Counter
from random import Random

import pytest

from loadtest.harm import fuzz
from loadtest.harm.bodies import FORM
from loadtest.harm.client import RESET, SILENT, Outcome, Request
from loadtest.harm.fuzz import Failure, Fuzz, find_broken, render_fuzz, send_cases
from loadtest.harm.mutations import CHANGES, Case, change_seed, draw_cases
from loadtest.harm.row import Look
from loadtest.harm.seeds import make_seeds
from loadtest.soak import Growth

SEEDS = make_seeds()
GOOD = Fuzz(seed=7, asked=3, seconds=1.0, kinds={"200": 1, "400": 2}, growths=[], workers_lost=0,
            server_lost=False, again_s=0.1)  # fmt: skip


def change(**values):
    return Fuzz(**{**vars(GOOD), **values})


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


def test_what_held_is_not_broken():
    assert not list(find_broken(GOOD))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"asked": 4}, "only 3 of 4 bodies could be sent within 240 s"),
        ({"workers_lost": 2}, "2 workers lost, promised: none"),
        ({"server_lost": True}, "0 workers and the server lost, promised: none"),
        ({"again_s": None}, "no right answer within a minute afterwards"),
        (
            {"growths": [Growth(model="bert", pid=5, early_mib=100.0, late_mib=111.0)]},
            "bert worker 5 grew from 100 to 111 MiB (+11.0 %), promised: 10 %",
        ),
    ],
)
def test_a_broken_promise_says_what_it_got(values, text):
    assert list(find_broken(change(**values))) == [text]


def test_growth_within_the_limit_is_none():
    assert not list(find_broken(change(growths=[Growth(model="", pid=5, early_mib=100.0, late_mib=109.9)])))


class FakeSite:
    """Fails bodies that begin with x, those with y only in company."""

    port, token = 1, "secret"

    def look(self):
        return Look(java=1, resident_mib={2: 9.0}, peak_mib={}, cpu_s={}, out_of_memory=0, log_kib=0.0)

    def find_models(self):
        return {2: "bert"}

    def time_canaries(self):
        return 0.1

    def send(self, request):
        return Outcome(status=503 if request.body.startswith(b"x") else 200)


def test_what_failed_is_kept_and_sent_again_alone(monkeypatch, tmp_path):
    kinds = {b"x": Outcome(status=503), b"y": Outcome(failure=RESET), b"z": Outcome(status=400)}

    def send(requests, *_, **__):
        assert all(request.token == "secret" for request in requests)
        return [kinds[request.body[:1]] for request in requests]

    monkeypatch.setattr(fuzz, "send_all", send)
    bodies = (b"xa", b"za", b"y'")
    cases = [Case(origin="jpeg", model="m", request=Request(path="/p", body=body)) for body in bodies]
    found = send_cases(FakeSite(), cases, tmp_path)
    assert [(one.got, one.alone, one.file) for one in found.failures] == [
        ("503", "503", "0000-jpeg.body"),
        (RESET, "200", "0001-jpeg.body"),
    ]
    assert [(tmp_path / "failures" / one.file).read_bytes() for one in found.failures] == [b"xa", b"y'"]
    assert [(one.model, one.pid) for one in found.growths] == [("bert", 2)]
    assert found.kinds == {"400": 1, "503": 1, RESET: 1}
    assert list(find_broken(found)) == ["2 bodies were not answered, or with 5xx, promised: none"]


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


def test_the_report_lists_some_failures_and_the_verdict():
    kinds = [*["jpeg"] * 2, *(f"png-{number}" for number in range(11))]
    failures = [
        Failure(origin=kind, got="503", answer='{"a":\n 1}', alone="400", file="a", again="curl a")
        for kind in kinds
    ]
    lines = render_fuzz(change(failures=failures))
    assert lines[0] == "3 bodies in 1 s (3 a second), seed 7: 1 × 200, 2 × 400"
    assert lines[1:3] == ["  2 × jpeg: 503 (alone: 400): curl a", '    {"a": 1}']
    assert lines[21:] == [
        "  … and 2 more kinds in fuzz.json",
        "BROKEN: 13 bodies were not answered, or with 5xx, promised: none",
    ]


@pytest.mark.parametrize(("values", "code"), [({}, 0), ({"workers_lost": 1}, 1)])
def test_the_exit_code_is_the_verdict(monkeypatch, values, code):
    monkeypatch.setattr(fuzz, "run_fuzz", lambda options: change(**values))
    assert fuzz.main([]) == code


def test_no_bodies_are_refused(capsys):
    with pytest.raises(SystemExit):
        fuzz.main(["--bodies", "0"])
    assert "BODIES must be 1 or more: got 0" in capsys.readouterr().err
