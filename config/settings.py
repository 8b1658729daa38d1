"""Settings: each one's name, type, bounds, default, help and group, in one place. (Sketch of the interface.)"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

ALL = "*"
"""Whose number is that of every model that has none of its own."""


class Settings(BaseModel):
    """Names are make's in small letters; None, "" and {} mean "decide for me"."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # serving
    models: tuple[str, ...] = ("resnet50", "bert")  # names of folders in models/, or paths of archives that others made
    precision: Literal["", "fp32", "bf16", "int8"] = ""
    backend: dict[str, str] = {}  # by model, ALL for every other
    mode: Literal["throughput", "latency"] = "throughput"
    workers: int | None = None
    cores_per_worker: int | None = None
    instances: int | None = None
    port: int = 8080
    # requests
    slo_p99_ms: int | None = None
    deadline_ms: int = 60_000
    batch: dict[str, int] = {}
    delay_ms: dict[str, int] = {}
    # libraries
    allocator: Literal["", "jemalloc", "tcmalloc", "system"] = ""
    openmp: Literal["", "intel", "gnu"] = ""
    # TLS
    tls_cert: str = ""
    tls_key: str = ""
    # building
    weights: dict[str, str] = {}
    calibration: dict[str, str] = {}
    eval: dict[str, str] = {}
    allow_pickle: bool = False
    from_: str = ""  # FROM
    # running
    run_dir: str = "run"
    topology: str = ""  # folder of a recorded machine
    foreground: bool = False
    format: Literal["text", "json"] = "text"
    verbose: bool = False
    torch_index: str = ""
    # load tests
    url: str = ""
    users: str = ""
    rate: str = ""
    duration: float | None = None
    payloads: str = ""
    # options of the command itself, in its own form
    args: str = ""
    # of programs alone (no help, not on make's command line): baselines, container
    host: str = "127.0.0.1"
    token_file: str = ""
    model_store: str = ""
    prefix: str = ""
    pinning: bool = True
    off: tuple[str, ...] = ()

    def of_model(self, name: str, model: str) -> int | str | None:
        """The value of a setting that is given by model (batch, delay_ms, backend, weights …)."""
        values = getattr(self, name)
        return values.get(model, values.get(ALL))
