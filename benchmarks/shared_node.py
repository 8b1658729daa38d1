"""Two servers on one machine: with a CPU quota each against with a cpuset each, in turns in the same run.

    python -m benchmarks.shared_node --seconds 30 --turns 6

Four kit servers of ResNet50 FP32 run, each in a control group of its own: two with half of the CPUs each as a
quota, two as a cpuset. A window is a closed loop (`ab`, outside of the groups) at both of a kind at once; the
kinds take turns. Needs root and control groups of version 1, or 2 with cpu and cpuset.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.files import render_id_list
from config.plan import read_plan
from server.throttling import find_loss, parse_stat

ROOT = Path(__file__).resolve().parent.parent
CGROUPS = Path("/sys/fs/cgroup")
MODEL = "resnet50"
QUOTA, CPUSET = "quota", "cpuset"
FAILED = re.compile(r"(Failed requests|Non-2xx responses): +([1-9]\d*)")


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """Its folders, one of each hierarchy."""

    folders: tuple[Path, ...]

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in it."""
        enter = "".join(f"echo 0 > '{folder}/cgroup.procs' && " for folder in self.folders)
        return ["sh", "-c", f'{enter}exec "$@"', "sh", *command]


@contextlib.contextmanager
def control_group(
    name: str, *, quota_cpus: float | None = None, cpus: Sequence[int] = ()
) -> Iterator[ControlGroup]:
    """With a quota or a cpuset; removed when all that ran in it has ended. OSError where none can be made."""
    second = (CGROUPS / "cgroup.controllers").exists()
    files: list[tuple[str, str, str]] = []
    if quota_cpus is not None:  # of a period of 100 ms, the kernel's default
        files.append(("cpu", "cpu.max" if second else "cpu.cfs_quota_us", str(round(quota_cpus * 100_000))))
    if cpus:
        nodes = (CGROUPS / ("cpuset.mems.effective" if second else "cpuset/cpuset.mems")).read_text()
        files += [("cpuset", "cpuset.mems", nodes), ("cpuset", "cpuset.cpus", render_id_list(cpus))]
    if second:
        (CGROUPS / "cgroup.subtree_control").write_text("+cpu +cpuset")
    places = [(CGROUPS if second else CGROUPS / controller) / name for controller, _, _ in files]
    folders = tuple(dict.fromkeys(places))
    try:
        for folder, (_, file, value) in zip(places, files, strict=True):
            folder.mkdir(exist_ok=True)
            (folder / file).write_text(value)
        yield ControlGroup(folders=folders)
    finally:
        for folder in folders:
            for _ in range(50):  # the kernel counts ended processes a moment longer
                with contextlib.suppress(OSError):
                    folder.rmdir()
                time.sleep(0.1 * folder.exists())


@dataclass(frozen=True, kw_only=True)
class Server:
    """One kit server in a control group."""

    group: ControlGroup
    run_dir: Path
    port: int

    def call(self, *arguments: str) -> None:
        command = [sys.executable, "-m", *arguments, "--run-dir", str(self.run_dir)]
        done = subprocess.run(self.group.wrap(command), cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")

    def start_load(self, body: Path, seconds: int, users: int) -> subprocess.Popen[str]:
        token = (self.run_dir / "token").read_text().strip()
        url = f"http://127.0.0.1:{self.port}/predictions/{MODEL}"
        limits = ["-t", str(seconds), "-n", "1000000", "-c", str(users), "-s", "120"]
        head = ["-T", "application/octet-stream", "-H", f"Authorization: Bearer {token}"]
        return subprocess.Popen(
            ["ab", "-q", "-k", "-l", *limits, *head, "-p", str(body), url], stdout=subprocess.PIPE, text=True
        )


def start(kind: str, group: ControlGroup, folder: Path, port: int, store: Path) -> Server:
    """Planned inside of its group, and ready."""
    one = Server(group=group, run_dir=folder / str(port), port=port)
    model = ["--models", MODEL, "--batch", "8", "--model-store", str(store)]
    one.call("config", *model, "--port", str(port))
    one.call("server", "start")
    plan = read_plan(one.run_dir)
    pinned = all(read_plan(one.run_dir / "instances" / name).pinned for name in plan.instances)
    print(f"{kind:<6} {port}: workers on {plan.layout.worker_cpus.value}, pinned: {pinned}", flush=True)
    return one


def measure(servers: Sequence[Server], body: Path, seconds: int, users: int) -> list[float]:
    """Requests a second of each, all loaded at once; anything but answers of 200 ends the run."""
    loads = [one.start_load(body, seconds, users) for one in servers]
    texts = [load.communicate()[0] for load in loads]
    found = [re.search(r"Requests per second: +([\d.]+)", text) for text in texts]
    if not all(found) or FAILED.search("".join(texts)):
        raise SystemExit(f"ab failed:\n{''.join(texts)}")
    return [float(one[1]) for one in found if one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=30, help="of a window")
    parser.add_argument("--turns", type=int, default=8, help="pairs of windows")
    parser.add_argument("--users", type=int, default=8, help="of each server's closed loop")
    parser.add_argument("--port", type=int, default=18200, help="of the first server; the others 100 apart")
    parser.add_argument("--store", type=Path, default=ROOT / "model-store", help=f"with {MODEL}.mar")
    asked = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2
    limits = [(QUOTA, half, []), (QUOTA, half, []), (CPUSET, None, cpus[:half]), (CPUSET, None, cpus[-half:])]
    servers: dict[str, list[Server]] = {QUOTA: [], CPUSET: []}
    sums: dict[str, list[float]] = {QUOTA: [], CPUSET: []}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shared-node-")))
        body = folder / "canary.jpg"
        body.write_bytes(zipfile.ZipFile(asked.store / f"{MODEL}.mar").read(body.name))
        for number, (kind, quota, own) in enumerate(limits):
            made = control_group(f"shared-node-{os.getpid()}-{number}", quota_cpus=quota, cpus=own)
            group, port = stack.enter_context(made), asked.port + 100 * number
            stack.callback(Server(group=group, run_dir=folder / str(port), port=port).call, "server", "stop")
            servers[kind].append(start(kind, group, folder, port, asked.store))
        files = [folder / "cpu.stat" for one in servers[QUOTA] for folder in one.group.folders]
        before: list[dict[str, float]] = []
        for turn in range(asked.turns + 1):
            before = before if turn > 1 else [parse_stat(file.read_text()) for file in files]
            for kind in [QUOTA, CPUSET][:: 1 if turn % 2 else -1]:
                rates = measure(servers[kind], body, asked.seconds, asked.users)
                sums[kind] += [sum(rates)] if turn else []
                each = " + ".join(f"{rate:.2f}" for rate in rates)
                print(f"{turn or 'warm':<5}{kind:<7}{each} = {sum(rates):.2f}/s", flush=True)
        for file, first in zip(files, before, strict=True):
            loss = find_loss({"": first}, {"": parse_stat(file.read_text())})
            print(f"{file.parent.name}: throttled {loss.times} times, {loss.ms_per_period:.1f} ms a period")
        for one in [*servers[QUOTA], *servers[CPUSET]]:
            one.call("server", "verify")
    ratios = [a / b for a, b in zip(sums[QUOTA], sums[CPUSET], strict=True)]
    for kind, rates in (*sums.items(), ("ratio", ratios)):
        print(f"{kind:<7}{statistics.mean(rates):.3f} ({min(rates):.3f}-{max(rates):.3f})")
    print("verify: green in all four")


if __name__ == "__main__":
    main()
