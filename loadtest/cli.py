"""`python -m loadtest COMMAND`: what the Makefile's targets of load tests and experiments call."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from config.commands import read_program
from config.errors import ConfigError
from config.planning import DEFAULT_SLO_P99_MS
from config.terminal import print_in_any_locale
from loadtest.bench import Bench
from loadtest.command import (
    BOUND,
    PORT,
    PROCESSES,
    RESULTS_OPTION,
    RESUME,
    STORE,
    build_store,
    choose_model,
    finish,
    measure,
    open_testbed,
    say,
    settings,
)
from loadtest.drivers import LOCUSTFILE, ROOT, make_locust_arguments, parse_generators
from loadtest.errors import LoadTestError, NotMeasuredError
from loadtest.experiments import ablation, benchmark, compare, loadtest, slo, soak
from loadtest.load import DRIVERS, LOOPS, Load, Scenario, change_scenario, parse_share, read_scenario
from loadtest.payloads import USUAL, make_payloads, write_manifest
from loadtest.profile import experiment as profile
from loadtest.profile.command import run_profile
from loadtest.report import Result, render_markdown
from loadtest.results import LATEST, find_result, read_result
from loadtest.servers.base import find_running, is_url, running_server
from loadtest.tune import experiment as tune
from loadtest.tune.command import run_tune
from server.errors import ServerError
from server.start import Interrupted, catch_signals

WEB_PORT = 8089
EXPERIMENTS: Mapping[str, Callable[[Bench], Result]] = {
    one.KIND: one.run for one in (loadtest, slo, compare, soak, ablation, benchmark, tune, profile)
}
"""Kind → what makes the report of a kept result again."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def commands() -> None:
    """Load tests and experiments; make's targets of the same names call these."""


commands.add_command(run_tune)
commands.add_command(run_profile)


def main() -> None:
    """Exit code 0: good; 1: invalid, a limit missed, or a failure; 2: wrong usage."""
    print_in_any_locale()
    try:
        with catch_signals():  # so that a generator that is under way is ended with us
            found, words = read_program(sys.argv[1:])
            sys.exit(commands.main(words, obj=found, standalone_mode=False) or 0)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except (LoadTestError, ServerError, ConfigError) as problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(1)
    except (Interrupted, click.Abort) as signalled:
        click.echo(f"\nstopped by {signalled}; finished blocks are saved (--resume latest)", err=True)
        sys.exit(getattr(signalled, "exit_code", 130))


def loaded(*, serve: bool) -> Callable[[Callable], Callable]:
    """Settings and options of what sends a load."""
    scenario = "MODEL-closed, MODEL-open, or files (default: both loops of each served model)"
    own = "a locustfile of your own; its responses are not checked (default: the kit's)"
    parts = (
        settings("run_dir", "url", "users", "rate", "duration", "payloads", serve=serve),
        PROCESSES,
        click.option("--scenario", default="", help=scenario),
        click.option("--locustfile", default="", help=own),
        RESULTS_OPTION,
    )
    return lambda command: functools.reduce(lambda made, add: add(made), parts, command)


def two_sides(command: Callable) -> Callable:
    """Options of what compares."""
    command = click.option("--b", default="", help="the candidate, likewise")(command)
    return click.option("--a", default="", help="the base: a result, or of the gate a RUN_DIR")(
        BOUND(command)
    )


DRIVER = click.option(
    "--driver", type=click.Choice(["", *DRIVERS]), default="",
    help="ab: one ApacheBench with one payload, closed loops only",
)  # fmt: skip
REPEATS = click.option("--repeats", type=click.IntRange(1, 100), default=None, help="of each level")


def choose_scenarios(given: Mapping[str, Any], models: Sequence[str], loop: str = "") -> list[Scenario]:
    """Those that are named; else the closed and the open loop, or which fits, of each model that is served;
    where nobody knows (`models` empty), of the kit's own."""
    users, rate, driver = given["users"], given["rate"], given.get("driver", "")
    if users and rate:
        raise LoadTestError("USERS are of a closed loop, RATE of an open one: got both")
    if given["locustfile"]:
        return [make_own_scenario(given)]
    named = given["scenario"].replace(",", " ").split()
    usual = [f"{model}-{loop}" for model in models or USUAL for loop in LOOPS]
    chosen = [read_scenario(name) for name in named or usual]
    if not named:
        chosen = [one for one in chosen if not (one.is_open and (users or driver == "ab"))]
        chosen = [one for one in chosen if one.is_open or not rate]
    chosen = [one for one in chosen if loop in ("", "open" if one.is_open else "closed")]
    if not chosen:
        wanted = f" with a {loop} loop" if loop else ""
        raise LoadTestError(f"no scenario{wanted} fits; --scenario names one, such as {usual[0]}")
    for one in chosen:
        if wrong := "RATE" if rate and not one.is_open else "USERS" if users and one.is_open else "":
            raise LoadTestError(f"{wrong} does not fit the loop of {one.name}; choose another --scenario")
    return [
        change_scenario(
            one,
            levels=rate or users,
            repeats=given.get("repeats"),
            duration_s=given["duration"],
            driver=driver,
            payloads=given["payloads"],
        )
        for one in chosen
    ]


def make_own_scenario(given: Mapping[str, Any]) -> Scenario:
    """Of a locustfile of one's own, which sends what it likes; USERS are its users."""
    file = Path(given["locustfile"]).resolve()
    if not file.is_file():
        raise LoadTestError(f"--locustfile must be a file: got {given['locustfile']}")
    load = Load(name=file.stem, models=(), locustfile=str(file))
    return change_scenario(
        Scenario(load=load, levels=(16,), is_open=False), levels=given["users"], duration_s=given["duration"],
        repeats=given.get("repeats"),
    )  # fmt: skip


def find_where(given: Mapping[str, Any]) -> str:
    """A URL, else a run directory."""
    return str(given["url"] or given["run_dir"] or "run")


def list_served(where: str) -> tuple[str, ...]:
    """Models; empty where nobody knows. LoadTestError where no server of ours answers."""
    return () if is_url(where) else find_running(where).models


@commands.command("run")
@DRIVER
@REPEATS
@loaded(serve=True)
def run_loadtest(**given: Any) -> int:
    """Scenarios against a running server."""
    where = find_where(given)
    scenarios = choose_scenarios(given, list_served(where))
    server = running_server(where)
    name = scenarios[0].name if len(scenarios) == 1 else loadtest.KIND
    asked = loadtest.ask(server, scenarios)
    return measure(loadtest.KIND, name, asked, partial(loadtest.run, server=server), given)


@commands.command("slo")
@loaded(serve=True)
@settings("slo_p99_ms")
def run_slo(**given: Any) -> int:
    """The highest open-loop rate whose p99 keeps a limit, of each model that is served."""
    where = find_where(given)
    server, run, codes = running_server(where), partial(slo.run, server=running_server(where)), []
    for scenario in choose_scenarios(given, list_served(where), "open"):
        asked = slo.ask(server, scenario.load, limit_ms=given["slo_p99_ms"] or DEFAULT_SLO_P99_MS)
        codes.append(measure(slo.KIND, asked["load"]["name"], asked, run, given))
    return max(codes)


@commands.command("gate")
@two_sides
@loaded(serve=False)
def run_gate(**given: Any) -> int:
    """Two running servers in turns; exit code 1 on a regression."""
    a, b = (need(name, given[name]) for name in ("a", "b"))
    scenario = choose_scenarios(given, list_served(a), "closed")[0]
    say(f"gate: {scenario.name} (--scenario names another)")
    pair = [running_server(where, f"{side}: {Path(where).name}") for side, where in (("A", a), ("B", b))]
    asked = compare.ask(pair, scenario.at(scenario.levels[0]), bound=given["bound"])
    run = partial(compare.run, pair=pair)
    return measure(compare.KIND, f"{scenario.name}-gate", asked, run, given)


def need(name: str, value: str) -> str:
    """LoadTestError when a value that a command cannot do without is missing."""
    if not value:
        raise LoadTestError(f"--{name} must be given, as in ARGS='--a X --b Y': got nothing")
    return value


@commands.command("compare")
@two_sides
@RESULTS_OPTION
def run_compare(**given: Any) -> int:
    """Two results of `make loadtest` side by side; exit code 1 on a regression."""
    read = []
    for name in ("a", "b"):
        kept = read_result(find_result(need(name, given[name]), given["results"]))
        if kept.kind != loadtest.KIND:
            raise LoadTestError(f"--{name} must be a result of make loadtest: got one of {kept.kind}")
        blocks = [kept.find_block(one["load"]["name"]) for one in kept.asked["scenarios"]]
        read.append((kept, [one for block in blocks if block for one in block.series]))
    result = compare.compare_results(read[0], read[1], given["bound"])
    say(render_markdown(result, read[1][0], plots=False))
    return 0 if result.passed else 1


@commands.command("soak")
@PROCESSES
@RESULTS_OPTION
@settings("run_dir", "duration", serve=True)
def run_soak(**given: Any) -> int:
    """The running server near its peak; exit code 1 when memory or latency grows."""
    where = given["run_dir"] or "run"
    server = running_server(where)
    asked = soak.ask(server, list_served(where), seconds=given["duration"] or soak.SECONDS)
    return measure(soak.KIND, soak.KIND, asked, partial(soak.run, server=server), given)


@commands.command("ablation")
@click.option(
    "--steps", type=click.Choice([ablation.SETTINGS, ablation.BACKENDS]), default=ablation.SETTINGS,
    help="one setting after the other, or each installed backend in each precision",
)  # fmt: skip
@RESUME
@click.option("--only", default="", help="names of steps, for a trial")
@STORE
@PORT
@RESULTS_OPTION
@settings("models", "duration")
def run_ablation(**given: Any) -> int:
    """What each setting, or backend and precision, is worth against plain TorchServe."""
    given["models"] = choose_model(given["models"], ablation.PAYLOADS)
    name = f"{given['steps']}-{given['models']}"
    folder = find_result(given["resume"], given["results"], name=name) if given["resume"] else None
    backends = given["steps"] == ablation.BACKENDS
    build_store(given["models"], given["store"], *(["--all-backends"] if backends else []))
    for backend in () if backends else ("eager", "inductor"):
        build_store(given["models"], given["store"], f"BACKEND={backend}", "--precisions", "fp32")
    with open_testbed(given["store"], given["first_port"]) as testbed:
        seconds, only = given["duration"] or ablation.SECONDS, given["only"].split()
        asked, servers = ablation.prepare(
            given["models"], given["steps"], testbed, seconds=seconds, only=only
        )
        if folder:  # by the memory that there was
            asked["groups"] = read_result(folder).asked.get("groups")
        return measure(ablation.KIND, name, asked, partial(ablation.run, servers=servers), given, testbed)


@commands.command("benchmark")
@RESUME
@click.option("--only", default="", help="parts of the servers' names, separated by commas: the kit,plain")
@STORE
@PORT
@RESULTS_OPTION
@settings("models", "slo_p99_ms")
def run_benchmark(**given: Any) -> int:
    """The kit beside plain TorchServe and OpenVINO behind LitServe: within SLO_P99_MS, and saturated."""
    model = choose_model(given["models"], benchmark.PAYLOADS)
    only = [word.strip() for word in given["only"].split(",") if word.strip()]
    servers = benchmark.list_servers(model, only)
    build_store(model, given["store"], weights="")
    with open_testbed(given["store"], given["first_port"]) as testbed:
        asked = benchmark.ask(model, testbed, servers, limit_ms=given["slo_p99_ms"] or DEFAULT_SLO_P99_MS)
        run = partial(benchmark.run, servers=servers)
        return measure(benchmark.KIND, f"benchmark-{model}", asked, run, given, testbed)


@commands.command("report")
@click.argument("names", metavar="[RESULT]...", nargs=-1)
@RESULTS_OPTION
def run_report(names: Sequence[str], results: Path) -> int:
    """Tables and page of kept results again: the latest, or RESULT."""
    good = True
    for name in names or (LATEST,):
        kept = read_result(find_result(name, results))
        try:
            result = EXPERIMENTS[kept.kind](Bench(kept))
        except NotMeasuredError as problem:
            say(f"{problem}: these blocks are there")
            blocks = [block for one in kept.list_blocks() if (block := kept.find_block(one))]
            every = [one for block in blocks for one in block.series]
            result = loadtest.show_loads(f"{kept.name}, interrupted", every)
        finish(result, kept)
        good &= result.valid
    return 0 if good else 1


@commands.command("ui")
@loaded(serve=True)
def run_ui(**given: Any) -> int:
    """Locust's own web page with the kit's users; users and rate can be changed in it."""
    where = find_where(given)
    scenario = choose_scenarios(given, list_served(where))[0]
    if parse_share(scenario.levels[0]):
        raise LoadTestError(f"the page needs a rate in requests/s: got {scenario.levels[0]}; give RATE=")
    load = scenario.at(scenario.levels[0])
    with open_testbed() as testbed, running_server(where).open(testbed) as running:
        token_file = testbed.folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token := running.token(), encoding="ascii")
        users = 1 if load.is_open else load.users or running.auto_users(load.models)
        command = [sys.executable, "-m", "locust", "-f", load.locustfile or str(LOCUSTFILE)]
        command += ["--users", str(users), "--spawn-rate", str(users)]
        command += parse_generators(given["processes"]).arguments
        command += ["--web-host", "127.0.0.1", "--web-port", str(WEB_PORT)]
        if load.locustfile:
            command += ["--host", running.url]
        else:
            made = make_payloads(load.payloads, model=load.models[0], archives=running.archives)
            where, file = (
                str(write_manifest(made, testbed.folder / "payloads")),
                str(token_file) if token else "",
            )
            command += make_locust_arguments(load, url=running.url, payloads=where, token_file=file)
        say(f"{scenario.name}: http://127.0.0.1:{WEB_PORT} (Ctrl-C ends it; what the page shows is not kept)")
        return subprocess.run(command, cwd=ROOT, check=False).returncode
