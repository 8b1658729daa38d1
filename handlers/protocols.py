"""Standard protocols over a handler's own requests: one reader of bodies, one writer of answers.

The reverse proxy says in a header which protocol an address has (config/protocols.py). A request is taken
apart into items, each of which the handler decodes as a request of its own; they are rows of one batch, and
an item that is wrong fails its request with a 4xx that names it.

- `v2`: Open Inference Protocol v2 over REST (github.com/kserve/open-inference-protocol), with Triton's binary
  tensor extension (github.com/triton-inference-server/server: extension_binary_data.md).
- `v1`: KServe's and TensorFlow Serving's `{"instances": […]}`.
- `openai`: POST /v1/embeddings of OpenAI's API reference.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.definition import MODEL_VERSION
from handlers.replies import to_json
from handlers.request import Request, decode_base64
from handlers.shared.errors import BadRequest

V1, V2, OPENAI = "v1", "v2", "openai"
MOST_ITEMS = 32
"""Of one request, or as many as the model takes texts (Task.max_inputs)."""
MOST_INPUTS, MOST_DIMENSIONS, MOST_NUMBERS = 64, 8, 4_000_000
"""Tensors of a request; dimensions and elements of one: a small body could name many, at a cost for each."""
MOST_VALUES = 82_000
"""Of a request's JSON, as for texts: some 16 MB once it is parsed."""
PLAIN = "text/plain"
"""Bytes of an item are the image or the text itself, also where they look like JSON."""
NUMBERS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""Datatype of the protocol → struct's letter; little-endian on the wire."""
BYTES = "BYTES"
ANSWER = "answer"
"""Output of what has no table: each item's answer as JSON."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request of a protocol."""

    items: Sequence[Request]
    render: Callable[[Sequence[Any], Sequence[Any]], tuple[bytes, Mapping[str, str]]]
    """(Answers, samples) of all items → body, and headers besides."""


def open_call(request: Request, *, name: str, most: int = MOST_ITEMS) -> Call:
    """For a request that has a protocol, of at most so many items; BadRequest for what is wrong. `name`: the
    model's."""
    if request.protocol == V2:
        return _open_v2(request, name, most)
    call = {V1: _open_v1, OPENAI: _open_openai}[request.protocol](request, name)
    _check_items(len(call.items), most)
    return call


def _check_items(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise BadRequest(400, f"a request must have 1 to {most} items: got {count}")


# ---- KServe v1


def _open_v1(request: Request, name: str) -> Call:
    wanted = '{"instances": […]}'
    body = request.json(wanted=wanted, max_values=MOST_VALUES)
    instances = body.get("instances")
    if not isinstance(instances, list):
        raise BadRequest(400, f'"instances" must be a list: got {type(instances).__name__}; send {wanted}')
    items = [_to_item(one, f"instances[{number}]") for number, one in enumerate(instances)]
    return Call(items=items, render=lambda answers, _: (to_json({"predictions": [*answers]}), {}))


def _to_item(value: Any, place: str) -> Request:
    """A text, {"b64": …} for bytes, or a JSON object as /predictions takes it."""
    if isinstance(value, str):
        return Request(content=value, content_type=PLAIN)
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return Request(content=decode_base64(value["b64"], field=f"{place}.b64"), content_type=PLAIN)
    if isinstance(value, dict):
        return Request(content=value)
    raise BadRequest(
        400, f'{place} must be a string, {{"b64": "…"}} or an object: got {type(value).__name__}'
    )


# ---- OpenAI's embeddings


def _open_openai(request: Request, name: str) -> Call:
    wanted = '{"model": "…", "input": ["…"]}'
    body = request.json(wanted=wanted, max_values=MOST_VALUES)
    if (asked := body.get("model")) != name:
        raise BadRequest(404, f'"model" must be {name}: got {str(asked)[:40]}')
    given, form = body.get("input"), body.get("encoding_format", "float")
    texts = given if isinstance(given, list) else [given]
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise BadRequest(400, f"input[{number}] must be a text that is not empty; tokens are not taken")
    if form not in ("float", "base64"):
        raise BadRequest(400, f'"encoding_format" must be float or base64: got {str(form)[:40]}')
    if body.get("dimensions") is not None:
        raise BadRequest(400, '"dimensions" cannot be chosen: leave it out')

    def render(answers: Sequence[Any], samples: Sequence[Any]) -> tuple[bytes, Mapping[str, str]]:
        vectors = [answer["embedding"] for answer in answers]
        shown = [_to_base64(one) for one in vectors] if form == "base64" else vectors
        data = [{"object": "embedding", "index": place, "embedding": one} for place, one in enumerate(shown)]
        tokens = sum(len(sample.ids) for sample in samples)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return to_json({"object": "list", "data": data, "model": name, "usage": usage}), {}

    return Call(
        items=[Request(content=text, content_type=PLAIN) for text in texts],
        render=render,
    )


def _to_base64(vector: Sequence[float]) -> str:
    return base64.b64encode(_pack("FP32", vector)).decode()


# ---- Open Inference Protocol v2


@dataclass(frozen=True, kw_only=True)
class Column:
    """One output of all items."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    """The first dimension is the items'."""
    data: Sequence[Any]
    """Flat, in row-major order."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def _open_v2(request: Request, name: str, most: int) -> Call:
    body, tail = _split_binary(request)
    inputs = body.get("inputs")
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= MOST_INPUTS:
        raise BadRequest(400, f'"inputs" must be a list of 1 to {MOST_INPUTS} tensors')
    rows = dict(_read_inputs(inputs, tail, most))
    if len(rows) != len(inputs):
        raise BadRequest(400, "two of the inputs have the same name")
    counts = {len(values) for values in rows.values()}
    if len(counts) > 1:
        raise BadRequest(400, f"all inputs must have the same first dimension: got {sorted(counts)}")
    items = [
        _make_item({key: values[place] for key, values in rows.items()}) for place in range(counts.pop())
    ]
    asked, binary = _read_outputs(body)

    def render(answers: Sequence[Any], _: Sequence[Any]) -> tuple[bytes, Mapping[str, str]]:
        columns = tabulate(answers)
        named = {column.name: column for column in columns}
        if ANSWER in asked:
            named.setdefault(ANSWER, _write_answers(answers))
        if unknown := [one for one in asked if one not in named]:
            raise BadRequest(400, f"outputs must be among {', '.join(named)}: got {unknown[0][:40]}")
        chosen = [named[one] for one in asked] or columns
        identity = {"id": body["id"]} if isinstance(body.get("id"), str) else {}
        head = {"model_name": name, "model_version": MODEL_VERSION, **identity}
        return _render_v2(head, chosen, {one.name for one in chosen if asked.get(one.name, binary)})

    return Call(items=items, render=render)


def _split_binary(request: Request) -> tuple[dict[str, Any], bytes]:
    """JSON, and the tensors behind it."""
    wanted = '{"inputs": [{"name": …, "shape": […], "datatype": …, "data": […]}]}'
    if not request.json_bytes:
        return request.json(wanted=wanted, max_values=MOST_VALUES), b""
    data = request.data or b""
    given = request.json_bytes
    if not (given.isascii() and given.isdecimal() and len(given) < 10) or int(given) > len(data):
        raise BadRequest(400, f"Inference-Header-Content-Length must be 0 to {len(data)}, the body's length")
    size = int(given)
    head = Request(content=data[:size], content_type="application/json")
    return head.json(wanted=wanted, max_values=MOST_VALUES), data[size:]


def _read_inputs(inputs: Sequence[Any], tail: bytes, most: int) -> Iterator[tuple[str, list[Any]]]:
    """(Name, a value for each item)."""
    place = 0
    for number, one in enumerate(inputs):
        where = f"inputs[{number}]"
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise BadRequest(400, f"{where} must be an object with a name")
        shape, kind = one.get("shape"), one.get("datatype")
        if (
            not isinstance(shape, list)
            or not 1 <= len(shape) <= MOST_DIMENSIONS
            or not all(type(n) is int and 0 <= n <= MOST_NUMBERS for n in shape)
        ):
            raise BadRequest(
                400, f"{where}.shape must be 1 to {MOST_DIMENSIONS} whole numbers of 0 to {MOST_NUMBERS}; "
                "the first counts the items"
            )  # fmt: skip
        _check_items(shape[0], most)
        count = math.prod(shape)
        if count > MOST_NUMBERS:
            raise BadRequest(413, f"{where}: a tensor has at most {MOST_NUMBERS} elements: got {count}")
        if not isinstance(kind, str) or (kind != BYTES and kind not in NUMBERS):
            raise BadRequest(400, f"{where}.datatype must be {BYTES} or one of {', '.join(NUMBERS)}")
        parameters = {} if one.get("parameters") is None else one["parameters"]
        if not isinstance(parameters, dict):
            raise BadRequest(400, f"{where}.parameters must be an object")
        size = parameters.get("binary_data_size")
        if size is None:
            values = _read_data(one.get("data"), kind, count, where)
            if kind == BYTES and parameters.get("content_type") == "base64":
                values = [decode_base64(value, field=f"{where}.data") for value in values]
        else:
            if type(size) is not int or not 0 <= size <= len(tail) - place:
                raise BadRequest(
                    400, f"{where}: binary_data_size must be bytes that follow the JSON: got {str(size)[:40]}"
                )
            values, place = _read_binary(tail[place : place + size], kind, count, where), place + size
        per_item = count // shape[0]
        rows = [values[item * per_item : (item + 1) * per_item] for item in range(shape[0])]
        yield one["name"], [_shape(row, shape[1:], kind) for row in rows]
    if place != len(tail):
        raise BadRequest(400, f"{len(tail) - place} bytes follow the last tensor")


def _read_data(data: Any, kind: str, count: int, where: str) -> list[Any]:
    """Flat, from a flat or nested list."""
    values: list[Any] = []
    left = [data]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += reversed(one)
        else:
            values.append(one)
    what = "strings" if kind == BYTES else f"values of {kind}"
    if not isinstance(data, list) or len(values) != count:
        got = len(values) if isinstance(data, list) else type(data).__name__
        raise BadRequest(400, f"{where}.data must be a list of {count} {what}, as its shape says: got {got}")
    if not {type(one) for one in values} <= _find_types(kind) or not _fits(kind, values):
        raise BadRequest(400, f"{where}.data must be {what} alone")
    return values


def _find_types(kind: str) -> set[type]:
    """As JSON has them."""
    if kind in (BYTES, "BOOL"):
        return {str if kind == BYTES else bool}
    return {int, float} if kind.startswith("FP") else {int}


def _fits(kind: str, values: Sequence[Any]) -> bool:
    try:
        _pack(kind, values)
    except (struct.error, OverflowError, UnicodeEncodeError):
        return False
    return all(map(math.isfinite, values)) if kind.startswith("FP") else True


def _pack(kind: str, values: Sequence[Any]) -> bytes:
    if kind != BYTES:
        return struct.pack(f"<{len(values)}{NUMBERS[kind]}", *values)
    parts = [str(value).encode() for value in values]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def _read_binary(data: bytes, kind: str, count: int, where: str) -> list[Any]:
    if kind != BYTES:
        if len(data) != count * struct.calcsize(NUMBERS[kind]):
            raise BadRequest(400, f"{where}: {len(data)} bytes are not {count} of {kind}")
        return [*struct.unpack(f"<{count}{NUMBERS[kind]}", data)]
    values: list[bytes] = []
    place = 0
    while place + 4 <= len(data) and len(values) < count:
        (size,) = struct.unpack_from("<I", data, place)
        values.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    if place != len(data) or len(values) != count:
        raise BadRequest(
            400, f"{where}: its bytes are not {count} elements, each behind its length (4 bytes)"
        )
    return values


def _shape(values: list[Any], shape: Sequence[int], kind: str) -> Any:
    """Nested lists; a single value where the item has no dimensions of its own, of bytes also where it has
    only ones of 1."""
    if not shape or (kind == BYTES and all(size == 1 for size in shape)):
        return values[0]
    for size in reversed(shape[1:]):
        values = [values[place : place + size] for place in range(0, len(values), size)] if size else []
    return values


def _make_item(row: Mapping[str, Any]) -> Request:
    """One input of bytes is the body itself; others are fields of an object."""
    if len(row) == 1:
        (value,) = row.values()
        if isinstance(value, (str, bytes)):
            return Request(content=value, content_type=PLAIN)
    return Request(content={key: _to_text(value) for key, value in row.items()})


def _to_text(value: Any) -> Any:
    """Bytes as texts, in lists too."""
    if isinstance(value, list):
        return [_to_text(one) for one in value] if value and isinstance(value[0], (bytes, list)) else value
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise BadRequest(400, f"a text must be UTF-8: {error.reason} at byte {error.start}") from None


def _read_outputs(body: Mapping[str, Any]) -> tuple[dict[str, bool], bool]:
    """Name → whether as bytes, of the outputs that are asked for; and whether all others are."""
    parameters = body.get("parameters") or {}
    default = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    asked: dict[str, bool] = {}
    outputs = body.get("outputs") or []
    if not isinstance(outputs, list):
        raise BadRequest(400, '"outputs" must be a list')
    for one in outputs:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise BadRequest(400, "each of outputs must be an object with a name")
        own = one.get("parameters") or {}
        asked[one["name"]] = bool(own.get("binary_data", default)) if isinstance(own, dict) else default
    return asked, default


def tabulate(answers: Sequence[Any]) -> list[Column]:
    """Answers of a handler, one an item, as tensors: what all of them have by one name in one shape. What is
    left stands in the output `answer`, as JSON."""
    columns: list[Column] = []
    whole = True
    tables = [one if isinstance(one, list) else [one] for one in answers]
    lengths = {len(table) for table in tables}
    rows = [row for table in tables for row in table]
    if len(lengths) == 1 and rows and all(isinstance(row, dict) for row in rows):
        nested = (lengths.pop(),) if isinstance(answers[0], list) else ()
        names = [name for name in rows[0] if all(name in row for row in rows)]
        for name in names:
            column = _make_column(name, [row[name] for row in rows], (len(answers), *nested))
            whole = whole and column is not None
            columns += [column] if column else []
        whole = whole and all(len(row) == len(names) for row in rows)
    else:
        whole = False
    return columns if whole else [*columns, _write_answers(answers)]


def _write_answers(answers: Sequence[Any]) -> Column:
    texts = [to_json(answer).decode().rstrip("\n") for answer in answers]
    return Column(name=ANSWER, datatype=BYTES, shape=(len(answers),), data=texts)


def _make_column(name: str, values: Sequence[Any], shape: tuple[int, ...]) -> Column | None:
    parameters: dict[str, Any] = {}
    if all(isinstance(value, dict) for value in values):  # a number for each label
        labels = [*values[0]]
        if any([*value] != labels for value in values):
            return None
        values, parameters = [[*value.values()] for value in values], {"labels": labels}
    if all(isinstance(value, list) for value in values):
        lengths = {len(value) for value in values}
        # How many texts a list has is the answer's: some inputs have several labels, others none.
        if len(lengths) != 1 or any(isinstance(one, str) for value in values for one in value):
            return None
        shape, values = (*shape, lengths.pop()), [one for value in values for one in value]
    kinds = {type(value) for value in values}
    datatype = {
        frozenset({bool}): "BOOL", frozenset({int}): "INT64", frozenset({float}): "FP32",
        frozenset({int, float}): "FP32", frozenset({str}): BYTES,
    }.get(frozenset(kinds))  # fmt: skip
    if datatype is None or not _fits(datatype, values):
        return None
    return Column(name=name, datatype=datatype, shape=shape, data=values, parameters=parameters)


def _render_v2(
    head: Mapping[str, Any], columns: Sequence[Column], binary: set[str]
) -> tuple[bytes, Mapping[str, str]]:
    outputs, tensors = [], []
    for one in columns:
        told: dict[str, Any] = {"name": one.name, "datatype": one.datatype, "shape": [*one.shape]}
        parameters = dict(one.parameters)
        if one.name in binary:
            data = _pack(one.datatype, one.data)
            tensors.append(data)
            parameters["binary_data_size"] = len(data)
        else:
            told["data"] = [*one.data]
        outputs.append({**told, **({"parameters": parameters} if parameters else {})})
    text = to_json({**head, "outputs": outputs})
    if not tensors:
        return text, {}
    headers = {"Inference-Header-Content-Length": str(len(text)), "Content-Type": "application/octet-stream"}
    return b"".join((text, *tensors)), headers


def describe_outputs(answer: Any) -> list[dict[str, Any]]:
    """Of a model's metadata: name, datatype and shape (-1: the items) of what an answer to one item has."""
    return [
        {"name": one.name, "datatype": one.datatype, "shape": [-1, *one.shape[1:]]}
        for one in tabulate([answer])
    ]
