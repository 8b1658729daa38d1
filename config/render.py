"""Plan to text and files: config.properties, haproxy.cfg, and what `make plan` prints (templates/)."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta

from config import plan as plans
from config import protocols, proxy
from config.files import render_id_list
from config.folders import PLAN_FILE, claim_run_folder, write_text_atomically
from config.plan import INSTANCES_FOLDER, InstancePlan, ModelPlan, Plan
from handlers.backends.catalogue import DEFAULT, name_variant

WIDTH = 100
INDENT = "    "
_IN_MODELS = ("workers", "batch_size", "max_batch_delay_ms", "response_timeout_s", "startup_timeout_s")
_TEMPLATES = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
_JINJA = jinja2.Environment(
    loader=_TEMPLATES, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


def render_properties(plan: Plan, instance: str) -> str:
    """The text of an instance's config.properties; ValueError for a planned key that the template lacks."""
    own, template = plan.instances[instance], f"{plans.PROPERTIES_FILE}.j2"
    values = {**own.properties, "models": _render_models(own.models), "vmargs": " ".join(own.java.flags)}
    source, _, _ = _TEMPLATES.get_source(_JINJA, template)
    if unknown := values.keys() - meta.find_undeclared_variables(_JINJA.parse(source)):
        raise ValueError(
            f"{template} must have a line for each planned key: add {', '.join(sorted(unknown))}"
        )
    text = _JINJA.get_template(template).render({key: escape_value(value) for key, value in values.items()})
    reasons = _list_reasons(plan, instance)
    lines = (explain(reasons.get(line.partition("=")[0], "")) + line for line in text.splitlines())
    return "\n".join(lines) + "\n"


def _render_models(models: Mapping[str, ModelPlan]) -> str:
    """The key `models`: TorchServe's own names, by model and version (its Model.java)."""
    named = {
        name: {
            version: {
                "defaultVersion": version == model.version, "marName": Path(archive).name,
                "minWorkers": model.workers, "maxWorkers": model.workers,
                "batchSize": model.batch_size, "maxBatchDelay": model.max_batch_delay_ms,
                "responseTimeout": model.response_timeout_s, "startupTimeout": model.startup_timeout_s,
            }
            for version, archive in sorted(model.archives.items())
        }
        for name, model in sorted(models.items())
    }  # fmt: skip
    return json.dumps(named, separators=(",", ":"))


def _list_reasons(plan: Plan, instance: str) -> dict[str, str]:
    """By key of config.properties; `models` and vmargs have those of the values that they are made of."""
    keys = {"java": "vmargs", **dict.fromkeys(plan.instances[instance].models, "models")}
    reasons: dict[str, list[str]] = {}
    for path, reason in sorted(plan.reasons.items()):
        owner, _, field = path.removeprefix(f"{instance}.").rpartition(".")
        if owner == "properties":
            reasons.setdefault(field, []).append(reason)
        elif owner in keys and (owner == "java" or field in _IN_MODELS):
            reasons.setdefault(keys[owner], []).append(f"{owner} {field}: {reason}")
    return {key: "; ".join(parts) for key, parts in reasons.items()}


def escape_value(value: str) -> str:
    """As java.util.Properties reads it: Latin-1, backslash escapes, all beyond ASCII as UTF-16 codes."""
    text = value.replace("\\", "\\\\")
    if text.startswith(" "):
        text = "\\" + text
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if 32 <= code < 127 else f"\\u{code:04x}" for code in codes)


def render_proxy(plan: Plan) -> str:
    """The text of haproxy.cfg."""
    files, places = proxy.ProxyFiles.of(Path(plan.run_dir)), proxy.INSTANCE_NAMES
    if unknown := plan.instances.keys() - places:
        raise ValueError(f"instances must be of {', '.join(places)}: got {', '.join(sorted(unknown))}")
    return _JINJA.get_template(f"{plans.PROXY_FILE}.j2").render(
        plan=plan,
        files=files,
        places=places,
        paths={name: _list_paths(plan, name) for name in plan.models},
        asked=" ".join(protocols.list_asked(plan)),
        protocols=[*_list_protocols(plan)],
        probes=protocols.PROBES,
        queue_socket=lambda model: f"unix@{files.sockets}/{model}.sock",
        instance_socket=lambda name: f"unix@{proxy.find_socket(_find_folder(plan, name), 'inference')}",
        address=proxy.render_address,
        reason=lambda path: explain(plan.reasons.get(path, ""), INDENT),
    )


def _list_paths(plan: Plan, name: str) -> str:
    return " ".join(path for path, _ in protocols.list_routes(plan, name))


def _list_protocols(plan: Plan) -> Iterator[tuple[str, str]]:
    """(Protocol, its paths), but the kit's own."""
    found: dict[str, list[str]] = {}
    for name in plan.models:
        for path, route in protocols.list_routes(plan, name):
            found.setdefault(route.protocol, []).append(path)
    yield from ((protocol, " ".join(paths)) for protocol, paths in found.items() if protocol)


def quote(text: str) -> str:
    """One argument of HAProxy, taken as it is: no blank ends it, no variable of the environment comes in."""
    for special in ("\\", '"', "$"):
        text = text.replace(special, f"\\{special}")
    return f'"{text}"'


def render_error(status: int, text: str, *headers: str) -> str:
    """Arguments of an error response in the kit's form. `text` and the headers' values are log formats:
    %[sample] is replaced, and a % that is meant is written twice."""
    body = quote(json.dumps({"code": status, "error": text}, ensure_ascii=False))
    named = " ".join(f"hdr {header}" for header in ("x-request-id %[unique-id]", *headers))
    return f'status {status} content-type application/json lf-string {body[:-1]}\\n" {named}'


def explain(reason: str, indent: str = "") -> str:
    """A reason as comment, and the indentation of the line below; nothing where there is none."""
    lines = textwrap.wrap(f"# {reason}", WIDTH, subsequent_indent="#   ", break_on_hyphens=False)
    return "".join(f"{line}\n{indent}" for line in lines if reason)


def describe_plan(plan: Plan) -> str:
    """What `make plan` prints, with reasons; instances that are equal but for ports and CPUs once."""
    groups: dict[str, dict[str, InstancePlan]] = {}
    for name, own in plan.instances.items():
        alike = dict.fromkeys(("port", "cpus", "worker_cpus", "memory_nodes", "server_cpus", "properties"))
        groups.setdefault(repr({**vars(own), **alike}), {})[name] = own
    return _JINJA.get_template("plan.txt.j2").render(
        plan=plan, groups=groups.values(), rows=functools.partial(_render_rows, plan)
    )


def _render_rows(plan: Plan, sections: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Values of the first section, which is named as in plan.reasons; where another differs, of each."""
    first = next(iter(sections))
    explained = {path.removeprefix(f"{first}.") for path in plan.reasons if path.startswith(f"{first}.")}
    shown = {path: _show_fields(one, fields, explained) for path, one in sections.items()}
    rows: list[str] = []
    for key, value in shown[first].items():
        if any(values.get(key) != value for values in shown.values()):
            value = "; ".join(f"{path}: {values.get(key)}" for path, values in shown.items())
        reason = plan.reasons.get(f"{first}.{key}")
        text = f"  {key:<22}  {value}" + f"  # {reason}" * bool(reason)
        rows += textwrap.wrap(text, WIDTH, subsequent_indent=" " * 26, break_on_hyphens=False)
    return "\n".join(rows)


def _show_fields(section: Any, fields: Sequence[str], explained: Collection[str]) -> dict[str, str]:
    """Field → value, without empty ones. Entries of a mapping with a reason have a line of their own;
    properties without are left out: they are the same in every plan."""
    shown: dict[str, str] = {}
    for name in fields:
        value = getattr(section, name)
        inner = vars(value) if dataclasses.is_dataclass(value) else value
        if isinstance(inner, Mapping):
            own = {f"{name}.{key}": _show(one) for key, one in inner.items() if f"{name}.{key}" in explained}
            rest = [f"{key}={_show(one)}" for key, one in inner.items() if f"{name}.{key}" not in own]
            shown |= {name: " ".join(rest), **own} if rest and name != "properties" else own
        elif inner not in ("", ()):
            shown[name] = _show(inner)
    return shown


def _show(value: Any) -> str:
    """Numbers of CPUs as the kernel writes lists, ranks with bars between; once where they are equal."""
    if not isinstance(value, tuple):
        return "-" if value is None else str(value)
    if all(isinstance(one, int) for one in value):
        return render_id_list(value)
    parts = list(map(_show, value))
    return parts[0] if len(set(parts)) == 1 else (" " if isinstance(value[0], str) else " | ").join(parts)


def summarize(plan: Plan) -> str:
    """The one line that planning ends with."""
    count, unpinned = len(plan.instances), [name for name, one in plan.instances.items() if not one.pinned]
    reasons = [plan.reasons.get(f"{name}.{field}") for name in unpinned for field in ("pinned", "launched")]
    cores = min(one.cores_per_worker for one in plan.instances.values())
    parts = [
        f"planned: {', '.join(plan.models)}",
        f"workers {_join({name: str(plan.count_workers(name)) for name in plan.models})} × cores {cores}",
        *[f"NOT PINNED: {next(filter(None, reasons), unpinned[0])}" for _ in unpinned[:1]],
        _join({name: name_computing(model) for name, model in plan.models.items()}),
        plan.libraries.allocator,
        f"{plan.libraries.openmp} OpenMP",
        f"{count} instance{'s' * (count > 1)} behind HAProxy on port {plan.proxy.port}"
        + " with TLS" * bool(plan.proxy.tls_cert),
    ]
    return " · ".join(parts)


def _join(values: Mapping[str, str]) -> str:
    """Once where they are the same."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{name} {value}" for name, value in values.items())


def name_computing(model: ModelPlan) -> str:
    """Its precision, with its backend where that is not the default."""
    if not model.kit:
        return "as archived"
    return model.precision if model.backend == DEFAULT else name_variant(model.backend, model.precision)


def write_plan_files(plan: Plan, folder: Path | None = None) -> None:
    """All that a start reads: haproxy.cfg and plan in `folder`, by default the run directory, and instances'
    own files. Nothing where a folder is somebody else's; the plan last: a start goes by it. The caller holds
    the lock. Folders of instances that are no longer planned are left: only `server` knows if one runs."""
    folders = {name: _find_folder(plan, name) for name in plan.instances}
    for own in (Path(plan.run_dir), *folders.values()):
        claim_run_folder(own)
    for name, own in folders.items():
        write_text_atomically(own / plans.PROPERTIES_FILE, render_properties(plan, name))
    folder = folder or Path(plan.run_dir)
    write_text_atomically(folder / plans.PROXY_FILE, render_proxy(plan))
    plans.write_plan(plan, folder / PLAN_FILE)


def write_next(plan: Plan) -> None:
    """For a reload: what it moves to the run directory later is in a folder of its own."""
    folder = Path(plan.run_dir) / plans.NEXT_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_plan_files(plan, folder)


def _find_folder(plan: Plan, instance: str) -> Path:
    return Path(plan.run_dir) / INSTANCES_FOLDER / instance


_JINJA.filters |= {"quote": quote, "variable": '"${{{}}}"'.format, "id_list": render_id_list}
_JINJA.globals |= {"error": render_error, "name_computing": name_computing, "kit": proxy}
