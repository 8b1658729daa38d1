"""Settings: each one's name, type, bounds, default, help and group, in one place.

They come from the command line (`NAME=VALUE`), the environment (`KIT_NAME`), kit.toml and the defaults, in
this order (config/sources.py); config/commands.py says who reads them, and renders help.
"""

from __future__ import annotations

import ipaddress
import re
import runpy
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from config.errors import ConfigError
from config.proxy import MAX_INSTANCES
from config.sources import (
    ALL,
    BY_MODEL,
    explain_unknown,
    join_by_model,
    list_served,
    list_text_problems,
    parse_by_model,
    read_sources,
    split_words,
)
from handlers.backends.catalogue import BACKENDS, EXAMPLE, choose_set

SWITCHES = ("channels_last", "trace", "freeze", "packing", "buckets")
"""What the handlers can leave out (handlers/shared/options.py)."""
ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?")
MAX_PORT = 64_000
"""PORT + 920 and upwards name the workers' sockets, below 65535; instances begin up to 80 higher."""
MAX_MS = 300_000
"""Of deadline and SLO, five minutes: no batch may take one; HAProxy's queue orders by up to 524 s."""
MIN_DEADLINE_MS = 1_000
"""A batch of one takes tens of milliseconds, a full one a third of a second: below, chance decides."""
MAX_BATCH = 128
"""A worker cuts a batch into the shapes it warmed; the largest that any of the models gains by is 32."""
MIN_DELAY_MS, MAX_DELAY_MS = 1, 10_000
"""TorchServe reads a delay of 0 as "not given" and waits 100 ms (ConfigManager.getJsonIntValue)."""
NUMBERS = "a whole number, or one by model as bert=8,resnet50=4"


def _setting(default: Any, group: str, text: str, *, shown: str = "", bounds: Any = None, **more: Any) -> Any:
    """`shown` is the default in words; `bounds` are least and most, which None leaves open."""
    known = {"group": group, "shown": shown, "bounds": bounds}
    return Field(default, description=text, json_schema_extra=known, **more)


class Settings(BaseModel):
    """Values, checked without looking at any file; None, "" and {} mean "decide for me".

    Settings(…) is made of its arguments alone; read_settings reads the sources. Were this a BaseSettings of
    pydantic-settings, its import alone would make `make status` half as slow again (0.15 s).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    # fmt: off
    models: tuple[str, ...] = _setting(("bert", "resnet50"), "serving",
        "names of folders in models/, or paths (.mar) of archives that others made; a container serves all "
        "of its, an image bakes in none")
    precision: Literal["", "fp32", "bf16", "int8"] = _setting("", "serving",
        "precision that is served; bf16 and int8 must pass the accuracy gate; not given: what tune found",
        shown="fp32")
    backend: dict[str, str] = _setting({}, "serving",
        f"compute backend: {' | '.join(BACKENDS)}, or by model: {EXAMPLE}; it decides which packages are "
        f"installed", shown="ipex")
    mode: Literal["throughput", "latency"] = _setting("throughput", "serving",
        "throughput: many workers, batches within SLO_P99_MS; latency: few workers with more cores")
    workers: int | None = _setting(None, "serving",
        "workers of each model", shown="from the machine", bounds=(1, None))
    cores_per_worker: int | None = _setting(None, "serving",
        "physical cores of one worker", shown="from the machine", bounds=(1, None))
    instances: int | None = _setting(None, "serving",
        "instances of TorchServe behind the reverse proxy, which share cores and memory",
        shown="one for each NUMA node, else 2; 1 with MODE=latency", bounds=(1, MAX_INSTANCES))
    port: int = _setting(8080, "serving",
        "port of the REST API; PORT + 2 and two ports an instance from PORT + 13 to PORT + 84 are used too",
        bounds=(1, MAX_PORT))

    slo_p99_ms: int | None = _setting(None, "requests",
        "limit of the latency's p99: batches are planned for it, and loadtest-slo searches the highest rate "
        "within it", shown="200", bounds=(1, MAX_MS))
    deadline_ms: int = _setting(60000, "requests",
        "time within which the reverse proxy answers; a request can name its own in X-Deadline-Ms",
        bounds=(MIN_DEADLINE_MS, MAX_MS))
    batch: dict[str, int] = _setting({}, "requests",
        "requests in one batch, or by model: bert=8,resnet50=4",
        shown="from the batch profile of this machine", bounds=(1, MAX_BATCH))
    delay_ms: dict[str, int] = _setting({}, "requests",
        "how long a batch waits to fill; by model as BATCH", shown="1", bounds=(MIN_DELAY_MS, MAX_DELAY_MS))

    allocator: Literal["", "jemalloc", "tcmalloc", "system"] = _setting("", "libraries",
        "malloc of the workers", shown="jemalloc")
    openmp: Literal["", "intel", "gnu"] = _setting("", "libraries",
        "OpenMP library of the workers", shown="intel")

    host: str = _setting("127.0.0.1", "network",
        "address that predictions are served at: IPv4, IPv6, 0.0.0.0, or :: for both families; beyond "
        "loopback with TLS, or INSECURE=1")
    metrics: str = _setting("", "network",
        "host:port of the metrics page, which needs no token", shown="127.0.0.1, PORT + 2")
    insecure: bool = _setting(False, "network",
        "1: serve other machines without TLS, as behind a proxy that has it")
    cors_origin: str = _setting("", "network",
        "origin whose pages may send requests from a browser, as https://app.example", shown="none")
    tls_cert: str = _setting("", "network",
        "file with the server's certificate and its chain (PEM); with TLS_KEY", shown="no TLS")
    tls_key: str = _setting("", "network",
        "file with the private key of TLS_CERT (PEM, without a password)", shown="no TLS")

    weights: dict[str, str] = _setting({}, "building",
        "auto (pretrained, or random where no hub is reached) | pretrained | random | a path, or by model: "
        "resnet50=PATH,bert=random",
        shown="as built, else auto")
    calibration: dict[str, str] = _setting({}, "building",
        "path of inputs to calibrate INT8 with; by model as WEIGHTS", shown="synthetic")
    eval: dict[str, str] = _setting({}, "building",
        "path of held-out inputs for the accuracy gate; by model as WEIGHTS", shown="synthetic")
    allow_pickle: bool = _setting(False, "building",
        "1: read .pt, .pth and .bin where no process without rights can be made")
    from_: str = _setting("", "building",
        "Hugging Face folder or file of weights that models/<name>/model.yaml is written for",
        validation_alias="from")

    run_dir: str = _setting("run", "running",
        "folder for plan, state, tokens and logs of one server; several can run side by side")
    topology: str = _setting("", "running",
        "folder of a recorded machine to plan for, such as those in tests/config/machines/",
        shown="this machine")
    foreground: bool = _setting(False, "running",
        "1: keep the server in this terminal, and end it when verify differs")
    log: Literal["text", "json"] = _setting("text", "running",
        "format of the logs: lines for people, or JSON lines")
    format: Literal["text", "json"] = _setting("text", "running", "output format of verify")
    verbose: bool = _setting(False, "running", "1: verify prints every row, not only those that differ")
    torch_index: str = _setting("", "running",
        "where torch comes from: an index's address, or `default` for pip's own",
        shown="the CPU-only wheels if reachable")
    python: str = _setting("python3", "running", "Python 3.10 to 3.13 for the environment")

    url: str = _setting("", "load",
        "any other server, http://host:port, or with the path to ask; it cannot be verified",
        shown="the server of RUN_DIR")
    users: str = _setting("", "load", "users of closed loops, such as 8,32", shown="the scenario's")
    rate: str = _setting("", "load",
        "requests a second of open loops, such as 20,80%; a share of what a closed loop reaches",
        shown="the scenario's")
    duration: float | None = _setting(None, "load",
        "seconds of each repeat; for a profile, of each system with each collector; for a soak, in all",
        shown="the scenario's, or the experiment's")
    payloads: str = _setting("", "load",
        "a set's name, or a folder of your own images, texts, or bodies (.json, .bin)",
        shown="what suits the model")

    args: str = _setting("", "args",
        'options of the command itself, as make compare ARGS="--a X --b Y"; ARGS=--help lists them')

    # Of programs alone: baselines, and the container.
    token_file: str = _setting("", "", "the inference token")
    model_store: str = _setting("", "", "folder with the archives")
    prefix: str = _setting("", "", "the virtual environment")
    pinning: bool = _setting(True, "", "0: cpu_launcher_enable=false, a baseline")
    off: tuple[str, ...] = _setting((), "", "load steps that are switched off, for a baseline")
    # fmt: on

    def of_model(self, name: str, model: str) -> Any:
        """The value of a setting that is given by model, of BY_MODEL; None where there is none."""
        values = getattr(self, name)
        return values.get(model, values.get(ALL))

    @property
    def package_set(self) -> str:
        """The one that has all named backends."""
        return choose_set(join_by_model(self.backend))

    @field_validator("*", mode="before")
    @classmethod
    def _convert(cls, value: Any, info: Any) -> Any:
        kind = cls.model_fields[info.field_name].annotation
        if kind is bool:
            if str(value) not in ("0", "1", "False", "True"):
                raise ValueError(f"must be 0 or 1: got {value}")
            return str(value) in ("1", "True")
        if isinstance(value, bool):
            raise ValueError(f"must not be true or false: got {str(value).lower()}")
        if kind is str and isinstance(value, (int, float)):  # of kit.toml
            return str(value)
        if get_origin(kind) is tuple and isinstance(value, (str, list, tuple)):
            words = split_words(value) if isinstance(value, str) else map(str, value)
            return tuple(sorted({*words}))
        return value

    @field_validator("*")
    @classmethod
    def _check_bounds(cls, value: Any, info: Any) -> Any:
        bounds = about(info.field_name)["bounds"]
        for number in value.values() if isinstance(value, dict) else [value]:
            if bounds and number is not None and not bounds[0] <= number <= (bounds[1] or number):
                raise ValueError(f"must be {show_bounds(bounds)}: got {number}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if wrong := "\n".join(_list_contradictions(self)):
            raise ValueError(wrong)
        return self


def about(field: str) -> dict[str, Any]:
    """Group, `shown` and bounds."""
    return dict(Settings.model_fields[field].json_schema_extra or {})  # type: ignore[arg-type]


def show_bounds(bounds: tuple[int, int | None]) -> str:
    return f"{bounds[0]} or more" if bounds[1] is None else f"{bounds[0]} to {bounds[1]}"


def name_setting(field: str) -> str:
    """As it is given to make."""
    return field.rstrip("_").upper()


FIELDS = {name_setting(field): field for field in Settings.model_fields}
PUBLIC = tuple(name for name, field in FIELDS.items() if about(field)["group"])
"""Names that help and docs list, and that make's command line takes."""


def _list_contradictions(settings: Settings) -> Iterator[str]:
    """Of values that are right each by itself."""
    served = list_served(settings.models)
    for name in settings.models:
        if not re.fullmatch(r"[\w.-]+|.*\.mar", name):
            yield f"MODELS must be names of folders in models/, or paths that end in .mar: got {name}"
    if not settings.models:
        yield "MODELS must name a model: got nothing"
    for field in BY_MODEL:
        unknown = sorted({*getattr(settings, field)} - {ALL, *served})
        if unknown and not any(name.endswith(".mar") for name in settings.models):  # which say theirs inside
            known, got = ", ".join(served), ", ".join(unknown)
            yield f"{name_setting(field)} must name models that are served, {known}: got {got}"
    if others := [one for one in settings.backend.values() if one not in BACKENDS]:
        forms = f"one of {', '.join(BACKENDS)}, or by model, as {EXAMPLE}"
        yield f"BACKEND must be {forms}: got {', '.join(others)}"
    try:
        _ = settings.package_set
    except ValueError as problem:
        yield str(problem)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        given = "TLS_CERT" if settings.tls_cert else "TLS_KEY"
        yield f"TLS_CERT and TLS_KEY must be given together: got {given} alone"
    if settings.url and not settings.url.startswith(("http://", "https://")):
        yield f"URL must begin with http:// or https://: got {settings.url}"
    if settings.duration is not None and not 0 < settings.duration < float("inf"):
        yield f"DURATION must be seconds, more than 0: got {settings.duration:g}"
    if off := {*settings.off} - {*SWITCHES}:
        yield f"OFF must be among {', '.join(SWITCHES)}: got {', '.join(sorted(off))}"
    yield from _list_network_problems(settings)


def _list_network_problems(settings: Settings) -> Iterator[str]:
    """Of addresses, and of what is served beyond this machine."""
    try:
        if not (is_loopback(settings.host) or settings.tls_cert or settings.insecure):
            yield (
                f"HOST={settings.host} serves other machines without TLS: give TLS_CERT and TLS_KEY, or "
                "INSECURE=1 where a proxy in front has TLS"
            )
    except ValueError:
        yield f"HOST must be an IP address such as 0.0.0.0 or ::, got {settings.host}"
    if settings.metrics and not parse_address(settings.metrics):
        yield f"METRICS must be host:port, as 0.0.0.0:9100 or [::]:9100: got {settings.metrics}"
    if settings.cors_origin and not ORIGIN.fullmatch(settings.cors_origin):
        yield f"CORS_ORIGIN must be one origin, as https://app.example: got {settings.cors_origin}"


def is_loopback(host: str) -> bool:
    """ValueError: it is no IP address."""
    return ipaddress.ip_address(host).is_loopback


def parse_address(text: str) -> tuple[str, int] | None:
    """Host and port of 127.0.0.1:9100 or [::1]:9100; None where it is neither."""
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(bare := host[1:-1] if host[:1] + host[-1:] == "[]" else host)
    except ValueError:
        return None
    known = port.isdecimal() and 1 <= int(port) <= 65535 and (":" in bare) == host.startswith("[")
    return (bare, int(port)) if known else None


def read_settings(arguments: Sequence[str], names: Collection[str] = tuple(FIELDS)) -> Settings:
    """From arguments as NAME=VALUE, the environment, kit.toml and the defaults; ConfigError has a line for
    each problem.

    Environment and kit.toml count for `names` alone, those that a command reads; unknown names in them are an
    error of who reads MODELS: nothing else may keep a server from being looked at or stopped. What is given
    by model replaces that of the same model, what is given for all of them replaces all.
    """
    wrong = [f"a setting must be NAME=VALUE: got {word}" for word in arguments if "=" not in word]
    raw = {"": dict(word.split("=", 1) for word in arguments if "=" in word)}
    if {*names} - {*raw[""], "PYTHON"}:
        raw = {**read_sources(), **raw}
    given: list[tuple[str, str, Any]] = []
    for source, values in raw.items():
        known = [name for name in FIELDS if not source or name != "ARGS"]  # they are of one command
        for name, value in values.items():
            if name not in known and (not source or "MODELS" in names):
                wrong.append(explain_unknown(name, known) + source)
            elif name in FIELDS and value != "" and (not source or name in names):
                wrong += [f"{name} {why}{source}" for why in list_text_problems(name, value)]
                given.append((name, source, value))
    sources = {FIELDS[name]: source for name, source, _ in given}
    merged = {FIELDS[name]: value for name, _, value in given}
    served = list_served(merged.get("models", Settings.model_fields["models"].default))
    merged |= {field: {} for field in BY_MODEL if field in merged}
    for name, source, value in given:
        if (field := FIELDS[name]) in BY_MODEL:
            try:
                own = parse_by_model(name, value, served)
                merged[field] = own if ALL in own else {**merged[field], **own}
            except ConfigError as problem:
                wrong.append(f"{problem}{source}")
    try:
        settings = Settings(**merged)
    except ValidationError as problem:
        wrong += [line for error in problem.errors() for line in _explain(error, sources)]
    if wrong:
        raise ConfigError("\n".join(wrong))
    cert, key = read_certificate(settings.tls_cert, settings.tls_key)
    return settings.model_copy(update={"tls_cert": cert, "tls_key": key})


def read_certificate(cert: str, key: str) -> tuple[str, str]:
    """TLS_CERT and TLS_KEY, absolute, where they are there and belong together: HAProxy would say so only at
    its start. What is not given stays so."""
    for name, file in (("TLS_CERT", cert), ("TLS_KEY", key)):
        try:
            if file:
                Path(file).read_bytes()
        except OSError as problem:
            raise ConfigError(
                f"{name} must be a file that can be read: got {Path(file)}: {problem.strerror}"
            ) from problem
    if cert and key:
        import ssl  # here, because nothing else of planning needs it

        try:
            # A password would be asked for at the terminal, by HAProxy too.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
        except (ssl.SSLError, ValueError) as problem:
            raise ConfigError(
                "TLS_CERT and TLS_KEY must be a certificate and its own key without a password (PEM): "
                f"got {cert} and {key}: {problem}"
            ) from problem
    return cert and str(Path(cert).absolute()), key and str(Path(key).absolute())


def _explain(error: Any, sources: Mapping[str, str]) -> list[str]:
    """Pydantic's account of one problem in our words."""
    if not error["loc"]:
        return str(error["ctx"]["error"]).splitlines()
    field = FIELDS[name := name_setting(str(error["loc"][0]))]
    known = Settings.model_fields[field].annotation
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
    else:
        kinds = {
            "literal": "one of " + ", ".join(filter(None, map(str, get_args(known)))), "float": "a number",
            "int": NUMBERS if field in BY_MODEL else "a whole number", "string": "text",
            "tuple": "a list of names",
        }  # fmt: skip
        wanted = kinds.get(error["type"].partition("_")[0], "as docs/settings.md says")
        text = f"must be {wanted}: got {error['input']}"
    return [f"{name} {text}{sources.get(field, '')}"]


if __name__ == "__main__":  # as a program it is config/commands.py, which imports this module
    runpy.run_module("config.commands", run_name="__main__")
