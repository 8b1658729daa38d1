"""`python -m loadtest.soak`: thousands of mixed requests, and whether the workers' memory stays bounded."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.drivers.locust_closed import ClosedLoop, run_closed_loop
from loadtest.errors import LoadTestError
from loadtest.payloads import read_list, write_list, write_texts
from loadtest.photos import write_photos
from loadtest.results import make_results_folder
from loadtest.servers import ROOT, Server, kit_server
from loadtest.texts import read_token_counter, write_mixed_texts
from server.processes import PROC
from server.start import Interrupted, catch_signals

FIRST_PORT = 19180
MODELS = ("resnet50", "bert")
FIRST_REQUESTS = 1_000
REQUESTS = 20_000
LEGS = 4
"""Parts of the rest; memory is shown after each, so that one sees whether it still grows."""
USERS = 64
LIMIT_PERCENT = 5.0
TEXTS = 512
SEED = 7
LONGEST_SECONDS = 3600.0
RESULTS = ROOT / "run" / "soak"


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One worker's resident memory, early and late."""

    model: str
    pid: int
    early_mib: float
    late_mib: float

    @property
    def percent(self) -> float:
        return 100 * (self.late_mib / self.early_mib - 1)

    @property
    def bounded(self) -> bool:
        return self.percent <= LIMIT_PERCENT


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 memory stays within the limit, 1 it does not or nothing could be measured."""
    options = parse_arguments(arguments)
    if options.check:
        return 0
    try:
        with catch_signals():
            growths = soak(options)
    except LoadTestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as signal:
        print("stopped", file=sys.stderr)
        return signal.exit_code
    print(*render_growths(growths, requests=options.requests), sep="\n")
    keep_growths(options.results, growths, requests=options.requests)
    return 0 if all(growth.bounded for growth in growths) else 1


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Both models by default."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"in all ({REQUESTS})")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--store", type=Path, default=ROOT / "model-store", help="folder with the archives")
    parser.add_argument("--port", type=int, default=FIRST_PORT)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to keep results in")
    parser.add_argument("--check", action="store_true", help="look at these values and measure nothing")
    options = parser.parse_args(arguments)
    if options.requests < FIRST_REQUESTS + LEGS:
        parser.error(f"REQUESTS must be at least {FIRST_REQUESTS + LEGS}: got {options.requests}")
    return options


def soak(options: argparse.Namespace) -> list[Growth]:
    """Memory of every worker after the first requests and after all of them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kit-soak-")))
        payloads = write_mixture(folder / "payloads", options.models, options.store)
        print(f"starting the kit with {' and '.join(options.models)} in {options.precision}", flush=True)
        arguments = ["--precision", options.precision, "--model-store", str(options.store.resolve())]
        server = stack.enter_context(
            kit_server(
                "kit", folder / "run", port=options.port, model=" ".join(options.models), arguments=arguments
            )
        )
        memory = []
        for leg, requests in enumerate(cut_into_legs(options.requests)):
            send(server, payloads, requests, folder / "locust", seed=SEED + leg)
            memory.append(read_memory(server, options.models))
            print(f"  all workers: {sum(memory[-1].values()):.0f} MiB", flush=True)
        return compare_memory(memory[0], memory[-1])


def cut_into_legs(requests: int) -> list[int]:
    """The first ones, after which memory is read for the comparison, and the rest in about equal parts."""
    rest = requests - FIRST_REQUESTS
    cuts = [rest * leg // LEGS for leg in range(LEGS + 1)]
    return [FIRST_REQUESTS, *(end - begin for begin, end in itertools.pairwise(cuts))]


def write_mixture(folder: Path, models: list[str], store: Path) -> Path:
    """As many texts as times photographs of all forms; both in random order when sent."""
    folder.mkdir(parents=True)
    payloads = []
    if "bert" in models:
        texts = write_mixed_texts(TEXTS, read_token_counter(store / "bert.mar"), seed=SEED)
        payloads += read_list(write_texts(folder, texts, model="bert"))
    if "resnet50" in models:
        photos = read_list(write_photos(folder, model="resnet50"))
        payloads += photos * max(1, len(payloads) // len(photos))
    return write_list(folder, payloads)


def send(server: Server, payloads: Path, requests: int, folder: Path, *, seed: int) -> None:
    """So many requests, all answered 200."""
    job = ClosedLoop(
        url=server.client.inference_url,
        token=server.token,
        payloads=str(payloads),
        users=USERS,
        seconds=LONGEST_SECONDS,
        most_requests=requests,
        seed=seed,
    )
    result = run_closed_loop(job, folder)
    if result.samples.errors or len(result.samples) != requests:
        raise LoadTestError(
            f"{result.samples.errors} of {len(result.samples)} requests failed, {requests} were asked for"
        )
    print(f"  {requests} requests, {result.requests_per_second:.1f} a second", flush=True)
    shutil.rmtree(folder)


def read_memory(server: Server, models: list[str]) -> dict[tuple[str, int], float]:
    """(model, worker) → resident memory in MiB."""
    return {(model, pid): read_resident_mib(pid) for model in models for pid in server.list_workers(model)}


def read_resident_mib(pid: int, proc: Path = PROC, *, peak: bool = False) -> float:
    """VmRSS of /proc/PID/status, or its highest so far (VmHWM)."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
        line = next(line for line in lines if line.startswith(wanted))
    except (OSError, StopIteration) as problem:
        raise LoadTestError(f"worker {pid} has ended: its memory cannot be read") from problem
    return int(line.split()[1]) / 1024


def compare_memory(
    early: Mapping[tuple[str, int], float], late: Mapping[tuple[str, int], float]
) -> list[Growth]:
    """Per worker; a worker that was started anew in between makes the comparison void."""
    if set(early) != set(late):
        raise LoadTestError(f"workers must stay the same: got {sorted(late)} after {sorted(early)}")
    return [
        Growth(model=model, pid=pid, early_mib=mib, late_mib=late[model, pid])
        for (model, pid), mib in early.items()
    ]


def render_growths(growths: list[Growth], *, requests: int) -> list[str]:
    """One line a worker, the sum, and the verdict."""
    lines = [f"resident memory after {FIRST_REQUESTS} and after {requests} mixed requests:"]
    for one in growths:
        verdict = "within" if one.bounded else "BEYOND"
        lines.append(
            f"  {one.model} worker {one.pid}: {one.early_mib:.0f} → {one.late_mib:.0f} MiB "
            f"({one.percent:+.2f} %), {verdict} {LIMIT_PERCENT:g} %"
        )
    early, late = sum(one.early_mib for one in growths), sum(one.late_mib for one in growths)
    return [*lines, f"  all workers: {early:.0f} → {late:.0f} MiB, ratio {late / early:.4f}"]


def keep_growths(results: Path, growths: list[Growth], *, requests: int) -> None:
    """As JSON, never overwritten."""
    folder = make_results_folder(results)
    kept = {"first": FIRST_REQUESTS, "requests": requests, "workers": [asdict(one) for one in growths]}
    (folder / "soak.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
