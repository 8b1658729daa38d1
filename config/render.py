"""Plan to text: config.properties, haproxy.cfg, what `make plan` prints, and the files of a run directory."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote as quote_url

import jinja2
from jinja2 import meta

from config.files import render_id_list
from config.folders import PLAN_FILE, claim_run_folder, write_text_atomically
from config.plan import (
    INSTANCES_FOLDER,
    NEXT_FOLDER,
    PROPERTIES_FILE,
    PROXY_FILE,
    InstancePlan,
    ModelPlan,
    Plan,
    write_plan,
)
from config.proxy import (
    ENDING,
    FORM_TYPE,
    LISTENER,
    ProxyFiles,
    find_socket,
    list_places,
    name_prediction,
    name_state,
)
from handlers.backends.catalogue import DEFAULT, name_variant

WIDTH = 100
INDENT = "    "
_IN_TITLE = ("kit", "backend", "precision")
_PROXY_SHOWN = (
    *("threads", "memory_mib", "connections", "places", "large_places", "max_request_bytes"),
    *("deadline_ms", "largest_deadline_ms", "retries"),
)


def find_folder(plan: Plan, instance: str) -> Path:
    """An instance's, whether it is there now or after a reload."""
    return Path(plan.run_dir) / INSTANCES_FOLDER / instance


def render_properties(plan: Plan, instance: str) -> str:
    """The text of an instance's config.properties; ValueError for a planned key that the template lacks."""
    own = plan.instances[instance]
    values = {**own.properties, "models": _render_models(own), "vmargs": " ".join(own.java.flags)}
    template = f"{PROPERTIES_FILE}.j2"
    source, _, _ = _TEMPLATES.get_source(_JINJA, template)
    if unknown := sorted(values.keys() - meta.find_undeclared_variables(_JINJA.parse(source))):
        raise ValueError(f"{template} must have a line for every planned key: got none for {', '.join(unknown)}")
    text = _JINJA.get_template(template).render({key: escape_value(value) for key, value in values.items()})
    lines: list[str] = []
    for line in text.splitlines():
        key = line.partition("=")[0]
        if key in values:
            reasons = _list_reasons(plan, instance, key)
            lines += [part for reason in reasons for part in explain(reason).splitlines()]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _render_models(instance: InstancePlan) -> str:
    """The key `models`: TorchServe's own names, by model and version (its Model.java)."""
    models = {
        name: {
            version: {
                "defaultVersion": version == model.version,
                "marName": Path(archive).name,
                "minWorkers": model.workers,
                "maxWorkers": model.workers,
                "batchSize": model.batch_size,
                "maxBatchDelay": model.max_batch_delay_ms,
                "responseTimeout": model.response_timeout_s,
                "startupTimeout": model.startup_timeout_s,
            }
            for version, archive in sorted(model.archives.items())
        }
        for name, model in sorted(instance.models.items())
    }
    return json.dumps(models, separators=(",", ":"))


def _list_reasons(plan: Plan, instance: str, key: str) -> Iterator[str]:
    """The plan's for a key; `models` and vmargs have those of the values that they are made of."""
    own = plan.instances[instance]
    parts = {"models": own.models, "vmargs": ["java"]}.get(key, [])
    for part in sorted(parts):
        prefix = f"{instance}.{part}."
        for path in sorted(plan.reasons):
            if path.startswith(prefix) and path.rpartition(".")[0] == prefix[:-1]:
                yield f"{path.removeprefix(f'{instance}.')}: {plan.reasons[path]}"
    if reason := plan.reasons.get(f"{instance}.properties.{key}"):
        yield reason


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
    files, models = ProxyFiles.of(Path(plan.run_dir)), plan.models
    paths = {name: _list_paths(name, model) for name, model in models.items()}

    def list_servers(model: str, serving: bool) -> list[dict[str, Any]]:
        """Of the instances that serve a model, or of those that may after a reload."""
        return [
            {
                "name": name,
                "socket": quote(f"unix@{find_socket(find_folder(plan, name), 'inference')}"),
                "planned": plan.instances[name].models[model] if serving else None,
                "state": name_state(name),
                "reasons": f"{name}.{model}",
            }
            for name, _ in list_places(plan)
            if (name in plan.list_serving(model)) == serving
        ]

    return _JINJA.get_template(f"{PROXY_FILE}.j2").render(
        proxy=plan.proxy,
        files=files,
        models=models,
        paths=paths,
        foreign_paths=" ".join(paths[name] for name, model in models.items() if not model.kit),
        servers=list_servers,
        queue_socket=lambda model: quote(f"unix@{files.sockets}/{model}.sock"),
        reason=lambda path: explain(plan.reasons.get(path, ""), INDENT),
    )


def _list_paths(name: str, model: ModelPlan) -> str:
    """Of a model's predictions: its default version's, and each version's."""
    versions = (f"/predictions/{name}/{quote_url(version, safe='')}" for version in sorted(model.archives))
    return " ".join([f"/predictions/{name}", *versions])


def quote(text: object) -> str:
    """One argument of HAProxy, taken as it is: no blank ends it, no variable of the environment comes in."""
    escaped = str(text)
    for special in ("\\", '"', "$"):
        escaped = escaped.replace(special, f"\\{special}")
    return f'"{escaped}"'


def read_variable(name: str) -> str:
    """The value of a variable of the environment, as one argument of HAProxy."""
    return f'"${{{name}}}"'


def render_error(status: int, text: str, *headers: str) -> str:
    """Arguments of an error response in the kit's form. `text` and the headers' values are log formats:
    %[sample] is replaced, and a % that is meant is written twice."""
    body = quote(json.dumps({"code": status, "error": text}, ensure_ascii=False))
    named = " ".join(f"hdr {header}" for header in ("x-request-id %[unique-id]", *headers))
    return f'status {status} content-type application/json lf-string {body[:-1]}\\n" {named}'


def explain(reason: str, indent: str = "") -> str:
    """A reason as comment, and the indentation of the line below; nothing where there is none."""
    lines = textwrap.wrap(reason, WIDTH, initial_indent="# ", subsequent_indent=f"{indent}#   ",
                          break_on_hyphens=False, break_long_words=False)  # fmt: skip
    return "".join(f"{line}\n" for line in lines) + (indent if lines else "")


_TEMPLATES = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
_JINJA = jinja2.Environment(
    loader=_TEMPLATES, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_JINJA.filters |= {"quote": quote, "variable": read_variable, "prediction": name_prediction}
_JINJA.globals |= {"error": render_error, "ENDING": ENDING, "FORM_TYPE": FORM_TYPE, "LISTENER": LISTENER}


def describe_plan(plan: Plan) -> str:
    """What `make plan` prints: machine, reverse proxy, libraries, instances and their models, with reasons."""
    scheme = "https" if plan.proxy.tls_cert else "http"
    proxy = {name: getattr(plan.proxy, name) for name in _PROXY_SHOWN}
    lines = [
        *("MACHINE", *_describe_machine(plan.machine)),
        *("", f"REVERSE PROXY (HAProxy) at {scheme}://{plan.proxy.host}:{plan.proxy.port}"),
        *_describe(plan, {"proxy": proxy}),
        *("", "LIBRARIES that the workers preload", *_describe(plan, {"libraries": vars(plan.libraries)})),
    ]
    for names in _group_instances(plan):
        lines += ["", f"INSTANCE{'S' * (len(names) > 1)} {', '.join(names)}"]
        lines += _describe(plan, {name: _read_instance(plan, name) for name in names})
        for model, planned in plan.instances[names[0]].models.items():
            lines += ["", f"  MODEL {model}: {name_computing(planned) or 'an archive that others made'}"]
            values = {key: one for key, one in vars(planned).items() if key not in _IN_TITLE}
            lines += _describe(plan, {f"{names[0]}.{model}": values})
    return "\n".join(lines) + "\n"


def _describe_machine(machine: Mapping[str, Any]) -> list[str]:
    quota = "no CPU quota" if machine["quota_cpus"] is None else f"a quota of {machine['quota_cpus']:g} CPUs"
    return [
        f"  {machine['model_name']} ({machine['vendor']}): {' '.join(machine['flags']) or 'no AVX2'}",
        f"  CPUs this process may use: {render_id_list(machine['cpus_allowed'])} "
        f"({len(machine['cpus_allowed'])} of {machine['cpu_total']}), {quota}",
        f"  physical cores {len(machine['cores'])}, usable {machine['usable_cores']}; "
        f"sockets {machine['sockets']}; NUMA nodes {render_id_list(machine['nodes'])}",
        f"  memory {machine['memory_limit_mib']} MiB ({machine['memory_source']})",
    ]


def _group_instances(plan: Plan) -> list[list[str]]:
    """Names of instances that are equal but for CPUs and ports."""
    groups: list[tuple[InstancePlan, list[str]]] = []
    for name, instance in plan.instances.items():
        alike = dataclasses.replace(
            instance, port=0, cpus=(), worker_cpus=(), memory_nodes=(), server_cpus=None, properties={}
        )
        known = next((names for one, names in groups if one == alike), None)
        if known is None:
            groups.append((alike, [name]))
        else:
            known.append(name)
    return [names for _, names in groups]


def _read_instance(plan: Plan, name: str) -> dict[str, Any]:
    """Its values; of config.properties, what depends on machine and settings: there is a reason for it."""
    own = plan.instances[name]
    explained = {k: v for k, v in own.properties.items() if f"{name}.properties.{k}" in plan.reasons}
    values = {key: one for key, one in vars(own).items() if key not in ("models", *_IN_TITLE)}
    return {**values, "java": vars(own.java), "properties": explained}


def _describe(plan: Plan, sections: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A row for each value of the first section, by its path in plan.reasons, with the reason; where others
    differ, the value of each."""
    flat = {path: dict(_flatten(values)) for path, values in sections.items()}
    first, lines = next(iter(flat)), []
    for key, value in flat[first].items():
        each = {path: _show(values.get(key)) for path, values in flat.items()}
        alike = len(set(each.values())) == 1
        shown = _show(value) if alike else "; ".join(f"{path}: {one}" for path, one in each.items())
        reason = plan.reasons.get(f"{first}.{key}")
        lines += textwrap.wrap(
            f"{shown}  # {reason}" if reason else shown, WIDTH, initial_indent=f"  {key:<22}  ",
            subsequent_indent=" " * 26, break_on_hyphens=False,
        )  # fmt: skip
    return lines


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif value not in ("", ()):
            yield f"{prefix}{key}", value


def _show(value: Any) -> str:
    """A rank's CPUs as the kernel writes lists, the ranks with bars between; None is a dash."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if not isinstance(value, tuple):
        return str(value)
    if all(isinstance(one, int) for one in value):
        return render_id_list(value)
    return (" " if isinstance(value[0], str) else " | ").join(map(_show, value))


def summarize(plan: Plan) -> str:
    """The one line that planning ends with."""
    models, count = plan.models, len(plan.instances)
    unpinned = [name for name, one in plan.instances.items() if not one.pinned]
    computing = {name: name_computing(model) or "as archived" for name, model in models.items()}
    parts = [
        f"planned: {', '.join(models)}",
        f"workers {_join({name: str(plan.count_workers(name)) for name in models})} × cores "
        f"{min(one.cores_per_worker for one in plan.instances.values())}",
        *(f"NOT PINNED: {plan.reasons.get(f'{name}.pinned', name)}" for name in unpinned[:1]),
        _join(computing),
        plan.libraries.allocator,
        f"{plan.libraries.openmp} OpenMP",
        f"{count} instance{'s' * (count > 1)} behind HAProxy on port {plan.proxy.port}"
        f"{' with TLS' * bool(plan.proxy.tls_cert)}",
    ]
    return " · ".join(parts)


def _join(values: Mapping[str, str]) -> str:
    """Once where they are the same."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{name} {value}" for name, value in values.items())


def name_computing(model: ModelPlan) -> str:
    """A model's precision, with its backend where that is not the default; "" of an archive that others made."""
    return model.precision if model.backend in (DEFAULT, "") else name_variant(model.backend, model.precision)


def write_plan_files(plan: Plan) -> None:
    """All files that a start reads, the plan last: it is what a start goes by. The caller holds the run
    directory's lock. Folders of instances that are no longer planned are left: only `server` can tell whether
    one runs."""
    claim_run_folder(Path(plan.run_dir))
    _write(plan, Path(plan.run_dir))


def write_next(plan: Plan) -> None:
    """For a reload: the instances' own files, and haproxy.cfg and plan where it moves to later."""
    folder = Path(plan.run_dir) / NEXT_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    _write(plan, folder)


def _write(plan: Plan, folder: Path) -> None:
    """Folders that belong to somebody else are found before anything is written."""
    for name in plan.instances:
        claim_run_folder(find_folder(plan, name))
    for name in plan.instances:
        write_text_atomically(find_folder(plan, name) / PROPERTIES_FILE, render_properties(plan, name))
    write_text_atomically(folder / PROXY_FILE, render_proxy(plan))
    write_plan(plan, folder / PLAN_FILE)
