"""The sections global and defaults: limits of the process, and what holds for both hops."""

from __future__ import annotations

from config.door.files import DoorFiles
from config.door.lines import RETRY_AFTER, explain, quote, render_refusal
from config.plan import Plan

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
        *_render_predictions(plan),
    ]


def _render_predictions(plan: Plan) -> list[str]:
    """Two figures per model."""
    return explain(
        "what a request is predicted to take: so many us for each one that waits before it, and so many ms "
        "in an instance; 0 until the supervisor has measured it, and then nothing is refused by it",
        *(f"set-var {name_prediction(model, unit)} int(0)" for model in plan.models for unit in ("us", "ms")),
    )


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
