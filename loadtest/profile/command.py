"""The command `profile`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from config.planning import PRECISIONS
from loadtest.command import DURATION, PORT, RESULTS_OPTION, STORE, build_store, measure, open_site, option
from loadtest.profile import experiment as profile


@click.command("profile")
@option("MODELS", type=click.Choice([*profile.PAYLOADS]), required=True)
@option("AGAINST", default=profile.STOCK)
@DURATION
@option("PRECISION", type=click.Choice([*PRECISIONS]), default=profile.PRECISION)
@STORE
@PORT
@RESULTS_OPTION
def run_profile(**given: Any) -> int:
    """Why the kit is faster than another server, or than itself with everything off."""
    model, precision = given["models"], given["precision"]
    sides = profile.make_sides(model, against=given["against"], precision=precision)
    build_store(model, given["store"])
    build_store(model, given["store"], "--backend", "eager", "--precision", "fp32")
    seconds, run = given["duration"] or profile.SECONDS, partial(profile.run, sides=sides)
    with open_site(given["store"], given["first_port"]) as site:
        asked = profile.ask(model, site.store, sides, precision, seconds)
        return measure(profile.KIND, f"profile-{model}", asked, run, given, site)
