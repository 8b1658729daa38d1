"""What an operator sees of a live server: metrics, logs, and a real Prometheus with its alerts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from deploy.observability import PANELS, render_rules
from server.processes import send_signal
from server.rundir import RunDir
from tests.end_to_end.kit import ROOT, Kit, find_port, running
from tests.observers import find_program

TEXT, IMAGE = "tiny_text", "tiny_image"
BODY = b'{"text": "a fine day"}'
JSON = "application/json"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PLANNED = f"{IMAGE} {TEXT}"
SETTINGS: dict[str, Any] = {"INSTANCES": 2, "LOG": "json", "SLO_P99_MS": 500}
"""Logs in JSON, and a limit that one core keeps."""
SCALE = 60.0
"""Windows of the rules are so much shorter: 5 minutes become 5 seconds."""
FIRED_S, HEALTHY_S = 90.0, 15.0


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, tiny_store: Path) -> Iterator[Kit]:
    folder = tmp_path_factory.mktemp("observe")
    store = shutil.copytree(tiny_store, folder / "store")  # a test damages an archive
    kit = Kit(run_dir=folder / "run", store=store, port=find_port())
    kit.plan(PLANNED, **SETTINGS)
    with running(kit) as started:
        assert started.returncode == 0, started.stdout + started.stderr
        yield kit


Values = dict[tuple[str, ...], float]


def scrape(kit: Kit, path: str = "/metrics") -> str:
    time.sleep(1.2)  # lines of requests are read twice a second
    with urllib.request.urlopen(f"http://127.0.0.1:{kit.port + 2}{path}", timeout=10) as answer:
        return answer.read().decode()


def sort_labels(labels: dict[str, str]) -> list[str]:
    return [value for name, value in sorted(labels.items(), key=lambda one: (one[0] == "le", one[0]))]


def read_values(kit: Kit) -> Values:
    """(Name, values of its labels by their names, `le` last …) → value."""
    families = text_string_to_metric_families(scrape(kit))
    return {(one.name, *sort_labels(one.labels)): one.value for family in families for one in family.samples}


def find_growth(before: Values, after: Values, name: str) -> dict[tuple[str, ...], float]:
    """Of the series of one metric, those that grew."""
    return {
        key[1:]: after[key] - before.get(key, 0.0)
        for key in after
        if key[0] == name and after[key] != before.get(key, 0.0)
    }


def test_each_response_is_counted_by_code_and_reason(observed):
    before = read_values(observed)
    asked = [
        *[observed.predict(TEXT, BODY, JSON) for _ in range(20)],
        observed.predict(TEXT, b'{"wrong": 1}', JSON),
        observed.request("predictions/nothing", BODY),
        observed.request(f"predictions/{TEXT}", BODY, content_type=JSON, token="wrong"),
        observed.request(f"predictions/{TEXT}", BODY, content_type=JSON, headers={"X-Deadline-Ms": "0"}),
    ]
    after = read_values(observed)
    grown = find_growth(before, after, "cpukit_requests_total")
    codes = Counter[str]()
    for (code, _, _), count in grown.items():
        codes[code] += int(count)
    assert codes == Counter(str(one.status) for one in asked)
    assert grown["200", TEXT, "answered"] == 20
    assert grown["400", TEXT, "bad_request"] == 2
    assert grown["401", "", "token"] == 1
    assert grown["404", "", "bad_request"] == 1


def test_the_stages_add_up_to_the_total(observed):
    before = read_values(observed)
    for _ in range(200):
        assert observed.predict(TEXT, BODY, JSON).status == 200
    after = read_values(observed)
    sums = {key[1]: value for key, value in find_growth(before, after, "cpukit_request_seconds_sum").items()}
    counts = find_growth(before, after, "cpukit_request_seconds_count")
    assert {*counts.values()} == {200.0}
    parts = sums.get("queue", 0.0) + sums["instance"]
    # HAProxy counts whole milliseconds, and the way through its first hop takes one.
    assert parts == pytest.approx(sums["total"], rel=0.03, abs=200 * 0.002)
    worker = {key[1]: value for key, value in find_growth(before, after, "cpukit_worker_seconds_sum").items()}
    assert 0 < sum(worker.values()) <= sums["total"] * 1.03 + 0.1
    assert find_growth(before, after, "cpukit_batch_requests_sum")[(TEXT,)] == 200


def test_counters_never_fall(observed):
    for _ in range(10):
        observed.predict(TEXT, BODY, JSON)
    before = read_values(observed)
    worker = observed.find("worker", "a1")[0]
    send_signal(worker, signal.SIGKILL)
    observed.wait_until_good()
    during = read_values(observed)
    assert find_growth(before, during, "cpukit_restarts_total")["ended", "worker"] >= 1
    done = observed.call("server", "reload", "--built", *observed.list_settings(
        PLANNED, **SETTINGS, DELAY_MS=2))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    after = read_values(observed)
    assert after["cpukit_reloads_total", "done"] == 1
    counters = [key for key in before if key[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    assert [key for key in counters if not before[key] <= during[key] <= after.get(key, -1.0)] == []
    assert len([*RunDir.at(observed.run_dir).metrics.rglob("*.db")]) == len(observed.find("worker"))


def test_a_failure_can_be_followed_by_its_trace(observed):
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    observed.request(f"predictions/{TEXT}", b'{"wrong": 1}', content_type=JSON, headers=headers)
    scrape(observed)
    entries = [json.loads(line) for line in RunDir.at(observed.run_dir).request_log.read_text().splitlines()]
    found = [one for one in entries if one["trace_id"] == TRACE]
    assert [(one["model"], one["status"], one["reason"]) for one in found] == [(TEXT, 400, "bad_request")]
    assert "text" in found[0]["message"]
    assert found[0]["instance_ms"] is not None


def test_every_line_of_the_logs_is_an_entry(observed):
    run = RunDir.at(observed.run_dir)
    logs = [run.supervisor_log, run.request_log]
    for instance in run.list_instances():
        logs += [instance.server_log, instance.model_log]
    for log in filter(Path.exists, logs):
        lines = log.read_text().splitlines()
        assert lines, log
        for entry in map(json.loads, lines):
            assert {"time", "level", "source", "message"} <= entry.keys(), log


def test_what_verify_finds_is_on_the_page(observed):
    assert observed.verify()[0] == 0
    rows = {key[1]: value for key, value in read_values(observed).items() if key[0] == "cpukit_verify"}
    assert len(rows) > 40
    assert {*rows.values()} == {1.0}


def find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A real one that scrapes the kit each second, with an Alertmanager."""

    url: str
    alertmanager: str

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        query = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def list_alerts(self) -> set[tuple[str, str]]:
        """That Alertmanager has now; of one that several models have, the first."""
        with urllib.request.urlopen(f"{self.alertmanager}/api/v2/alerts?active=true", timeout=10) as answer:
            found: dict[str, str] = {}
            for one in json.load(answer):
                name = one["labels"]["alertname"]
                found[name] = min(found.get(name, "~"), one["startsAt"])
            return {*found.items()}


@contextlib.contextmanager
def run_program(command: list[str], log: Path, ready: str) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: is_up(ready), 60, log.read_text)
        yield
    finally:
        process.terminate()
        process.wait(20)


def is_up(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status == 200
    return False


def wait_for(check: Callable[[], Any], seconds: float, why: Callable[[], object]) -> None:
    ends = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < ends, why()
        time.sleep(0.3)


@pytest.fixture(scope="module")
def prometheus(observed: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    port, alert_port = find_free_port(), find_free_port()
    url, alertmanager = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{alert_port}"
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for one in config["scrape_configs"]:
        one["static_configs"] = [{"targets": [f"127.0.0.1:{observed.port + 2}"]}]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alert_port}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text(yaml.safe_dump(render_rules(SCALE)))
    routes = {"route": {"receiver": "none", "group_wait": "1s"}, "receivers": [{"name": "none"}]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    alerts = [
        find_program("prometheus-alertmanager"), f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{alert_port}",
        "--cluster.listen-address=",
    ]  # fmt: skip
    server = [
        find_program("prometheus"), f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (
        run_program(alerts, folder / "alertmanager.log", f"{alertmanager}/-/ready"),
        run_program(server, folder / "prometheus.log", f"{url}/-/ready"),
    ):
        yield Prometheus(url=url, alertmanager=alertmanager)


def test_prometheus_takes_page_and_rules(observed, tmp_path):
    promtool = find_program("promtool")
    checked = subprocess.run([promtool, "check", "metrics"], input=scrape(observed), text=True,
                             capture_output=True, check=False)  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = ROOT / "deploy/prometheus/rules.yml"
    assert subprocess.run([promtool, "check", "rules", rules], check=False).returncode == 0
    assert "haproxy_process_dropped_logs_total 0" in scrape(observed, "/metrics/proxy")


@pytest.fixture
def seen(prometheus: Prometheus) -> Iterator[set[tuple[str, str]]]:
    """Each alert that fires meanwhile, with when it began: one that ends and fires again is there twice."""
    found: set[tuple[str, str]] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.3):
            found.update(prometheus.list_alerts())

    wait_for(lambda: not prometheus.list_alerts(), FIRED_S, prometheus.list_alerts)
    thread = threading.Thread(target=look)
    thread.start()
    yield found
    done.set()
    thread.join()


@contextlib.contextmanager
def asking(kit: Kit, clients: int = 1, **headers: str) -> Iterator[None]:
    """In closed loops meanwhile, to both models."""
    done = threading.Event()
    image = make_image()

    def ask() -> None:
        while not done.wait(0.02):
            kit.request(f"predictions/{TEXT}", BODY, content_type=JSON, headers=headers)
            kit.request(f"predictions/{IMAGE}", image, headers=headers)

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(ask)
        try:
            yield
        finally:
            done.set()


def make_image() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(buffer, "PNG")
    return buffer.getvalue()


def test_every_expression_gives_a_series_and_a_healthy_server_no_alert(observed, prometheus, seen):
    """One panel shows rejections and failures alone: where there are none it is empty, so one is made."""
    observed.predict(TEXT, b'{"wrong": 1}', JSON)
    with asking(observed):
        time.sleep(HEALTHY_S)
        lines = [(title, expr) for title, _, lines in PANELS for _, expr in lines]
        assert [one for one in lines if not prometheus.ask(one[1])] == []
        for rule in render_rules(SCALE)["groups"][0]["rules"]:
            if "record" in rule:
                assert prometheus.ask(rule["record"]), rule
    assert seen == set()


def expect(seen: set[tuple[str, str]], *names: str, also: Collection[str] = ()) -> None:
    """Each of these fires once, and else only `also`."""
    wait_for(lambda: {*names} <= {name for name, _ in seen}, FIRED_S, lambda: (names, seen))
    assert {name for name, _ in seen} - {*names, *also} == set()
    counts = Counter(name for name, _ in seen)
    assert {name: counts[name] for name in names} == dict.fromkeys(names, 1)


BURN = ("CpuKitBurnFast", "CpuKitBurnSlow")


def test_workers_that_are_killed(observed, seen):
    with asking(observed):
        for worker in observed.find("worker"):
            send_signal(worker, signal.SIGKILL)
        expect(seen, "CpuKitNotReady", "CpuKitRestartLoop", also=("CpuKitWorkersMissing", *BURN))
    observed.wait_until_good()


def test_overload(observed, seen):
    """Some can wait, so that there is a queue; what cannot is rejected at once."""
    with asking(observed, 40), asking(observed, 8, **{"X-Deadline-Ms": "25"}):
        expect(seen, "CpuKitRejecting", also=BURN)


def test_a_reload_of_a_damaged_archive(observed, seen):
    archive = observed.store / f"{TEXT}.mar"
    good = archive.read_bytes()
    archive.write_bytes(good[: len(good) // 2] + b"\xff" + good[len(good) // 2 + 1 :])
    try:
        done = observed.call("server", "reload", "--built", *observed.list_settings(PLANNED, **SETTINGS))
    finally:
        archive.write_bytes(good)
    assert (done.returncode, "the server is what it was" in done.stdout) == (1, True)
    expect(seen, "CpuKitReloadFailed")


def test_a_supervisor_that_is_stopped(observed, seen):
    supervisor = observed.find("supervisor")[0]
    send_signal(supervisor, signal.SIGSTOP)
    try:
        expect(seen, "CpuKitAbsent")
    finally:
        send_signal(supervisor, signal.SIGCONT)


@pytest.fixture
def quota(observed: Kit) -> Iterator[None]:
    """All of the server has a tenth of a core."""
    old = Path("/sys/fs/cgroup/cpu")
    root, name, text = (
        (old, "cpu.cfs_quota_us", "10000") if old.is_dir() else (old.parent, "cpu.max", "10000 100000")
    )
    group, roles = root / f"kit-{os.getpid()}", ("supervisor", "HAProxy", "TorchServe", "launcher", "worker")
    pids = [process.pid for role in roles for process in observed.find(role)]
    before = Path(f"/proc/{pids[0]}/cgroup").read_text()
    groups = [line.split(":", 2) for line in before.splitlines()]
    own = next(path for _, names, path in groups if {*names.split(",")} & {"cpu", ""})
    try:
        group.mkdir()
        (group / name).write_text(text)
    except OSError as problem:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group with a quota can be made: {problem}")
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in group.joinpath("cgroup.procs").read_text().split():
            (root / own.lstrip("/") / "cgroup.procs").write_text(pid)
        group.rmdir()


def test_a_quota_that_is_used_up(observed, quota, seen):
    with asking(observed):
        expect(seen, "CpuKitThrottled", also=("CpuKitRejecting", *BURN))
