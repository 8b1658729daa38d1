"""The command `profile`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from loadtest.command import (
    PORT,
    RESULTS_OPTION,
    STORE,
    build_store,
    choose_model,
    measure,
    open_testbed,
    settings,
)
from loadtest.profile import experiment as profile


@click.command("profile")
@click.option(
    "--against", default=profile.STOCK, show_default=True,
    help="stock TorchServe, off (the kit with everything off), or the RUN_DIR of a server that runs",
)  # fmt: skip
@STORE
@PORT
@RESULTS_OPTION
@settings("models", "precision", "duration")
def run_profile(**given: Any) -> int:
    """Why the kit is faster than another server, or than itself with everything off."""
    model = choose_model(given["models"], profile.PAYLOADS)
    precision = given["precision"] or profile.PRECISION
    sides = profile.make_sides(model, against=given["against"], precision=precision)
    build_store(model, given["store"])
    build_store(model, given["store"], "BACKEND=eager", "--precisions", "fp32")
    seconds, run = given["duration"] or profile.SECONDS, partial(profile.run, sides=sides)
    with open_testbed(given["store"], given["first_port"]) as testbed:
        asked = profile.ask(model, testbed.store, sides, precision, seconds)
        return measure(profile.KIND, f"profile-{model}", asked, run, given, testbed)
