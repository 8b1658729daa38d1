"""The token that clients show to HAProxy, and the certificate."""

from __future__ import annotations

import re
import secrets
import shlex
from pathlib import Path

from config.folders import write_text_atomically
from config.plan import Plan
from server.errors import ServerError
from server.rundir import RunDir

TOKEN_BYTES = 24
"""192 bits; 32 characters in base64."""
SHORTEST = 16
"""96 bits, for tokens that a person brings."""
_LEGAL = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What RFC 6750 lets a bearer token have; HAProxy's lists have one a line."""


def prepare_secrets(run: RunDir, plan: Plan) -> None:
    """The token: the one that was given, else as it was, else a new one; and certificate and key in one file,
    as HAProxy wants them."""
    if plan.inputs.tls_cert:
        files = (Path(plan.inputs.tls_cert), Path(plan.inputs.tls_key))
        write_private(run.certificate, "\n".join(file.read_text(encoding="ascii") for file in files))
    if not plan.inputs.token_file and not run.token.exists():
        write_private(run.token, secrets.token_urlsafe(TOKEN_BYTES))
    write_bearers(run, plan)


def write_bearers(run: RunDir, plan: Plan) -> str:
    """What HAProxy compares with, from the token's file; the token. One that was given is copied there."""
    if plan.inputs.token_file:
        given = Path(plan.inputs.token_file)
        cure = f"make one: openssl rand -base64 24 > {shlex.quote(str(given))}"
        write_private(run.token, read_token(given, cure))
    token = read_token(run.token)
    write_private(run.bearers, f"Bearer {token}")
    return token


def read_token(file: Path, cure: str = "without the file the next start makes one") -> str:
    """The token; ServerError where there is none, or none that can be sent."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as problem:
        raise ServerError(f"no token: {file}: {problem}; {cure}") from problem
    if len(token) < SHORTEST or not _LEGAL.fullmatch(token):
        raise ServerError(
            f"the token must have {SHORTEST} or more letters, digits or any of ._~+/=-: got {len(token)} "
            f"characters in {file}; {cure}"
        )
    return token


def write_private(file: Path, text: str) -> None:
    """For this user alone, from the first byte on."""
    write_text_atomically(file, f"{text}\n", mode=0o600)
