"""What is wrong with an instance, and what is done about it: tables of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from server.processes import JAVA_MAIN, LAUNCHER_MODULE, WORKER_SCRIPT, Activity, Process
from server.supervisor.judge import (
    LATEST_LOOK_S,
    PATIENCE_ALONE_S,
    PATIENCE_PARTLY_S,
    PATIENCE_SPARE_S,
    STILL_S,
    Ill,
    Kind,
    Lack,
    Memory,
    ModelLook,
    Observation,
    Problem,
    Verdict,
    Worker,
    explain_hang,
    judge,
    observe,
    remember_worker,
)

BATCH_S = 40.0


def at(cpu_seconds: float = 0.0, switches: int = 0, *, stopped: bool = False, start: int = 1) -> Activity:
    return Activity(stopped=stopped, cpu_seconds=cpu_seconds, start_ticks=start, switches=switches)


def find_hang(*looks: tuple[float, Activity, int, int], workers: int = 2) -> str:
    """Of one worker after looks at these times: (now, what it was like, waiting, smoke requests answered)."""
    worker: Worker | None = None
    for now, seen, waiting, answered in looks:
        known = {"waiting": waiting, "answered": answered, "now": now}
        worker = remember_worker(worker, seen, **known)
        found = explain_hang(worker, seen, workers=workers, batch_s=BATCH_S, **known)
    return found


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ([(0.0, at(stopped=True), 0, 0)], "is stopped"),
        # Requests wait, and it computes nothing.
        ([(now, at(), 9, 0) for now in (0.0, 15.0, STILL_S - 1)], ""),
        ([(now, at(), 9, 0) for now in (0.0, 15.0, STILL_S)], "no CPU time for 30 s while 9 requests wait"),
        ([(now, at(now / 2), 9, 0) for now in (0.0, 15.0, STILL_S)], ""),
        ([(float(now), at(), 0 if now % 20 == 0 else 9, 0) for now in range(0, 300, 5)], ""),
        # It computes for longer than any batch takes, while requests wait since 5 s.
        ([(now, at(now), 9 if now else 0, 0) for now in (0.0, 5.0, 40.0)], ""),
        ([(now, at(now), 9 if now else 0, 0) for now in (0.0, 5.0, 45.0)], "finished nothing for 45 s"),
        ([(now, at(now, int(now)), 9, 0) for now in (0.0, 5.0, 45.0, 90.0)], ""),
        # It never takes its turn; one that is in a long batch misses it for a reason.
        ([(15.0 * turn, at(), 0, turn) for turn in range(4)], ""),
        ([(15.0 * turn, at(), 0, turn) for turn in range(5)], "none of the last 4 smoke requests"),
        ([(15.0 * turn, at(switches=turn), 0, turn) for turn in range(5)], ""),
        ([(5.0 * turn, at(5.0 * turn), 0, turn) for turn in range(9)], ""),
        ([(5.0 * turn, at(5.0 * turn), 0, turn) for turn in range(10)], "none of the last 9 smoke requests"),
        # Another process under the same pid begins anew.
        ([(0.0, at(), 9, 0), (100.0, at(start=2), 9, 50)], ""),
    ],
)
def test_a_worker_that_hangs_is_told_from_one_that_is_busy_idle_or_new(looks: Any, words: str) -> None:
    found = find_hang(*looks)
    assert words in found
    assert bool(words) == bool(found)


JAVA, LAUNCHER, WORKER, OTHER = (
    Process(pid=pid, start_ticks=1, parent_pid=parent, command=command)
    for pid, parent, command in (
        (6, 5, ("java", JAVA_MAIN)),
        (7, 6, ("python", "-m", LAUNCHER_MODULE, WORKER_SCRIPT)),
        (8, 7, ("python", WORKER_SCRIPT)),
        (9, 1, ("python", WORKER_SCRIPT)),
    )
)
LOOK = ModelLook(planned=1, ready=(8,))
GONE, STOPPED = "is gone (killed?)", "is stopped (SIGSTOP)"


@pytest.mark.parametrize(
    ("processes", "stopped", "look", "launched", "java", "ill", "serving"),
    [
        ((JAVA, LAUNCHER, WORKER), (), LOOK, True, "", {}, 1),
        ((LAUNCHER, WORKER), (), LOOK, True, GONE, {}, 1),
        ((JAVA, LAUNCHER, WORKER), (6,), LOOK, True, STOPPED, {}, 1),
        ((JAVA, LAUNCHER), (), LOOK, True, "", {}, 0),
        ((JAVA, LAUNCHER, WORKER), (8,), LOOK, True, "", {8: "is stopped"}, 0),
        ((JAVA, LAUNCHER, WORKER), (), replace(LOOK, hanging=(8,)), True, "", {8: "hangs"}, 0),
        ((JAVA, WORKER), (), LOOK, True, "", {8: "has lost its launcher"}, 0),
        ((JAVA, OTHER), (), replace(LOOK, ready=(9,)), False, "", {}, 1),
    ],
)
def test_what_is_ill_serves_nobody(
    processes: Any, stopped: Any, look: ModelLook, launched: bool, java: str, ill: Any, serving: int
) -> None:
    activities = {one.pid: at(stopped=one.pid in stopped) for one in processes}
    seen = observe(processes, activities, {}, {"bert": look}, 0.0, launched=launched)
    assert (seen.java, seen.ill, seen.serving) == (java, ill, {"bert": serving})


def make(lack: Lack | None = None, serving: int = 2, **fields: Any) -> Observation:
    """Of two planned workers; what is seen lacks this."""
    problems = (Problem(lack=lack, text=f"a {lack.value}"),) if lack else ()
    looks = {"bert": ModelLook(planned=2, ready=(7, 8), problems=problems)}
    known = {"serving": {"bert": serving}, "anonymous_mib": {7: 1000, 8: 1200}, "looked_at": 1e9, **fields}
    return Observation(looks=looks, **known)


def judge_after(seen: Observation, seconds: float, *, others: bool) -> Verdict:
    """It was seen like that for so long."""
    memory = Memory().after(seen, 0.0).after(seen, seconds)
    return judge(seen, memory, seconds, others=others, memory_mib=8000)


LOST = make(Lack.WORKERS, serving=0)
REPLACED = [
    (make(), True, 10_000.0, ""),
    *((make(serving=0, java=how), False, 0.0, f"TorchServe {how}") for how in (GONE, STOPPED)),
    (LOST, True, 0.0, "bert: no worker is left"),
    (LOST, False, PATIENCE_ALONE_S - 1, ""),  # TorchServe itself needs as long
    (LOST, False, PATIENCE_ALONE_S + 1, "bert: no worker is left"),
    *(
        case
        for lack in (Lack.WRONG_ANSWER, Lack.NO_ANSWER, Lack.HANG)
        for case in (
            (make(lack), True, PATIENCE_SPARE_S - 1, ""),
            (make(lack), True, PATIENCE_SPARE_S + 1, f"bert: a {lack.value}"),
            (make(lack), False, PATIENCE_ALONE_S - 1, ""),
            (make(lack), False, PATIENCE_ALONE_S + 1, f"bert: a {lack.value}"),
        )
    ),
    (make(Lack.WORKERS, serving=1), True, PATIENCE_PARTLY_S - 1, ""),
    (make(Lack.WORKERS, serving=1), True, PATIENCE_PARTLY_S + 1, "bert: a workers"),
    (make(serving=1), True, PATIENCE_PARTLY_S + 1, "fewer workers serve than planned"),
    (make(looked_at=0.0), False, LATEST_LOOK_S - 1, ""),
    (make(looked_at=0.0), False, LATEST_LOOK_S + 1, "nobody has looked at it"),
]


@pytest.mark.parametrize(("seen", "others", "seconds", "why"), REPLACED)
def test_an_instance_is_replaced_where_nothing_else_helps(
    seen: Observation, others: bool, seconds: float, why: str
) -> None:
    verdict = judge_after(seen, seconds, others=others)
    assert verdict.replace.partition(" for ")[0].rstrip(",") == why
    assert verdict.end_workers == {}


@pytest.mark.parametrize(
    ("seen", "ended"),
    [
        (make(ill={7: Ill.STOPPED}, serving=1), {7: (Kind.STOPPED, "is stopped")}),
        (
            make(anonymous_mib={7: 3000, 8: 6000}),
            {8: (Kind.MEMORY, "holds 6000 MiB of 9000, and 8000 are planned")},
        ),
        (make(anonymous_mib={7: 3000, 8: 5000}), {}),
    ],
)
def test_an_ill_worker_and_beyond_the_planned_memory_the_largest_process_are_ended(
    seen: Observation, ended: dict[int, tuple[Kind, str]]
) -> None:
    assert judge_after(seen, 0.0, others=True) == Verdict(end_workers=ended)


def test_what_is_well_in_between_begins_again() -> None:
    wrong, late = make(Lack.WRONG_ANSWER), 2 * PATIENCE_SPARE_S
    memory = Memory().after(wrong, 0.0).after(make(), 1.0).after(wrong, late)
    assert judge(wrong, memory, late, others=True, memory_mib=8000) == Verdict()
