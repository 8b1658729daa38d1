"""Reads the container's environment: the same knobs as `make serve`, and where things are in the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.knobs import table
from config.knobs.names import check_environment, check_values
from config.tuned import TUNED_FILE
from server.errors import ServerError
from server.processes import GRACEFUL_SECONDS
from server.tokens import read_given_token

KNOBS = [knob for knob in table.KNOBS.values() if knob.container]
OWN = ("MODELS", "RUN_DIR", "TOKEN_FILE", "STOP_SECONDS", "MODEL_STORE", "TUNED")
"""Read here; the others are the plan's."""
PLAN_KNOBS = tuple(knob.name for knob in KNOBS if knob.name not in OWN)
RUN_DIR = "/run/kit"
MODEL_STORE = "/model-store"
SECRET = "/run/secrets/token"
"""Where Docker, Podman and Compose put a secret named `token`."""

STOP_SECONDS = int(GRACEFUL_SECONDS)
"""A full queue of one second's work is long done by then, and Kubernetes' usual limits are above it."""
END_SECONDS = 10
"""Of these, what TorchServe needs to end once all is answered: 3 s seen on two cores."""


class SettingsError(Exception):
    """A value that cannot be used; the text says what, which, got, do."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment asks for."""

    models: tuple[str, ...]
    """Names of archives in the model store."""
    knobs: Mapping[str, str]
    """Those of PLAN_KNOBS that are given."""
    run_dir: Path
    """The one writable folder."""
    model_store: Path
    """The archives."""
    token_file: Path | None
    """The token that predictions are asked for with; None = the server makes one."""
    stop_seconds: int
    """From SIGTERM to the end, at most."""
    tuned: bool
    """Whether a tuned plan in the run directory is used, where there is one."""

    def plan_arguments(self) -> list[str]:
        """For `python -m config`."""
        given = [
            word
            for name, value in self.knobs.items()
            for word in (f"--{name.lower().replace('_', '-')}", value)
        ]
        places = ["--model-store", str(self.model_store), "--run-dir", str(self.run_dir)]
        ends = ["--drain-seconds", str(max(1, self.stop_seconds - END_SECONDS))]
        token = ["--token-file", str(self.token_file)] if self.token_file else []
        tuned = ["--tuned", str(self.run_dir / TUNED_FILE)] if self.tuned else []
        return [
            "--models",
            " ".join(self.models),
            "--bind",
            "0.0.0.0",
            *given,
            *places,
            *ends,
            *token,
            *tuned,
        ]

    def reload_arguments(self) -> list[str]:
        """For `python -m server`."""
        return ["reload", "--run-dir", str(self.run_dir), "--", *self.plan_arguments()]

    def start_arguments(self) -> list[str]:
        """For `python -m server`."""
        graceful = ["--graceful-seconds", str(self.stop_seconds)]
        return ["start", "--foreground", *graceful, "--hide-token", "--run-dir", str(self.run_dir)]


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Check what config does not: names, archives, token, times."""
    wrong = check_environment(environment, KNOBS)
    wrong += check_values({knob.name: environment[knob.name] for knob in KNOBS if knob.name in environment})
    if wrong:
        raise SettingsError("; ".join(wrong))
    store = Path(environment.get("MODEL_STORE") or MODEL_STORE)
    return Settings(
        models=find_models(environment.get("MODELS", ""), store),
        knobs={name: environment[name] for name in PLAN_KNOBS if environment.get(name)},
        run_dir=Path(environment.get("RUN_DIR") or RUN_DIR),
        model_store=store,
        token_file=find_token(environment.get("TOKEN_FILE", ""), Path(SECRET)),
        stop_seconds=parse_seconds(environment.get("STOP_SECONDS", "")),
        tuned=parse_switch("TUNED", environment.get("TUNED", "")),
    )


def find_models(asked: str, store: Path) -> tuple[str, ...]:
    """MODELS, or every archive that is there."""
    there = sorted(file.stem for file in store.glob("*.mar"))
    wanted = asked.replace(",", " ").split()
    missing = [name for name in wanted if name not in there]
    if there and not missing:
        return tuple(wanted or there)
    what = f"no archive of {', '.join(missing)}" if missing else "no archive"
    raise SettingsError(
        f"{what} in {store}: got {', '.join(there) or 'nothing'}; mount a folder with archives there "
        '(-v "$PWD/model-store:/model-store:ro"), or bake them in (make image MODELS="resnet50 bert")'
    )


def find_token(asked: str, secret: Path) -> Path | None:
    """TOKEN_FILE, or the secret named `token` when there is one; checked, because a bad one locks all out."""
    file = Path(asked) if asked else secret
    if not asked and not file.exists():
        return None
    try:
        read_given_token(file)
    except ServerError as problem:
        raise SettingsError(f"TOKEN_FILE: {problem}") from problem
    return file


def parse_switch(name: str, text: str) -> bool:
    """On unless 0."""
    if text not in ("", "0", "1"):
        raise SettingsError(f"{name} must be one of 0, 1: got {text}")
    return text != "0"


def parse_seconds(text: str) -> int:
    """STOP_SECONDS."""
    if not text:
        return STOP_SECONDS
    if not text.isdigit() or int(text) <= END_SECONDS:
        raise SettingsError(f"STOP_SECONDS must be a whole number above {END_SECONDS}: got {text}")
    return int(text)
