"""`python -m loadtest`: run, ui, peak, compare, gate and report; the Makefile's loadtest targets."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from config.errors import ConfigError
from config.terminal import print_in_any_locale
from loadtest.compare import compare_results, render_verdict
from loadtest.drivers.generator import locust_command, locust_environment
from loadtest.drivers.job import make_job, write_job
from loadtest.drivers.remote import work
from loadtest.errors import LoadTestError
from loadtest.gate import DEFAULT_BOUND, DEFAULT_PAIRS, run_gate
from loadtest.kept import list_results
from loadtest.ladder.report import list_extras
from loadtest.pages import write_report
from loadtest.payload_sets import make_payloads
from loadtest.peak import run_peak
from loadtest.run import find_level, run_scenario
from loadtest.scenario import Scenario
from loadtest.session import add_options, choose_scenarios, find_results, open_session
from server.errors import ServerError
from server.start import Interrupted, catch_signals

WEB_PORT = 8089
OVERHEAD_S = 6
"""Of each repeat: Locust's start and end, the load before and after the window."""
TOKEN_SECONDS = 3000
"""A page stays open for a while; TorchServe's tokens live for an hour."""


def main(arguments: list[str] | None = None) -> int:
    """0 good; 1 invalid, a regression or a failure; 2 wrong usage."""
    print_in_any_locale()
    options = _make_parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = _COMMANDS[options.command]
    try:
        with catch_signals():  # so that a generator that is under way is ended with us
            return command(options)
    except (LoadTestError, ServerError, ConfigError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except Interrupted as signalled:
        print(f"\ninterrupted by {signalled}; nothing of this run is kept", file=sys.stderr)
        return signalled.exit_code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _HELP.items():
        command = commands.add_parser(name, help=text, description=text)
        add_options(command)
        for option, help_text in _OWN_OPTIONS.get(name, {}).items():
            command.add_argument(option, default="", help=help_text)
        if name == "report":
            command.add_argument("folders", nargs="*", type=Path, help="results (default: the latest)")
    return parser


_HELP = {
    "run": "run scenarios, keep the results, write the report",
    "ui": "one scenario with Locust's own web page",
    "peak": "search the highest open-loop rate whose p99 keeps a limit",
    "compare": "two results side by side; exit code 1 on a regression",
    "gate": "two running servers in turns; exit code 1 on a regression",
    "report": "write the report of results again",
    "worker": "generate load for `PROCESSES=remote:N` of another machine",
}
_BOUND = {"--a": "the base", "--b": "the candidate", "--bound": "a loss beyond this share is a regression"}
_OWN_OPTIONS = {
    "peak": {"--slo-p99-ms": "the limit, in milliseconds"},
    "compare": _BOUND,
    "gate": {**_BOUND, "--pairs": f"runs of each side (default {DEFAULT_PAIRS})"},
}


def _say(line: str) -> None:
    print(line, flush=True)


def _run(options: argparse.Namespace) -> int:
    session = open_session(options, _say)
    scenarios = choose_scenarios(options, session.endpoint, _say)
    minutes = sum(_estimate(one) for one in scenarios) / 60
    _say(f"about {minutes:.0f} min: {', '.join(one.name for one in scenarios)}")
    kept = []
    for scenario in scenarios:
        _say(f"{scenario.name}:")
        kept.append(run_scenario(scenario, session))
    return _report([folder for folder, _ in kept], session.results)


def _estimate(scenario: Scenario) -> float:
    """Seconds, without what is computed once only."""
    probe = 15 if scenario.is_open else 0
    each = scenario.warm_up_s + scenario.duration_s + OVERHEAD_S
    return probe + 10 + each * scenario.repeats * len(scenario.steps)


def _report(folders: list[Path], results: Path) -> int:
    report = write_report(folders, results, list_extras(results))
    _say("")
    _say(report.text)
    _say(f"\nreport: {report.folder}/report.html")
    return 0 if report.valid else 1


def _report_again(options: argparse.Namespace) -> int:
    results = find_results(options)
    folders = options.folders or list_results(results)[-1:]
    if not folders:
        raise LoadTestError(f"no result in {results}; run `make loadtest` first")
    return _report(folders, results)


def _ui(options: argparse.Namespace) -> int:
    session = open_session(options, _say)
    scenario = choose_scenarios(options, session.endpoint, _say)[0]
    payloads = make_payloads(scenario.payloads)
    level = find_level(scenario.steps[0], scenario, session, payloads)
    token = session.endpoint.token(TOKEN_SECONDS)
    job = make_job(scenario, level=level, repeat=0, url=session.endpoint.url, token=token, payloads=payloads)
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        folder = write_job(job, payloads, Path(name))
        _say(
            f"{scenario.name}: http://127.0.0.1:{WEB_PORT} (Ctrl-C ends it; what the page shows is not kept)"
        )
        command = [*locust_command(session.crew), "--web-host", "127.0.0.1", "--web-port", str(WEB_PORT)]
        return subprocess.run(command, env=locust_environment(folder, session.crew), check=False).returncode


def _peak(options: argparse.Namespace) -> int:
    limit = _parse_number("SLO_P99_MS", options.slo_p99_ms)
    session = open_session(options, _say)
    scenarios = [one for one in choose_scenarios(options, session.endpoint, _say) if one.is_open]
    folders = [run_peak(one, session, limit_ms=limit) for one in scenarios]
    return _report(folders, session.results)


def _compare(options: argparse.Namespace) -> int:
    a, b = _need("A", options.a), _need("B", options.b)
    bound = _parse_number("BOUND", options.bound or str(DEFAULT_BOUND))
    verdicts = compare_results(Path(a), Path(b), bound=bound)
    for verdict in verdicts:
        _say(render_verdict(verdict))
    return 1 if any(one.regression for one in verdicts) else 0


def _gate(options: argparse.Namespace) -> int:
    a, b = _need("A", options.a), _need("B", options.b)
    bound = _parse_number("BOUND", options.bound or str(DEFAULT_BOUND))
    pairs = int(_parse_number("PAIRS", options.pairs or str(DEFAULT_PAIRS)))
    verdict = run_gate(a, b, options, bound=bound, pairs=pairs, report=_say)
    _say(render_verdict(verdict))
    return 1 if verdict.regression or not verdict.conclusive else 0


def _need(name: str, value: str) -> str:
    if not value:
        raise LoadTestError(f"{name} must name one side: got nothing; see `make help`")
    return value


def _parse_number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise LoadTestError(f"{name} must be a number above 0: got {text or 'nothing'}")
    return value


def _worker(_: argparse.Namespace) -> int:
    work(_say)
    return 0


_COMMANDS = {
    "worker": _worker,
    "run": _run, "ui": _ui, "peak": _peak, "compare": _compare, "gate": _gate, "report": _report_again,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
