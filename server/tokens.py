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

TOKEN_BYTES = 24  # 192 bits; 32 characters in base64
SHORTEST = 16  # 96 bits, for tokens that a person brings
_LEGAL = re.compile(r"[A-Za-z0-9._~+/=-]+")  # of RFC 6750; HAProxy's lists have one a line


def prepare_secrets(run: RunDir, plan: Plan) -> None:
    """The token (the one of TOKEN_FILE, else the last one, else a new one), and certificate and key in one
    file, as HAProxy wants them."""
    if plan.proxy.tls_cert:
        parts = (Path(file).read_text(encoding="ascii") for file in (plan.proxy.tls_cert, plan.proxy.tls_key))
        write_private(Path(run.proxy_files.certificate), "\n".join(parts))
    if not plan.proxy.token_file and not run.token.exists():
        write_private(run.token, secrets.token_urlsafe(TOKEN_BYTES))
    write_bearers(run, plan)


def write_bearers(run: RunDir, plan: Plan) -> str:
    """What HAProxy compares with, from the token's file; the token. That of TOKEN_FILE is copied there."""
    if plan.proxy.token_file:
        source = Path(plan.proxy.token_file)
        fix = f"make one: openssl rand -base64 24 > {shlex.quote(str(source))}"
        write_private(run.token, read_token(source, fix))
    token = read_token(run.token)
    write_private(Path(run.proxy_files.bearers), f"Bearer {token}")
    return token


def read_token(file: Path, fix: str = "without the file the next start makes one") -> str:
    """The token; ServerError where there is none, or none that can be sent."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as problem:
        raise ServerError(f"no token: {file}: {problem}; {fix}") from problem
    if len(token) < SHORTEST or not _LEGAL.fullmatch(token):
        raise ServerError(
            f"the token must have {SHORTEST} or more letters, digits or any of ._~+/=-: got {len(token)} "
            f"characters in {file}; {fix}"
        )
    return token


def write_private(file: Path, text: str) -> None:
    """For this user alone, from the first byte on."""
    write_text_atomically(file, f"{text}\n", mode=0o600)
