"""Checks what protects a live server: where it listens, whom it rejects, how large a request it takes."""

from __future__ import annotations

from collections.abc import Mapping

from config.plan import Plan
from config.rules.network import SOCKETS
from server.ports import list_ports
from server.verify.evidence import FrontendEvidence
from server.verify.findings import RECONFIGURE, RESTART, Finding, cannot_check, compare
from server.verify.probes import GRPC, LARGER_REQUEST, LARGEST_REQUEST, REGISTER
from server.verify.sockets import render_address

# Not a word about the question: there was no room for it.
_BUSY = ("429", "503")
_CONTINUE, _TOO_LARGE = "100", "413"
_UNIMPLEMENTED = "12"
_TORCHSERVE = "TorchServe"


def check_addresses(plan: Plan, seen: FrontendEvidence) -> Finding:
    """TorchServe listens on TCP where the plan says and nowhere else."""
    asked = sorted(render_address(host, port) for host, port in list_ports(plan.properties).values())
    found = seen.listening
    evidence = "/proc/PID/fd and /proc/PID/net/tcp{,6} of every process of the server"
    if found is None:
        return compare(
            "addresses", ", ".join(asked), "cannot be read", evidence=evidence, cure="run as its user"
        )
    got = [at if role == _TORCHSERVE else f"{at} ({role})" for at, role in found.items()]
    return compare("addresses", ", ".join(asked), ", ".join(sorted(got)), evidence=evidence, cure=RECONFIGURE)


def check_sockets(_: Plan, seen: FrontendEvidence) -> Finding:
    """REST is on Unix sockets that no other user reaches: predictions need no token there."""
    asked = f"{', '.join(SOCKETS)} in a folder of mode 700"
    got = f"{', '.join(seen.sockets) or 'none'} in a folder of mode {seen.sockets_mode:o}"
    got += "" if seen.sockets_own else " of another user"
    evidence = "the temporary folder of the instance"
    return compare("sockets", asked, got, evidence=evidence, cure=f"chmod 700 that folder, or {RESTART}")


def check_grpc(_: Plan, seen: FrontendEvidence) -> Finding:
    """gRPC, which anybody on this machine can call, rejects every call."""
    answers = {name: seen.answers.get(name, "not asked") for name in GRPC}
    passed = [f"{name}: status {answer}" for name, answer in answers.items() if answer != _UNIMPLEMENTED]
    got = "; ".join(passed) or "rejected"
    evidence = "a call of each without a token: grpc-status 12 is UNIMPLEMENTED"
    return compare("gRPC", "rejected", got, evidence=evidence, cure=f"make setup && {RESTART}")


def check_model_api(plan: Plan, seen: FrontendEvidence) -> Finding:
    """Nobody registers models in the running server, unless that is planned."""
    enabled = str(plan.properties["enable_model_api"].value).lower() == "true"
    answer = seen.answers.get(REGISTER, "not asked")
    evidence = f"POST /models: {answer}"
    asked = "taken" if enabled else "refused"
    if answer in _BUSY:
        return cannot_check("model API", asked, f"answered {answer}", evidence=evidence, cure="try again")
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
