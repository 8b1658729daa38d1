"""The sections global and defaults of haproxy.cfg, and how lines, files and variables are written in it."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from config.folders import find_temporary
from config.plan import Plan

WIDTH = 108
INDENT = "    "

RETRY_AFTER = "retry-after 1"
"""With each 503: a second later another server may be well, or the queue shorter."""


def explain(reason: str, *lines: str) -> list[str]:
    """Lines of a section below the reason for them."""
    comment = textwrap.wrap(
        reason,
        WIDTH,
        initial_indent=f"{INDENT}# ",
        subsequent_indent=f"{INDENT}#   ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [*comment, *(f"{INDENT}{line}" for line in lines)]


def quote(text: str) -> str:
    """One argument, taken as it is: no blank ends it, and no variable of the environment comes in."""
    for special in ("\\", '"', "$"):
        text = text.replace(special, f"\\{special}")
    return f'"{text}"'


def render_refusal(status: int, text: str, *headers: str) -> str:
    """A refusal in the kit's form, as arguments; `text` and the headers' values are log formats: %[sample] is
    replaced, and a % that is meant is written twice."""
    body = quote(json.dumps({"code": status, "error": text}, ensure_ascii=False))
    named = " ".join(f"hdr {header}" for header in ("x-request-id %[unique-id]", *headers))
    return f'status {status} content-type application/json lf-string {body[:-1]}\\n" {named}'


LISTENER = "KIT_DOOR"
"""Variable with what the door listens on: an address, or a socket that is open already."""


def name_state(instance: str) -> str:
    """Variable that says whether an instance may be asked from the first moment on."""
    return f"KIT_STATE_{instance}"


@dataclass(frozen=True, kw_only=True)
class DoorFiles:
    """Absolute paths without blanks or quotes of their own meaning; the renderer quotes them."""

    sockets: str
    """A folder for the sockets between the hops, of this user alone."""
    admin_socket: str
    """HAProxy's runtime commands."""
    supervisor_socket: str
    """Who answers /ready and /live (HTTP)."""
    bearers: str
    """What the header Authorization may be, one value a line."""
    certificate: str
    """Where TLS is asked for: certificate, chain and key (PEM)."""

    @classmethod
    def of(cls, run_dir: Path) -> DoorFiles:
        """Those of a run directory."""
        sockets = find_temporary(run_dir)
        return cls(
            sockets=str(sockets),
            admin_socket=str(sockets / "admin.sock"),
            supervisor_socket=str(sockets / "supervisor.sock"),
            bearers=str(run_dir / "bearers.lst"),
            certificate=str(run_dir / "door.pem"),
        )


ERRORS = {
    400: "no HTTP that can be read",
    408: "the request came too slowly; send it again",
    500: "the door failed; try again, and see its log",
    502: "the instance that had this request ended before it had answered; try again",
    503: "no instance of this model can be asked now; try again",
    504: "no answer by the deadline; try again later, or allow more time with the header X-Deadline-Ms",
}
"""What HAProxy says of itself, in the kit's form."""

ENDING = "proc.ending"
"""Variable of the process: 1 once the server is ending."""

LOG = "%ci [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %tsc %fc/%bc/%sc/%rc %sq/%bq id=%[unique-id] %HM %HP"


def render_process(plan: Plan, files: DoorFiles) -> list[str]:
    """The section global."""
    door = plan.door
    hops = 2 * door["connections"].value
    return [
        "global",
        *explain(
            "what the supervisor speaks to, and nobody else",
            f"stats socket {quote(files.admin_socket)} mode 600 level admin expose-fd listeners",
        ),
        *explain("to the supervisor, which keeps it in logs/haproxy.log", "log stdout format raw daemon"),
        *explain(door["threads"].reason, f"nbthread {door['threads'].value}"),
        *explain(
            f"{door['connections'].value} of clients, as many between the hops, and a few for figures",
            f"maxconn {hops + 100}",
        ),
        *explain(door["buffer_bytes"].reason, f"tune.bufsize {door['buffer_bytes'].value}"),
        *explain(door["rewrite_bytes"].reason, f"tune.maxrewrite {door['rewrite_bytes'].value}"),
        *explain("1 once the server is ending: nothing new is let in", f"set-var {ENDING} int(0)"),
        *explain(
            "what a request is predicted to take: so many us for each one that waits before it, and so many "
            "ms in an instance; 0 until the supervisor has measured it, and then nothing is refused by it",
            *(
                f"set-var {name_prediction(name, unit)} int(0)"
                for name in plan.models
                for unit in ("us", "ms")
            ),
        ),
    ]


def render_defaults(plan: Plan) -> list[str]:
    """The section defaults."""
    door = plan.door
    longest = door["largest_deadline_ms"].value + 10_000
    return [
        "defaults common",
        *explain("requests, not bytes", "mode http"),
        *explain(
            "a line for each request that failed: who, when, where, how long each part took, status; no "
            "bodies, no headers",
            "log global",
            "option dontlog-normal",
            f"log-format {quote(LOG)}",
        ),
        *explain(
            "towards the instances each connection carries one request: their old HTTP code never sees a "
            "second one, be it smuggled or pipelined, or another client's",
            "option http-server-close",
            "http-reuse never",
        ),
        *explain("who left, or was told 504, leaves the queue", "option abortonclose"),
        *explain(door["headers_s"].reason, f"timeout http-request {door['headers_s'].value}s"),
        *explain(door["body_s"].reason, f"timeout client {door['body_s'].value}s"),
        *explain(door["idle_s"].reason, f"timeout http-keep-alive {door['idle_s'].value}s"),
        *explain("instances are on this machine: a connection takes no time", "timeout connect 2s"),
        *explain(
            "the deadline ends a request, never these two: longer than the longest one",
            f"timeout queue {longest}ms",
            f"timeout server {longest}ms",
        ),
        *explain("an instance that lives answers /ping at once", "timeout check 2s"),
        *explain("by this name a request is found in the log", "unique-id-format %[uuid()]"),
        *explain(
            "what HAProxy says itself has the kit's form",
            *(
                f"http-error {render_refusal(status, text, *([RETRY_AFTER] if status == 503 else []))}"
                for status, text in ERRORS.items()
            ),
        ),
    ]


def name_prediction(model: str, unit: str) -> str:
    """The variable of the process with one of a model's two figures: us or ms."""
    name = "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in model)
    return f"proc.{name}_{unit}"
