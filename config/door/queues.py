"""Per model: the last of the first hop, and the second hop, where requests wait for an instance."""

from __future__ import annotations

from collections.abc import Iterator

from config.door.entrance import render_large
from config.door.process import (
    RETRY_AFTER,
    DoorFiles,
    explain,
    name_prediction,
    name_state,
    quote,
    render_refusal,
)
from config.plan import Plan, Setting
from config.rules.door import list_places
from config.rules.network import find_instance_socket

HOW_SMALL = 'check "${{' + name_state("{instance}") + '}}"'
"""Asked whether it lives; disabled or enabled by a variable: HAProxy begins with what it ended with."""
FORM_TYPE = "x-multipart/"
"""As the handlers know it (handlers/request.py)."""
RETRY_ON = "conn-failure empty-response junk-response 500 502 503"

WORKER_DIED = explain(
    "TorchServe's 507: a worker without launcher was killed with this request; HAProxy cannot retry on it",
    "http-response return "
    + render_refusal(
        503, "the worker that had this request ended before it had answered; try again", RETRY_AFTER
    )
    + " if { status 507 }",
    f"http-response set-header {RETRY_AFTER} if {{ status 503 }}",
)


def render_entries(plan: Plan, model: str, files: DoorFiles) -> Iterator[list[str]]:
    """The end of the first hop, for small and for large requests: refuses what cannot be answered in time."""
    us, ms = name_prediction(model, "us"), name_prediction(model, "ms")
    slots = sum(_maxconn(plan, model, name, "large_maxconn") for name in _list_serving(plan, model))
    yield [
        f"backend {model}.door from predictions",
        *_render_places(plan.door["places"], f"{model}.door", "requests"),
        *explain(
            "what could only be answered late is refused at once: who waits before it, each so many us, and "
            "its own time",
            f"http-request set-var(txn.wait) queue({model}),mul({us}),div(1000),add({ms})",
            *_refuse_late(model),
        ),
        *_render_handover(model, files),
    ]
    yield [
        f"backend {model}.large.door from predictions",
        *_render_places(plan.door["large_places"], f"{model}.large.door", "large requests"),
        *explain(
            f"the same of large ones, of which {slots} are in instances at a time",
            f"http-request set-var(txn.wait) queue({model}.large),mul({ms}),div({slots}),add({ms})",
            *_refuse_late(f"{model}.large"),
        ),
        *_render_handover(model, files),
    ]


def _render_places(places: Setting, backend: str, what: str) -> list[str]:
    condition = f"if {{ be_conn({backend}) gt {places.value} }}"
    return explain(places.reason, _refuse(f"too many {what} wait; try again", condition))


def _refuse_late(backend: str) -> tuple[str, ...]:
    """Where none waits none is refused: the figures would never be learnt anew."""
    text = (
        "%[var(txn.wait)] ms until an answer, by what waits, and %[var(txn.deadline)] ms to the deadline; "
        "try again later, or allow more time with the header X-Deadline-Ms"
    )
    return (_refuse(text, f"if {{ var(txn.wait),sub(txn.deadline) gt 0 }} {{ queue({backend}) gt 0 }}"),)


def _render_handover(model: str, files: DoorFiles) -> list[str]:
    return [
        *explain(
            "by then there is an answer, or 504; counted from the head of the request, whether bytes still "
            "move or not",
            "option independent-streams",
            "http-request set-timeout server var(txn.deadline)",
        ),
        *explain(
            "the same time, for the queue", "http-request set-header x-kit-deadline-ms %[var(txn.deadline)]"
        ),
        *explain(
            "the path as planned: nothing of the client's is interpreted twice",
            f"http-request set-uri /predictions/{model}",
        ),
        *explain("the second hop", f"server queue {_socket(model, files)}"),
    ]


def render_queue(plan: Plan, model: str, files: DoorFiles) -> Iterator[list[str]]:
    """The second hop."""
    yield _render_frontend(plan, model, files)
    yield _render_backend(plan, model)
    yield _render_large(plan, model)


def _render_frontend(plan: Plan, model: str, files: DoorFiles) -> list[str]:
    longest = plan.door["largest_deadline_ms"].value + 10_000
    return [
        f"frontend {model}.queue from common",
        *explain("from the first hop alone", f"bind {_socket(model, files)} mode 600"),
        *explain("the first hop's deadline ends a request, not this", f"timeout client {longest}ms"),
        *explain("as the first hop named it", "unique-id-format %[req.hdr(x-request-id)]"),
        *explain(
            "the earliest deadline first: the queue is in the order of now + this, in ms",
            "http-request set-priority-offset req.hdr(x-kit-deadline-ms),add(0)",
            "http-request del-header x-kit- -m beg",
        ),
        *explain("what untrusted clients show is not passed on", "http-request del-header authorization"),
        *explain(
            "a form reaches the handler whole: TorchServe would keep the last of several fields of one name",
            f"http-request replace-header content-type ^[^/]*/(.*)$ {FORM_TYPE}\\1 "
            "if { req.fhdr(content-type) -m beg -i multipart/ }",
        ),
        *explain(
            "a small body is whole before it waits: a slow one takes nobody's slot, and it can be sent again",
            *render_large(plan),
            f"http-request wait-for-body time {plan.door['body_s'].value}s unless large",
        ),
        *explain("large ones have slots of their own", f"use_backend {model}.large if large"),
        f"    default_backend {model}",
    ]


def _render_backend(plan: Plan, model: str) -> list[str]:
    door = plan.door
    return [
        f"backend {model} from common",
        *explain("to the instance with the fewest in hand", "balance leastconn"),
        *explain(
            f"predictions can be asked for twice: once more, elsewhere, when an instance ends or fails; "
            f"{door['retries'].reason}",
            f"retries {door['retries'].value}",
            "option redispatch 1",
            f"retry-on {RETRY_ON}",
        ),
        *explain(
            "does the JVM live? Whether its workers are well is the supervisor's to know",
            "option httpchk",
            "http-check send meth GET uri /ping ver HTTP/1.1 hdr host localhost",
        ),
        *explain(
            f"{door['check_ms'].reason}; a port that is closed marks it down at once, so that the next try "
            "goes elsewhere; sessions of a hung one are not cut: the supervisor ends it, and they are "
            "tried again",
            f"default-server inter {door['check_ms'].value}ms fastinter 200ms fall 2 rise 1 "
            "observe layer4 error-limit 1 on-error mark-down",
        ),
        *WORKER_DIED,
        *_render_servers(plan, model, "maxconn", HOW_SMALL),
    ]


def _render_large(plan: Plan, model: str) -> list[str]:
    return [
        f"backend {model}.large from common",
        *explain("as the small ones", "balance leastconn"),
        *explain(
            "a body that has passed on its way to an instance cannot be sent again; only a connection can be "
            "tried elsewhere",
            f"retries {plan.door['retries'].value}",
            "option redispatch 1",
        ),
        *WORKER_DIED,
        *_render_servers(plan, model, "large_maxconn", f"track {model}/{{instance}}"),
    ]


def _render_servers(plan: Plan, model: str, slots: str, how: str) -> list[str]:
    """A line for each instance that serves the model, and for each that a reload may start."""
    lines = []
    for instance in _list_serving(plan, model):
        lines += explain(
            plan.door[f"{model}.{instance}.{slots}"].reason,
            f"server {instance} {_instance_socket(plan, instance)} "
            f"maxconn {_maxconn(plan, model, instance, slots)} {how.format(instance=instance)}",
        )
    spare = [name for name, _ in list_places(plan.inputs) if name not in _list_serving(plan, model)]
    return [
        *lines,
        *explain(
            "what a reload may start instead; told then how many requests it is handed at once",
            *(
                f"server {name} {_instance_socket(plan, name)} maxconn 1 {how.format(instance=name)}"
                for name in spare
            ),
        ),
    ]


def _list_serving(plan: Plan, model: str) -> list[str]:
    return [name for name, instance in plan.instances.items() if model in instance.models]


def _maxconn(plan: Plan, model: str, instance: str, what: str) -> int:
    return int(plan.door[f"{model}.{instance}.{what}"].value)


def _refuse(text: str, condition: str) -> str:
    return f"http-request return {render_refusal(503, text, RETRY_AFTER)} {condition}"


def _socket(model: str, files: DoorFiles) -> str:
    return quote(f"unix@{files.sockets}/{model}.sock")


def _instance_socket(plan: Plan, instance: str) -> str:
    return quote(f"unix@{find_instance_socket(plan.inputs, instance)}")
