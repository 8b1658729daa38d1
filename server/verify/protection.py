"""Checks what protects a live server: where it listens, whom it refuses, how large a request it takes."""

from __future__ import annotations

from collections.abc import Mapping

from config.plan import Plan
from server.ports import list_ports
from server.verify.evidence import FrontendEvidence
from server.verify.findings import RECONFIGURE, RESTART, Finding, cannot_check, compare
from server.verify.probes import LARGER_REQUEST, LARGEST_REQUEST, REFUSALS, REGISTER
from server.verify.sockets import render_address

# TorchServe 0.12 answers 400 (InvalidKeyException), a gate in front of it 401 or 403.
_REFUSED = ("400", "401", "403")
# Not a word about the question: there was no room for it.
_BUSY = ("429", "503")
_CONTINUE, _TOO_LARGE = "100", "413"
_KEY_FILE_MODE = 0o600
_TORCHSERVE = "TorchServe"


def check_addresses(plan: Plan, seen: FrontendEvidence) -> Finding:
    """TorchServe listens where the plan says and nowhere else; workers have Unix sockets only."""
    asked = sorted(render_address(host, port) for host, port in list_ports(plan.properties).values())
    found = seen.listening
    evidence = "/proc/PID/fd and /proc/PID/net/tcp{,6} of every process of the server"
    if found is None:
        return compare(
            "addresses", ", ".join(asked), "cannot be read", evidence=evidence, cure="run as its user"
        )
    got = [at if role == _TORCHSERVE else f"{at} ({role})" for at, role in found.items()]
    return compare("addresses", ", ".join(asked), ", ".join(sorted(got)), evidence=evidence, cure=RECONFIGURE)


def check_tokens(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Predictions and management are refused without a token and with a wrong one, or open where planned."""
    answers = {name: seen.answers.get(name, "not asked") for name in REFUSALS}
    evidence = f"{len(REFUSALS)} calls: {', '.join(sorted(set(answers.values())))}"
    if _is_open(plan):
        return compare("tokens", "none needed", "none needed", evidence="the plan", cure="")
    if busy := _find_busy(answers):
        return cannot_check("tokens", "refused", busy, evidence=evidence, cure="try again")
    passed = [f"{name}: {answer}" for name, answer in answers.items() if answer not in _REFUSED]
    return compare("tokens", "refused", "; ".join(passed) or "refused", evidence=evidence, cure=RECONFIGURE)


def check_key_file(plan: Plan, seen: FrontendEvidence) -> Finding:
    """The tokens' file is there and nobody else can read it."""
    asked = "none" if _is_open(plan) else f"mode {_KEY_FILE_MODE:o}"
    got = "none" if seen.key_file_mode is None else f"mode {seen.key_file_mode:o}"
    cure = (
        f"TorchServe writes it when it starts: {RESTART}"
        if seen.key_file_mode is None
        else "chmod 600 run/key_file.json; whoever read it may use the server until the next start"
    )
    return compare("key file", asked, got, evidence="key_file.json", cure=cure)


def check_model_api(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Nobody registers models in the running server, or everybody with a token where that is planned."""
    enabled = str(plan.properties["enable_model_api"].value).lower() == "true"
    answer = seen.answers.get(REGISTER, "not asked")
    evidence = f"POST /models: {answer}"
    asked = "taken" if enabled else "refused"
    if answer in _BUSY:
        return cannot_check("model API", asked, f"answered {answer}", evidence=evidence, cure="try again")
    if seen.key_file_mode is None and not _is_open(plan):
        reason = "no key file, so no token to ask with"
        return cannot_check("model API", asked, reason, evidence=evidence, cure="see key file")
    got = {"403": "refused", "405": "refused", "400": "taken"}.get(answer, answer)
    return compare("model API", asked, got, evidence=evidence, cure=RECONFIGURE)


def check_request_size(plan: Plan, seen: FrontendEvidence) -> Finding:
    """A request as large as planned is let in, one byte more is too large."""
    size = plan.properties["max_request_size"].value
    answers = {name: seen.answers.get(name, "not asked") for name in (LARGEST_REQUEST, LARGER_REQUEST)}
    evidence = "POST with Content-Length and Expect: 100-continue, no body"
    asked = _render_sizes(size, _CONTINUE, _TOO_LARGE)
    if busy := _find_busy(answers):
        return cannot_check("request size", asked, busy, evidence=evidence, cure="try again")
    got = _render_sizes(size, *answers.values())
    return compare("request size", asked, got, evidence=evidence, cure=RECONFIGURE)


def _render_sizes(size: object, answer: str, answer_to_more: str) -> str:
    return f"{size} bytes: {answer}; one more: {answer_to_more}"


def _find_busy(answers: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {answer}" for name, answer in answers.items() if answer in _BUSY)


def _is_open(plan: Plan) -> bool:
    return str(plan.properties["disable_token_authorization"].value).lower() == "true"
