"""What each command of `python -m loadtest` does: from values to an experiment, from verdicts to a code."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from config.rules.batching import DEFAULT_SLO_P99_MS
from loadtest.choices import choose_scenarios, choose_system, need, open_site, parse_number, say
from loadtest.drivers.job import make_job, write_job
from loadtest.drivers.locust import locust_command, locust_environment, parse_crew
from loadtest.drivers.remote import work
from loadtest.errors import LoadTestError
from loadtest.experiments import compare, gate, measure, peak, soak, targets
from loadtest.experiments.ladder import experiment as ladder
from loadtest.experiments.ladder.rungs import KINDS, SETTINGS
from loadtest.experiments.profile import experiment as profile
from loadtest.experiments.tune import experiment as tune
from loadtest.experiments.tune import prepare
from loadtest.experiments.tune.outcome import judge as judge_tune
from loadtest.experiments.tune.run import run_tune as tune_all
from loadtest.payloads import make_payloads
from loadtest.report import SECTIONS, write_report
from loadtest.results.kept import LATEST, Kept, find_result, list_results, read_kept
from loadtest.scenarios.scenario import AUTO, parse_share
from loadtest.systems.fleet import Site
from loadtest.systems.running import running
from loadtest.trials.block import Experiment, Judge, Timing, Verdict
from loadtest.trials.runner import run_experiment

WEB_PORT = 8089
TOKEN_SECONDS = 3000
"""A page stays open for a while; TorchServe's tokens live for an hour."""
Options = argparse.Namespace
JUDGES: dict[str, Judge] = {
    **{one.KIND: one.judge for one in (measure, peak, gate, soak, profile, targets)},
    **dict.fromkeys(KINDS.values(), ladder.judge),
    tune.KIND: judge_tune,
}


def finish(kept: Kept) -> int:
    """The report, the verdicts, and whether all of them are good."""
    report = write_report([kept], kept.folder.parent)
    verdicts = JUDGES[kept.kind](kept)
    say(f"\n{report.text}\n")
    for verdict in verdicts:
        say(render_verdict(verdict))
    say(f"\nkept: {kept.folder}\nreport: {report.folder}/report.html")
    return 0 if verdicts and all(one.met for one in verdicts) else 1


def render_verdict(verdict: Verdict) -> str:
    """One line with the figure, its interval and the limit; no figure where it is INVALID."""
    figure, note = verdict.figure, f" ({verdict.why})" if verdict.why else ""
    if figure is None:
        return f"{verdict.what}: INVALID: {verdict.why}"
    shown = f"{figure.value:.4g}{verdict.unit} ({figure.low:.4g}-{figure.high:.4g})"
    if verdict.limit is None and not verdict.broken:
        return f"{verdict.what}: {shown}{note}"
    sign = "≥" if verdict.at_least else "≤"
    limit = "" if verdict.limit is None else f", asked {sign} {verdict.limit:.4g}{verdict.unit}"
    return f"{verdict.what}: {shown}{limit}: {'met' if verdict.met else 'MISSED'}{note}"


def run_measure(options: Options) -> int:
    """Scenarios against a server that is up."""
    system = choose_system("", options)
    experiment = measure.make_experiment(running(system), choose_scenarios(options, system))
    return _run_running(experiment, options)


def run_peak(options: Options) -> int:
    """One search for each open loop that fits."""
    limit = parse_number("SLO_P99_MS", options.slo_p99_ms or str(DEFAULT_SLO_P99_MS))
    system = choose_system("", options)
    scenarios = choose_scenarios(options, system, "open")
    each = [peak.make_experiment(running(system), one, limit_ms=limit) for one in scenarios]
    return max(_run_running(one, options) for one in each)


def run_gate(options: Options) -> int:
    """Two servers that are up."""
    sides = (("A", options.a), ("B", options.b))
    a, b = (choose_system(need(name, value), options, f"{name}: ") for name, value in sides)
    scenarios = choose_scenarios(options, a, "closed")
    if len(scenarios) > 1:
        say(f"gate: {scenarios[0].name} (SCENARIO= names another)")
    experiment = gate.make_experiment(
        running(a),
        running(b),
        scenarios[0],
        bound=parse_number("BOUND", options.bound or str(compare.DEFAULT_BOUND)),
    )
    return _run_running(experiment, options)


def _run_running(experiment: Experiment, options: Options) -> int:
    """Against servers that are up."""
    with open_site(options) as site:
        return finish(
            run_experiment(experiment, site, results=options.results, crew=parse_crew(options.processes))
        )


def run_compare(options: Options) -> int:
    """Two results that are kept."""
    bound = parse_number("BOUND", options.bound or str(compare.DEFAULT_BOUND))
    a, b = (
        read_kept(find_result(need(name, value), options.results))
        for name, value in (("A", options.a), ("B", options.b))
    )
    found = compare.compare_results(a, b, bound=bound)
    for one in found:
        say(compare.render_comparison(one))
    return 1 if any(one.regression for one in found) else 0


def run_ladder(options: Options) -> int:
    """Of one model."""
    rungs = options.rungs or SETTINGS
    timing = read_timing(options, ladder.TIMING)
    ladder.check_asked(options.models, rungs)
    resume = find_resumed(options, ladder.name_experiment(options.models, rungs))
    only = options.only.split()
    return _run_started(
        options, lambda site: ladder.make_experiment(options.models, site, timing, only, rungs), resume
    )


def _run_started(options: Options, make: Callable[[Site], Experiment], resume: Path | None = None) -> int:
    """Against servers of its own; before archives are built, the values alone are judged."""
    if options.check:
        return 0
    with open_site(options) as site:
        return finish(run_experiment(make(site), site, results=options.results, resume=resume))


def run_targets(options: Options) -> int:
    """All rows."""
    timing = read_timing(options, targets.TIMING)
    targets.check_targets(timing)
    resume = find_resumed(options, targets.KIND)
    return _run_started(options, lambda site: targets.make_experiment(site.store, timing), resume)


def run_tune(options: Options) -> int:
    """Each model alone or all of a mix, then one file for all."""
    wish = prepare.read_wish(
        options.names,
        minutes=parse_number("BUDGET_MINUTES", options.budget_minutes or str(prepare.DEFAULT_MINUTES)),
        payloads=options.payloads,
        mix=options.mix,
    )
    if options.check:
        return 0
    with open_site(options) as site:
        kepts, keep, problems = tune_all(wish, site, results=options.results, resume=options.resume)
    codes = [finish(kept) for kept in kepts]
    if not any(codes):
        say(f"written: {keep()}; `make serve` goes by it, TUNED=0 does not")
    if problems:
        raise LoadTestError("\n".join(problems))
    return max(codes)


def run_profile(options: Options) -> int:
    """Two systems of one model."""
    profile.check_profile(options.models)
    seconds = parse_number("DURATION", options.duration or str(profile.SECONDS))
    against, precision = options.against or profile.STOCK, options.precision or profile.PRECISION
    return _run_started(
        options,
        lambda site: profile.make_experiment(
            options.models, site.store, against=against, precision=precision, seconds=seconds
        ),
    )


def run_soak(options: Options) -> int:
    """One server with both models."""
    seconds = parse_number("DURATION", options.duration or str(soak.SECONDS))
    soak.check_soak(seconds)
    precision = options.precision or "int8"
    return _run_started(
        options, lambda site: soak.make_experiment(site.store, seconds=seconds, precision=precision)
    )


def read_timing(options: Options, usual: Timing) -> Timing:
    """DURATION where it is given."""
    return Timing(
        seconds=parse_number("DURATION", options.duration or str(usual.seconds)),
        warm_up_s=parse_number("--warm-up", options.warm_up or str(usual.warm_up_s)),
        repeats=usual.repeats,
    )


def find_resumed(options: Options, name: str) -> Path | None:
    """RESUME as a folder."""
    return find_result(options.resume, options.results, name=name) if options.resume else None


def run_report(options: Options) -> int:
    """Of the named results, else the latest."""
    named = [find_result(name, options.results) for name in options.names]
    latest = sorted(one for kind in SECTIONS for one in list_results(options.results, kind))[-1:]
    kepts = [read_kept(one) for one in named or latest or [find_result(LATEST, options.results)]]
    report = write_report(kepts, options.results)
    say(f"{report.text}\n\nreport: {report.folder}/report.html")
    return 0 if report.valid else 1


def run_ui(options: Options) -> int:
    """One scenario with Locust's own web page; what the page shows is not kept."""
    system = choose_system("", options)
    scenario = choose_scenarios(options, system)[0]
    payloads = make_payloads(scenario.payloads, model=scenario.model, archives=system.archives)
    step = scenario.steps[0]
    if parse_share(step):
        raise LoadTestError(
            f"the page needs a rate in requests a second: RATE= of {scenario.name}: got {step}"
        )
    level = system.auto_users(scenario.model) if step == AUTO else float(step)
    token, crew = system.token(TOKEN_SECONDS), parse_crew(options.processes)
    job = make_job(scenario, level=level, repeat=0, url=system.url, token=token, payloads=payloads)
    with tempfile.TemporaryDirectory(prefix="kit-load-") as name:
        folder = write_job(job, payloads, Path(name))
        say(f"{scenario.name}: http://127.0.0.1:{WEB_PORT} (Ctrl-C ends it; what the page shows is not kept)")
        command = [*locust_command(crew), "--web-host", "127.0.0.1", "--web-port", str(WEB_PORT)]
        return subprocess.run(command, env=locust_environment(folder, crew), check=False).returncode


def run_worker(_: Options) -> int:
    """Until it is interrupted."""
    work(say)
    return 0
