"""The first hop: who may ask, for what, and by when; and where health and figures are told."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.door.process import ENDING, LISTENER, RETRY_AFTER, DoorFiles, explain, quote, render_refusal
from config.plan import Plan
from config.render import ARCHIVE_VERSION
from config.rules.network import HOST

METRICS_OFFSET = 2

FORM = (
    "application/x-www-form-urlencoded (curl's default for -d and --data-binary) is not taken; send a "
    "picture with: curl -T photo.jpg …, a form with: curl -F data=@photo.jpg …, JSON with: "
    "curl -H 'Content-Type: application/json' -d '{\"text\": \"…\"}' …"
)

PREFLIGHT = (
    "pages of other origins are not served (no Access-Control-Allow-Origin is sent); ask from your page's "
    "own server, which also keeps the token out of browsers"
)

NO_TOKEN = "no valid token: send the header Authorization: Bearer <token>; see make status"


def render_entrance(plan: Plan, files: DoorFiles) -> Iterator[list[str]]:
    """The frontend strangers meet, and the rules that hold for every prediction."""
    yield _render_frontend(plan, files)
    yield _render_rules(plan)


def _refuse(status: int, text: str, condition: str, *headers: str) -> str:
    return f"http-request return {render_refusal(status, text, *headers)} {condition}"


def _render_frontend(plan: Plan, files: DoorFiles) -> list[str]:
    door, paths = plan.door, " ".join(f"/predictions/{model}" for model in plan.models)
    tls = (
        f" ssl crt {quote(files.certificate)} alpn http/1.1 ssl-min-ver TLSv1.2"
        if plan.inputs.tls_cert
        else ""
    )
    served = (
        f"nothing is served there: send POST /predictions/<model>, of {', '.join(plan.models)}, or GET /ready"
    )
    return [
        "frontend door from common",
        *explain(
            f"what strangers see of all this: {plan.inputs.bind}:{plan.inputs.port}, which the supervisor "
            "has opened: while HAProxy is started again, who comes waits in the kernel",
            f'bind "${{{LISTENER}}}"{tls}',
        ),
        *explain(door["connections"].reason, f"maxconn {door['connections'].value}"),
        *explain(
            "the one name of a request, in the answer and the logs",
            "http-request set-header x-request-id %[unique-id]",
        ),
        *explain(
            f"{door['header_bytes'].reason}, before anything else is looked at",
            _refuse(
                431,
                f"the headers may have {door['header_bytes'].value} bytes: got %[req.hdrs,length]",
                f"if {{ req.hdrs,length gt {door['header_bytes'].value} }}",
            ),
        ),
        *explain(
            "health is told to everybody",
            "acl probe path /ready /live /ping",
            "http-request set-path /ready if { path /ping }",
        ),
        *explain(
            "a browser asks so before it sends another page's request, and never with a token",
            "acl preflight req.fhdr(access-control-request-method) -m found",
            "http-request set-log-level silent if { method OPTIONS } preflight",
            _refuse(403, PREFLIGHT, "if { method OPTIONS } preflight"),
        ),
        *explain(
            "the token, before a byte of the body is read: one header, and as it is in the file but for the "
            "case of Bearer (RFC 9110); strangers fill no log",
            f"acl token \"req.fhdr(authorization),regsub('^bearer +','Bearer ',i)\" -m str -f "
            f"{quote(files.bearers)}",
            "acl twice req.fhdr_cnt(authorization) gt 1",
            "http-request set-log-level silent if !probe !token",
            _refuse(401, NO_TOKEN, "if !probe !token or !probe twice", "www-authenticate Bearer"),
        ),
        *explain(
            "TorchServe's address of one version: archives have no other",
            f"http-request replace-path ^(/predictions/[^/]+)/{re.escape(ARCHIVE_VERSION)}$ \\1",
        ),
        *explain(
            "only what is planned is served",
            f"acl served path {paths}",
            _refuse(404, served, "if !probe !served"),
            "use_backend supervisor if probe",
        ),
        *explain(
            f"bodies above {door['small_bytes'].value} bytes, or of unknown length, wait apart",
            *render_large(plan),
            *(
                f"use_backend {model}{kind}.door if {condition} {{ path /predictions/{model} }}"
                for model in plan.models
                for kind, condition in (("", "!large"), (".large", "large"))
            ),
        ),
    ]


def render_large(plan: Plan) -> tuple[str, ...]:
    """Either makes it true."""
    small = plan.door["small_bytes"].value
    return (
        f"acl large req.hdr_val(content-length) gt {small}",
        "acl large req.fhdr(transfer-encoding) -m found",
    )


def _render_rules(plan: Plan) -> list[str]:
    door = plan.door
    largest, longest = door["max_request_bytes"].value, door["largest_deadline_ms"].value
    deadline = "req.fhdr(x-deadline-ms)"
    return [
        "defaults predictions from common",
        *explain(
            "the server is ending",
            _refuse(
                503, "the server is ending; try again", f"if {{ var({ENDING}) -m int eq 1 }}", RETRY_AFTER
            ),
        ),
        *explain(
            "curl -T is a PUT",
            _refuse(
                405,
                "predictions are asked for with POST or PUT",
                "unless { method POST PUT }",
                'allow "POST, PUT"',
            ),
        ),
        *explain(
            "TorchServe reads such a body as a form, and answers 500 to a picture in it",
            _refuse(
                415,
                FORM,
                "if { req.fhdr(content-type) -m beg -i application/x-www-form-urlencoded } "
                "!{ req.fhdr(content-length) 0 }",
            ),
        ),
        *explain(
            "which of two types is meant nobody knows",
            _refuse(
                400, "the header Content-Type came twice: send one", "if { req.fhdr_cnt(content-type) gt 1 }"
            ),
        ),
        *explain(
            "nothing here unpacks a body",
            _refuse(
                415,
                "the body must be sent as it is, without Content-Encoding: got "
                "%[req.fhdr(content-encoding),bytes(0,40),json(utf8ps)]",
                "if { req.fhdr_cnt(content-encoding) gt 1 } or "
                "{ req.fhdr(content-encoding) -m found } !{ req.fhdr(content-encoding) -m str -i identity }",
            ),
        ),
        *explain(
            "what ends such a body is told in two ways",
            _refuse(
                400,
                "a request of HTTP/1.0 has no Transfer-Encoding: send it as HTTP/1.1",
                "if { req.ver 1.0 } { req.fhdr(transfer-encoding) -m found }",
            ),
        ),
        *explain(
            door["max_request_bytes"].reason,
            _refuse(
                413,
                f"the body may have {largest} bytes: got %[req.fhdr(content-length)]",
                f"if {{ req.hdr_val(content-length) gt {largest} }}",
            ),
        ),
        *explain(
            f"the deadline, in ms from here on: {door['deadline_ms'].reason}",
            f"http-request set-var(txn.deadline) int({door['deadline_ms'].value})",
            f"http-request set-var(txn.deadline) {deadline},add(0) if {{ {deadline} -m found }}",
        ),
        *explain(
            door["largest_deadline_ms"].reason,
            _refuse(
                400,
                f"X-Deadline-Ms must be 1 to {longest}, in ms: got %[{deadline},bytes(0,40),json(utf8ps)]",
                f"if {{ {deadline} -m found }} !{{ {deadline} -m reg ^[0-9]{{1,6}}$ }} or "
                f"!{{ var(txn.deadline) -m int 1:{longest} }}",
            ),
        ),
        *explain(
            "a header by which TorchServe asks a worker to describe itself",
            "http-request del-header describe",
        ),
    ]


def render_supervisor(files: DoorFiles) -> list[str]:
    """Who tells the truth about health."""
    return [
        "backend supervisor from common",
        *explain(
            "a question, without a body",
            _refuse(405, "health is asked for with GET", "unless { method GET HEAD }", 'allow "GET, HEAD"'),
        ),
        *explain(
            "a supervisor that is gone or hangs is a server that is not ready",
            "retries 0",
            "timeout connect 1s",
            "timeout server 2s",
            "http-error "
            + render_refusal(
                503, "the supervisor does not run: nobody knows whether the server is well", RETRY_AFTER
            ),
            "http-error "
            + render_refusal(504, "the supervisor does not answer: nobody knows whether the server is well"),
            f"server supervisor {quote('unix@' + files.supervisor_socket)}",
        ),
    ]


def render_metrics(plan: Plan) -> list[str]:
    """HAProxy's own figures."""
    return [
        "frontend metrics from common",
        *explain(
            "PORT + 2, on loopback: Prometheus metrics of the door",
            f"bind {HOST}:{plan.inputs.port + METRICS_OFFSET}",
        ),
        *explain("a few scrapers", "maxconn 20"),
        *explain(
            "HAProxy's exporter",
            "http-request use-service prometheus-exporter if { path /metrics }",
            _refuse(404, "nothing is served there: get /metrics", "unless { path /metrics }"),
        ),
    ]
