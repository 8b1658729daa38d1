"""The simulated server against closed forms, and against what TorchServe does by its own source."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadtest.drivers.schedule import plan_arrivals
from loadtest.simulation.server import ServerPlan, simulate
from loadtest.simulation.service import Overhead, ServiceTimes

ENDLESS = 10**9
SINGLE = ServerPlan(workers=1, batch=1, delay_s=0.001, queue=ENDLESS)


def times(**seconds: float) -> ServiceTimes:
    """`b4=0.05`: batches of four always take so long."""
    return ServiceTimes(samples=tuple((int(name[1:]), (one,)) for name, one in seconds.items()))


def exponential(mean: float) -> ServiceTimes:
    """By its quantiles, finely."""
    shares = (np.arange(20_000) + 0.5) / 20_000
    return ServiceTimes(samples=((1, tuple((-mean * np.log(1 - shares)).tolist())),))


def arrive(rate: float, requests: int, seed: int = 3) -> np.ndarray:
    return plan_arrivals("poisson", rate=rate, begin_s=0, end_s=2 * requests / rate, seed=seed)[:requests]


def wait_of(plan: ServerPlan, service: ServiceTimes, rate: float, requests: int = 200_000) -> float:
    """Mean time in the system, without the first tenth."""
    found = simulate(plan, service, arrive(rate, requests))
    return float(found.latency[requests // 10 :].mean())


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8, 0.9])
def test_one_worker_with_constant_times_waits_as_pollaczek_and_khinchine_say(load):
    """M/D/1: the mean wait is load / (2 (1 − load)) service times."""
    expected = 0.01 * (1 + load / (2 * (1 - load)))
    assert wait_of(SINGLE, times(b1=0.01), load / 0.01) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("workers", "load"), [(1, 0.7), (2, 0.7), (2, 0.85), (8, 0.8)])
def test_several_workers_with_exponential_times_wait_as_erlang_says(workers, load):
    """M/M/c: the chance to wait is Erlang's C, and who waits does so for 1 / (c μ − λ)."""
    mean = 0.01
    offered, rate = workers * load, workers * load / mean
    blocked = offered**workers / math.factorial(workers) / (1 - load)
    chance = blocked / (sum(offered**n / math.factorial(n) for n in range(workers)) + blocked)
    expected = mean + chance / (workers / mean - rate)
    plan = replace(SINGLE, workers=workers)
    # The table's quantiles cut the exponential's far tail off, and with it some of the variance.
    assert wait_of(plan, exponential(mean), rate) == pytest.approx(expected, rel=0.05)


def serve(plan: ServerPlan, service: ServiceTimes, *moments: float) -> list[float]:
    return simulate(plan, service, np.array(moments)).ended.tolist()


FOUR = times(b1=0.1, b2=0.12, b4=0.16)


@pytest.mark.parametrize(
    ("batch", "delay_s", "workers", "moments", "ended"),
    [
        # A lone request waits for its batch as long as the delay, then takes its own time.
        (4, 0.02, 1, [0.0], [0.12]),
        # A full batch waits for nobody.
        (4, 0.02, 1, [0.0, 0.0, 0.0, 0.0], [0.16] * 4),
        # Who comes within the delay is in the batch, who comes after it is in the next one.
        (4, 0.02, 1, [0.0, 0.01, 0.03], [0.14, 0.14, 0.14 + 0.02 + 0.1]),
        # The batch that fills meanwhile starts at once.
        (2, 0.5, 1, [0.0, 0.05], [0.17, 0.17]),
        # Batch 1 never waits.
        (1, 0.5, 1, [0.0, 0.0], [0.1, 0.2]),
        # The second worker cannot begin while the first one holds the lock and gathers.
        (2, 0.1, 2, [0.0, 0.11], [0.2, 0.31]),
        (4, 0.1, 2, [0.0, 0.05, 0.101], [0.22, 0.22, 0.301]),
        # What came while all were busy is taken at once.
        (2, 0.02, 1, [0.0, 0.0, 0.05, 0.06], [0.12, 0.12, 0.24, 0.24]),
    ],
)
def test_batches_are_gathered_as_torchserve_does(batch, delay_s, workers, moments, ended):
    plan = ServerPlan(workers=workers, batch=batch, delay_s=delay_s)
    assert serve(plan, FOUR, *moments) == pytest.approx(ended)


def test_a_full_queue_refuses_and_no_one_else_suffers():
    plan = ServerPlan(workers=1, batch=1, delay_s=0.001, queue=2)
    assert serve(plan, times(b1=1.0), 0, 0.1, 0.2, 0.3, 1.5) == pytest.approx([1, 2, 3, math.inf, 4])


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("load", [0.5, 1.3])
def test_every_request_is_answered_or_refused_and_none_before_its_time(batch, instances, load):
    service = times(b1=0.02, b8=0.1)
    plan = ServerPlan(
        workers=2, batch=batch, delay_s=0.005, queue=20, instances=instances,
        in_flight=2 * batch if instances > 1 else 0, deadline_s=0.5,
    )  # fmt: skip
    rate = load * 2 * batch / service.mean_s(batch)
    found = simulate(plan, service, arrive(rate, 3000))
    answered = found.ended[np.isfinite(found.ended)]
    assert len(answered) + found.refused == 3000
    assert (found.latency >= 0.02 - 1e-9).all()
    assert (found.refused > 0) == (load > 1)


def test_more_workers_and_shorter_times_never_make_it_slower():
    medians = [
        np.median(simulate(replace(SINGLE, workers=workers, batch=4), FOUR, arrive(20, 4000)).latency)
        for workers in (1, 2, 4)
    ]
    assert medians == sorted(medians, reverse=True)
    slow, fast = (simulate(replace(SINGLE, batch=4), one, arrive(20, 4000)) for one in (FOUR, times(b4=0.1)))
    assert slow.latency.mean() > fast.latency.mean()


def test_a_door_hands_over_no_more_than_it_may_and_keeps_the_order():
    """Two instances of one worker: the third request waits in the door, the fourth for too long."""
    plan = ServerPlan(workers=2, batch=1, delay_s=0.001, instances=2, in_flight=1, deadline_s=0.95)
    assert serve(plan, times(b1=1.0), 0, 0.1, 0.2, 0.05 + 0.2) == pytest.approx([1, 1.1, 2, 2.1])
    late = serve(replace(plan, deadline_s=0.82), times(b1=1.0), 0, 0.1, 0.2, 0.25)
    assert late == pytest.approx([1, 1.1, 2, math.inf])


def test_two_instances_with_a_lock_each_do_not_wait_for_one_anothers_batches():
    """One lock for both workers: the second request waits until the first one's batch is gathered."""
    one = ServerPlan(workers=2, batch=4, delay_s=0.1)
    two = replace(one, instances=2, in_flight=5)
    assert serve(one, FOUR, 0, 0.01) == pytest.approx([0.22, 0.22])
    assert serve(two, FOUR, 0, 0.01) == pytest.approx([0.2, 0.21])


def test_the_overhead_keeps_workers_busy_but_for_the_part_outside():
    overhead = Overhead(pace=1.5, per_batch_s=0.03, per_request_s=0.002, outside_s=0.5)
    service = replace(FOUR, overhead=overhead)
    plan = ServerPlan(workers=1, batch=4, delay_s=0.001)
    first, second = 1.5 * 0.16 + 0.03 + 4 * 0.002, 1.5 * 0.1 + 0.03 + 0.002
    ended = serve(plan, service, 0, 0, 0, 0, 0)
    assert ended == pytest.approx([first + 0.5] * 4 + [first + 0.001 + second + 0.5])
    own = simulate(plan, service, np.zeros(5)).worker_s
    assert own == pytest.approx(1.5 * (0.16 + 0.1))


def test_between_measured_batches_times_are_interpolated_and_below_extended():
    service = times(b2=0.12, b4=0.16)
    assert service.mean_s(3) == pytest.approx(0.14)
    assert service.mean_s(1) == pytest.approx(0.10)
