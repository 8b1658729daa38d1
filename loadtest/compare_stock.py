"""`python -m loadtest.compare_stock`: ResNet-50 over REST, the kit against plain TorchServe in one run.

All servers are up, those not measured are halted; sides take turns; medians over the repeats are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

from loadtest.ab import run_ab
from loadtest.errors import LoadTestError
from loadtest.photos import write_photo
from loadtest.servers import ROOT, Server, kit_server, stock_server

FIRST_PORT = 19080
PORT_STEP = 10
SECONDS = 15
"""Aimed at for each measurement; the warm-up run tells how many requests that takes."""
TIMEOUT_S = 120


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 measured and all targets met, 1 not."""
    options = _parse_arguments(arguments)
    try:
        rates = measure(options)
    except LoadTestError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return report(rates, concurrency=options.concurrency)


TARGETS = {"kit fp32": 2.5, "kit bf16": 5.0}
"""Least ratios to the stock server."""


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare_stock", description=__doc__)
    parser.add_argument("--concurrency", type=int, default=32, help="connections of ab, on all sides")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", type=Path, default=ROOT / "model-store", help="folder with resnet50.mar")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Requests per second of each side, one figure a repeat."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kit-bench-")))
        photo = write_photo(folder / "photo.jpg")
        servers = _start_all(stack, folder, options.store)
        counts = {server.name: _count(server, photo, options.concurrency) for server in servers}
        rates: dict[str, list[float]] = {server.name: [] for server in servers}
        for repeat in range(options.repeats):
            for server in servers:
                rate = _measure_one(server, photo, counts[server.name], options.concurrency)
                rates[server.name].append(rate)
                print(f"  repeat {repeat + 1}: {server.name:<17} {rate:7.2f} req/s", flush=True)
        return rates


def _start_all(stack: contextlib.ExitStack, folder: Path, store: Path) -> list[Server]:
    servers = [
        stack.enter_context(stock_server(folder / "stock", port=FIRST_PORT, archive=store / "resnet50.mar"))
    ]
    servers[0].halt()
    for number, precision in enumerate(("fp32", "bf16"), start=1):
        server = stack.enter_context(
            kit_server(
                f"kit {precision}",
                folder / precision,
                port=FIRST_PORT + number * PORT_STEP,
                model="resnet50",
                arguments=["--precision", precision, "--model-store", str(store)],
            )
        )
        server.halt()
        servers.append(server)
    return servers


def _count(server: Server, photo: Path, concurrency: int) -> int:
    """Warm up, and find how many requests fill a measurement."""
    rate = _measure_one(server, photo, 4 * concurrency, concurrency)
    return max(4 * concurrency, round(rate * SECONDS))


def _measure_one(server: Server, photo: Path, requests: int, concurrency: int) -> float:
    server.resume()
    try:
        result = run_ab(
            server.url,
            photo,
            "image/jpeg",
            token=server.token,
            requests=requests,
            concurrency=concurrency,
            timeout_s=TIMEOUT_S,
        )
    finally:
        server.halt()
    if not result.clean:
        raise LoadTestError(
            f"{server.name}: {result.failed} failed, {result.non_2xx} not 2xx; no figure is given"
        )
    return result.requests_per_second


def report(rates: dict[str, list[float]], *, concurrency: int) -> int:
    """Print medians, spread and ratios; 1 when a target is missed."""
    print(f"\nResNet-50, one 500×375 JPEG a request, closed loop, concurrency {concurrency}, ab")
    base = statistics.median(rates["stock TorchServe"])
    missed = 0
    for name, values in rates.items():
        median = statistics.median(values)
        ratio, target = median / base, TARGETS.get(name)
        goal = f"  target ≥ {target}× {'met' if ratio >= target else 'MISSED'}" if target else ""
        missed += bool(target and ratio < target)
        print(f"{name:<17} {median:7.2f} req/s  ({min(values):.2f}-{max(values):.2f})  {ratio:5.2f}×{goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
