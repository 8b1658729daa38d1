"""Compares a live door with its plan: HAProxy's configuration, what it listens on, lets in and hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from config.plan import Plan
from server.api import INFERENCE, Client
from server.errors import ServerError
from server.haproxy import Runtime
from server.ports import list_ports
from server.processes import find_marked
from server.rundir import RunDir
from server.running import digest_file
from server.state import read_state
from server.supervisor.record import READY, read_record
from server.verify.evidence import RESTART, Finding, compare
from server.verify.probes import WRONG_TOKEN, announce, read_listening, read_status, render_address

_SECONDS = 5.0
_RECONFIGURE = f"haproxy.cfg was changed behind the plan's back? make plan && {RESTART}"


@dataclass(frozen=True, kw_only=True)
class DoorEvidence:
    """What was seen."""

    phase: str
    """The supervisor's own word; "no supervisor runs" where there is none."""
    configuration: str | None
    """Digest of haproxy.cfg now; None where there is none."""
    at_start: str | None
    """The same when the server was started."""
    listening: Mapping[str, str] | None
    """Address → role, of HAProxy and the supervisor."""
    answers: Mapping[str, str]
    """What was asked → the status, or why there was none."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """model/instance → requests HAProxy hands over at once."""
    token_mode: int | None = None
    """Permissions of the token's file."""


def collect_door(plan: Plan, run: RunDir, client: Client) -> DoorEvidence:
    """Ask and read."""
    own = [process for process in find_marked(run.path) if process.is_door or process.is_supervisor]
    record, state = read_record(run.record), read_state(run.state)
    watched = any(process.is_supervisor for process in own)
    return DoorEvidence(
        phase=record.phase if record and watched else "no supervisor runs",
        configuration=digest_file(run.door),
        at_start=state.properties_sha256 if state else None,
        listening=read_listening(own),
        answers=_ask(plan, client),
        limits=_read_limits(run),
        token_mode=run.token.stat().st_mode & 0o777 if run.token.exists() else None,
    )


def _ask(plan: Plan, client: Client) -> dict[str, str]:
    model = next(iter(plan.models))
    path, largest = f"/predictions/{model}", int(str(plan.properties["max_request_size"].value))
    good = client.token()
    asked: dict[str, Callable[[], int]] = {
        "no token": lambda: client.ask_status(INFERENCE, "POST", path, ""),
        "wrong token": lambda: client.ask_status(INFERENCE, "POST", path, WRONG_TOKEN),
        "other path": lambda: client.ask_status(INFERENCE, "GET", "/models", good),
        "other method": lambda: client.ask_status(INFERENCE, "DELETE", path, good),
        "largest request": lambda: announce(client, path, largest),
        "one byte more": lambda: announce(client, path, largest + 1),
        "/ready": lambda: client.ask_status(INFERENCE, "GET", "/ready", ""),
        "/live": lambda: client.ask_status(INFERENCE, "GET", "/live", ""),
    }
    return {name: read_status(ask) for name, ask in asked.items()}


def _read_limits(run: RunDir) -> dict[str, int]:
    try:
        return dict(Runtime(run.admin_socket).read_limits())
    except ServerError:
        return {}


def check_supervisor(_: Plan, seen: DoorEvidence) -> Finding:
    """Somebody watches, and all is well by what he sees."""
    return compare(
        "supervisor", READY, seen.phase, evidence="run/supervisor.json, and its process", cure=RESTART
    )


def check_configuration(_: Plan, seen: DoorEvidence) -> Finding:
    """HAProxy runs what the plan says, and not what somebody wrote since."""
    same = seen.configuration is not None and seen.configuration == seen.at_start
    got = "as rendered at the start" if same else "changed since the start"
    return compare(
        "haproxy.cfg", "as rendered at the start", got, evidence="its digest", cure=_RECONFIGURE, same=same
    )


def check_listening(plan: Plan, seen: DoorEvidence) -> Finding:
    """The door and its metrics listen where planned, and nothing else of it does."""
    ports = list_ports(plan.properties)
    asked = sorted(render_address(*ports[purpose]) for purpose in ("inference", "metrics"))
    got = "cannot be read" if seen.listening is None else ", ".join(sorted(seen.listening))
    evidence = "/proc/PID/net/tcp{,6} of HAProxy and the supervisor"
    return compare("door listens", ", ".join(asked), got, evidence=evidence, cure=_RECONFIGURE)


def check_answers(_: Plan, seen: DoorEvidence) -> Finding:
    """A stranger is refused before anything is read, and a probe is told the truth."""
    asked = {
        "no token": "401",
        "wrong token": "401",
        "other path": "404",
        "other method": "405",
        "largest request": "100",
        "one byte more": "413",
        "/ready": "200",
        "/live": "200",
    }
    got = {name: seen.answers.get(name, "not asked") for name in asked}
    return compare("door answers", _render(asked), _render(got), evidence="8 calls", cure=_RECONFIGURE)


def check_limits(plan: Plan, seen: DoorEvidence) -> Finding:
    """Each instance is handed as many requests at once as planned, and the others wait in the door."""
    asked = {
        f"{model}/{name}": str(plan.door[f"{model}.{name}.maxconn"].value)
        for name, instance in plan.instances.items()
        for model in instance.models
    }
    got = {name: str(seen.limits.get(name, "?")) for name in asked}
    return compare(
        "handed over at once", _render(asked), _render(got), evidence="HAProxy's show stat", cure=RESTART
    )


def check_token_file(_: Plan, seen: DoorEvidence) -> Finding:
    """Nobody else reads the token."""
    got = "none" if seen.token_mode is None else f"mode {seen.token_mode:o}"
    return compare("token", "mode 600", got, evidence="run/token", cure="chmod 600 run/token")


def _render(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


DOOR_CHECKS: tuple[Callable[[Plan, DoorEvidence], Finding], ...] = (
    check_supervisor,
    check_configuration,
    check_listening,
    check_answers,
    check_limits,
    check_token_file,
)
