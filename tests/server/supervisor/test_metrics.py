"""The metrics page: what is counted, what workers counted, and that nothing falls."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from handlers.shared import metrics as workers
from server.haproxy import Stat
from server.supervisor.metrics import GAUGES, Page, WorkerFiles, list_metrics
from server.supervisor.requests import parse_line
from tests.server.supervisor.test_requests import SECOND, make_line

WORKER = """
import os, sys
from handlers.shared.metrics import BatchMetrics
metrics = BatchMetrics("bert", sys.argv[1])
for waits in ([0.01, 0.02], [0.3]):
    metrics.observe(waits, {"decode": 0.001, "model": 0.05, "encode": 0.001}, tokens=30, computed_tokens=40)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@dataclass
class Stage:
    """A server as far as the page looks at it."""

    plan: object
    run_dir: object
    readiness: object = field(default_factory=lambda: SimpleNamespace(ready=True, models={"bert": (1, 2)}))
    instances: dict = field(default_factory=dict)
    rate: float = 0.0

    @property
    def proxy(self):
        stat = Stat(answered=0, queued=3, in_hand=5, service_ms=0, up=1, asleep={})
        return SimpleNamespace(stats={"bert": stat}, find_rate=lambda _: self.rate)

    def find_verified(self):
        return {"allocator": True, "CPU affinity": False}


@pytest.fixture
def stage(tmp_path):
    model = SimpleNamespace(backend="ipex", precision="int8", batch_size=4, rate=100.0)
    plan = SimpleNamespace(
        slo_p99_ms=200, models={"bert": model}, list_serving=lambda _: ["a1"], count_workers=lambda _: 2,
        instances={"a1": SimpleNamespace(models={"bert": model})},
    )  # fmt: skip
    return Stage(plan=plan, run_dir=SimpleNamespace(metrics=tmp_path))


def sort_labels(labels: dict[str, str]) -> list[str]:
    return [value for name, value in sorted(labels.items(), key=lambda one: (one[0] == "le", one[0]))]


def read(page: Page) -> dict[tuple[str, ...], float]:
    """(Name, values of its labels by their names, `le` last …) → value."""
    families = text_string_to_metric_families(page.render().decode())
    return {(one.name, *sort_labels(one.labels)): one.value for family in families for one in family.samples}


def run_worker(folder) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, workers.FOLDER: str(folder), workers.SLO: "200"}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def test_requests_are_counted_once_and_timed_where_they_were_answered(stage):
    page = Page(stage)
    before = read(page)
    texts = [
        make_line(),
        make_line(**SECOND),
        make_line(times="0/0/300/300"),
        make_line(status=500, ended="----"),
    ]
    page.count(line for text in texts if (line := parse_line(text)))
    after = read(page)

    def grew(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    assert grew("cpukit_requests_total", "200", "bert", "answered") == 2
    assert grew("cpukit_requests_total", "500", "bert", "instance_failed") == 1
    assert grew("cpukit_late_requests_total", "bert") == 1
    assert grew("cpukit_request_seconds_count", "bert", "total") == 2
    assert grew("cpukit_request_seconds_sum", "bert", "queue") == pytest.approx(0.012)
    assert grew("cpukit_request_seconds_sum", "bert", "instance") == pytest.approx(0.018)
    # the limit is an edge of the buckets
    assert grew("cpukit_request_seconds_bucket", "bert", "total", "0.2") == 1


def test_gauges_are_those_of_the_moment(stage):
    page = Page(stage)
    found = read(page)
    assert found["cpukit_workers", "bert", "ready"] == 1
    assert found["cpukit_workers", "bert", "planned"] == 2
    assert found["cpukit_in_flight_requests", "bert"] == 8
    assert found["cpukit_capacity_rate", "bert"] == 100.0
    assert found["cpukit_load", "bert"] == pytest.approx(8 / (100 * 0.2))
    assert found["cpukit_verify", "CPU affinity"] == 0
    stage.rate = 40.0  # what was seen beats the batch profile
    assert read(page)["cpukit_load", "bert"] == pytest.approx(1.0)


def test_what_workers_counted_stays_after_their_end_and_their_files_do_not(stage, tmp_path):
    folder = tmp_path / "200"
    first, second = run_worker(folder), run_worker(folder)
    page = Page(stage)
    found = read(page)
    assert found["cpukit_worker_seconds_count", "bert", "wait"] == 6
    assert found["cpukit_worker_seconds_sum", "bert", "wait"] == pytest.approx(0.66)
    assert found["cpukit_worker_seconds_bucket", "bert", "wait", "0.2"] == 4
    assert found["cpukit_worker_seconds_bucket", "bert", "wait", "+Inf"] == 6
    assert found["cpukit_batch_requests_sum", "bert"] == 6
    assert found["cpukit_packing_efficiency_sum", "bert"] == pytest.approx(4 * 0.75)
    first.kill()
    first.wait()
    assert read(page) == found
    assert [file.name for file in folder.iterdir()] == [f"histogram_{second.pid}.db"]
    second.kill()
    second.wait()
    third = run_worker(folder)
    assert read(page)["cpukit_worker_seconds_count", "bert", "wait"] == 9
    third.kill()
    third.wait()


def test_another_limit_has_other_buckets_and_begins_anew(stage):
    page = Page(stage)
    page.count([parse_line(make_line())])
    stage.plan.slo_p99_ms = 100
    page.follow_plan()
    found = read(page)
    assert found["cpukit_request_seconds_count", "bert", "total"] == 0
    assert ("cpukit_request_seconds_bucket", "bert", "total", "0.1") in found


def test_a_damaged_file_counts_for_nothing(tmp_path):
    (tmp_path / f"histogram_{os.getpid()}.db").write_bytes(b"\xff" * 100)
    (tmp_path / "histogram_1.db").write_bytes(b"")
    assert all(not family.samples for family in WorkerFiles(tmp_path).collect())


def test_without_room_on_the_disk_nothing_is_mapped(tmp_path, monkeypatch):
    def reject(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reject)
    with pytest.raises(OSError, match="No space"):
        workers.BatchMetrics("bert", str(tmp_path))


def test_all_metrics_have_a_help_and_are_in_the_table(stage):
    names = {name for name, *_ in list_metrics()}
    families = [*text_string_to_metric_families(Page(stage).render().decode())]
    assert all(family.documentation for family in families)
    plain = {name.removesuffix("_total") for name in names}
    assert {family.name.removesuffix("_total") for family in families} == plain
    assert {*GAUGES} <= names
    assert all(math.isfinite(edge) for edge in workers.find_buckets(0.2))
