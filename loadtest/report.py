"""Turns a kept result of a row into lines for a person; it reads the JSON alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.cpu import GENERATOR
from loadtest.goals import Goal, render_goal

NAMES = {"worker": "workers", "TorchServe": "TorchServe's Java", GENERATOR: GENERATOR}
DISTURBED = 0.1
"""Of the machine's CPU time; the kernel's own work for a server under load is a few percent."""


def render_result(result: Mapping[str, Any]) -> list[str]:
    """Rates, verdicts, accuracy, and where the time goes."""
    lines = [f"{result['row']}: {result['title']}"]
    lines += [f"  {render_side(side)}" for side in result["sides"]]
    lines += [f"  {line}" for line in render_goals(result)]
    details = (*render_accuracy(result), *result["notes"], *render_profile(result), *find_doubts(result))
    return [*lines, *(f"  {line}" for line in details)]


def render_goals(result: Mapping[str, Any]) -> list[str]:
    """One line per target."""
    return [
        render_goal(Goal(**{name: value for name, value in goal.items() if name != "met"}))
        for goal in result["goals"]
    ]


def render_side(side: Mapping[str, Any]) -> str:
    """Median and spread of one side."""
    rate = side["requests_per_second"]
    spread = f"({rate['low']:.2f}-{rate['high']:.2f})"
    return f"{side['name']:<22} {rate['median']:8.2f} req/s {spread:<17} {side['how']}"


def render_accuracy(result: Mapping[str, Any]) -> list[str]:
    """No speed without it: how the precision compared with FP32 eager when the archive was built."""
    if not result["judged"]:
        return []
    worker = result["servers"][result["judged"]]["workers"][0]
    check = worker["self_check"]["relative_error"]
    head = f"accuracy of {worker['precision']} ({worker['weights']}): "
    if not worker["accuracy"]:
        return [f"{head}FP32 is the reference; logits within {check:.2g} of eager at load"]
    return [head + describe_accuracy(worker["accuracy"])]


def describe_accuracy(accuracy: Mapping[str, Any]) -> str:
    """The gate's figures in words."""
    labelled = accuracy.get("labelled_accuracy")
    known = "" if labelled is None else f", labelled accuracy {100 * labelled:.1f} %"
    difference, cosine = accuracy["largest_probability_difference"], accuracy["least_cosine"]
    return (
        f"{100 * accuracy['agreement']:.1f} % of answers as FP32 on {accuracy['samples']} "
        f"{accuracy['source']} inputs, largest probability difference {difference:.4f}, "
        f"least cosine {cosine:.4f}{known}"
    )


def render_profile(result: Mapping[str, Any]) -> list[str]:
    """Where the CPU time of each side went; the in-process sides say what the model alone would reach."""
    lines = []
    for side in result["sides"]:
        if side["repeats"][0]["model_share"] is None:
            lines.append(f"CPU of {side['name']}: {describe_cpu(side['repeats'], cpus=result['cpus'])}")
        else:
            lines.append(describe_limit(side))
    return lines


def describe_cpu(repeats: Sequence[Mapping[str, Any]], *, cpus: int) -> str:
    """Shares of the machine's CPU time while under load."""
    used: Counter[str] = Counter()
    for one in repeats:
        used.update(one["cpu"]["by_role"])
    available = cpus * sum(one["seconds"] for one in repeats)
    parts = [f"{NAMES[role]} {100 * used[role] / available:.1f} %" for role in NAMES]
    others = f"others and the host {100 * count_disturbance(repeats, cpus=cpus):.1f} %"
    return f"{', '.join([*parts, others])} of {cpus} CPUs; the rest was idle"


def count_disturbance(repeats: Sequence[Mapping[str, Any]], *, cpus: int) -> float:
    """The share of the machine that neither the side nor its load generator had (0 to 1)."""
    disturbed = sum(one["cpu"]["others"] + one["cpu"]["stolen"] for one in repeats)
    return disturbed / (cpus * sum(one["cpu"]["seconds"] for one in repeats))


def find_doubts(result: Mapping[str, Any]) -> list[str]:
    """Why the row's figures cannot be trusted: state, evidence, next step; empty when they can."""
    shares = {
        side["name"]: count_disturbance(side["repeats"], cpus=result["cpus"]) for side in result["sides"]
    }
    name = max(shares, key=lambda one: shares[one], default="")
    if not name or shares[name] <= DISTURBED:
        return []
    return [
        f"INVALID: other programs or the host took {100 * shares[name]:.0f} % of the machine while {name} "
        f"was measured (at most {100 * DISTURBED:.0f} %); end them and measure again"
    ]


def describe_limit(side: Mapping[str, Any]) -> str:
    """The machine's own limit."""
    share = sum(one["model_share"] for one in side["repeats"]) / len(side["repeats"])
    alone = side["requests_per_second"]["median"] / share
    return (
        f"limit ({side['name']}): {100 * share:.1f} % of its time is the model, which alone would reach "
        f"{alone:.2f} a second; the rest is decoding, packing, answering"
    )
