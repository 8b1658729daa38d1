"""The table: a new knob is one entry here, and the tests of this folder name each place that lacks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from config.errors import ConfigError
from handlers.backends.catalogue import BACKENDS, DEFAULT

EVERY = ("every command",)


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One value."""

    name: str
    """As it is given to make, before the `=`, and in an environment."""
    help: str
    """What it means, in one line."""
    default: str = ""
    """What holds where it is not given, as shown: a value, or words."""
    choices: tuple[str, ...] = ()
    """The only values, where there is a list of them."""
    commands: tuple[str, ...]
    """Targets of the Makefile that read it; EVERY for all."""
    container: bool = False
    """The image's entrypoint takes it from the environment."""
    compose: str | None = None
    """Its default in docker/compose.yaml, empty for "decided inside"; None where it is not taken."""

    @property
    def option(self) -> str:
        """The option of the programs behind make."""
        return f"--{self.name.lower().replace('_', '-')}"

    @property
    def meaning(self) -> str:
        """The values, where there is a list of them, and what they mean."""
        return "; ".join(part for part in (" | ".join(self.choices), self.help) if part)

    @property
    def usage(self) -> str:
        """The help of its option; argparse takes a single % for a place to fill in."""
        shown = f" (default: {self.default})" if self.default else ""
        return f"{self.meaning}{shown}".replace("%", "%%")

    def is_read_by(self, command: str) -> bool:
        """Whether giving it to this target changes anything."""
        return self.commands == EVERY or command in self.commands


LOADS = ("loadtest", "loadtest-ui", "loadtest-slo")
"""They start a server, with all that plans one, where none runs."""
SCENARIOS = (*LOADS, "loadtest-gate")
PLANS = ("plan", "serve", "reload", "tune", *LOADS, "soak")
BUILDS = ("models", *PLANS)
NEW = ("model",)
ABLATION = ("ablation",)
REPORTS = ("report",)
CONTROLS = ("status", "verify", "stop", "clean", "distclean")
GATES = ("compare", "loadtest-gate")
INSTALLS = (
    *("setup", *NEW, *BUILDS, "loadtest-gate", "compare", *ABLATION, *REPORTS),
    *("image", "image-test", "test", "test-unit", "test-e2e", "test-reliability", "test-current", "lint"),
    *("test-current-quick", "format", "audit", "lock", "profile"),
)
SWITCH = ("0", "1")

# fmt: off
GROUPS: Mapping[str, tuple[Knob, ...]] = {
    "The six people use": (
        Knob(name="MODELS", default="resnet50 bert", commands=(*BUILDS, "image", "ablation", "profile"),
             container=True, compose="",
             help="names of folders in models/, of ablation and profile one; a container serves all of its, "
                  "an image bakes in none"),
        Knob(name="PRECISION", default="fp32", choices=("fp32", "bf16", "int8"),
             commands=("models", *PLANS, "profile"), container=True, compose="",
             help="served, and so built and judged beside fp32; not given: what make tune found, if it did; "
                  "make models takes several, as 'fp32 int8'"),
        Knob(name="PROFILE", default="throughput", choices=("throughput", "latency"),
             commands=PLANS, container=True, compose="",
             help="many workers with batches within SLO_P99_MS, or few with more cores and no batches"),
        Knob(name="WORKERS", default="from the machine", commands=PLANS, container=True, compose="",
             help="workers of each model, 1 or more"),
        Knob(name="WEIGHTS", default="as built, else auto", commands=(*BUILDS, "image"),
             help="auto | pretrained | random | a path, or by model: resnet50=PATH,bert=random"),
        Knob(name="PORT", default="8080", commands=PLANS, container=True,
             compose="8080", help="the REST port; taken too are PORT + 2 and two ports of each instance "
             "from PORT + 13 to PORT + 84"),
    ),
    "The door": (
        Knob(name="INSTANCES", default="one for each NUMA node, else 2; 1 with PROFILE=latency",
             commands=PLANS, container=True, compose="",
             help="TorchServes behind the door, 1 to 4, which share cores and memory"),
        Knob(name="DEADLINE_MS", default="60000", commands=PLANS, container=True,
             compose="",
             help="the door answers by then, 1000 to 300000; a request can name its own in X-Deadline-Ms"),
        Knob(name="TLS_CERT", default="no TLS", commands=PLANS, container=True,
             help="file with the door's certificate and its chain (PEM); with TLS_KEY"),
        Knob(name="TLS_KEY", default="no TLS", commands=PLANS, container=True,
             help="file with the private key of TLS_CERT (PEM, without a password)"),
    ),
    "Planning": (
        Knob(name="BACKEND", default=DEFAULT, container=True, compose="",
             commands=("setup", "models", *PLANS, "image", *ABLATION, "profile", "audit"),
             help=f"what computes: {' | '.join(BACKENDS)}, or by model: bert=eager,resnet50=openvino; "
                  "it decides which packages are installed"),
        Knob(name="CORES_PER_WORKER", default="from the machine", commands=PLANS, container=True,
             compose="", help="physical cores of one worker"),
        Knob(name="ALLOCATOR", default="jemalloc", choices=("jemalloc", "tcmalloc", "system"),
             commands=PLANS, container=True, compose="", help="malloc of the workers"),
        Knob(name="OPENMP", default="intel", choices=("intel", "gnu"),
             commands=PLANS, container=True, compose="", help="OpenMP library of the workers"),
        Knob(name="SLO_P99_MS", default="200", commands=PLANS, container=True, compose="",
             help="what 99 of 100 requests shall be answered within: what batches are planned for, and the "
                  "limit that loadtest-slo keeps"),
        Knob(name="BATCH", default="from timings of this machine", commands=PLANS, container=True,
             compose="", help="requests in one batch, 1 to 128, or by model such as bert=8,resnet50=4"),
        Knob(name="DELAY_MS", default="1", commands=PLANS, container=True, compose="",
             help="how long a batch waits to fill, 1 to 10000; by model as BATCH"),
        Knob(name="TUNED", default="1", choices=SWITCH, commands=PLANS, container=True, compose="",
             help="1: use what tuning found, where RUN_DIR/tuned.json is there and holds"),
        Knob(name="TOPOLOGY", default="this machine", commands=PLANS,
             help="folder of a recorded machine to plan for, such as those in tests/config/machines/"),
        Knob(name="DRY_RUN", default="0", choices=SWITCH, commands=("plan",),
             help="1: print the plan with all reasons, write nothing"),
    ),
    "Models and weights": (
        Knob(name="FROM", default="none", commands=NEW,
             help="a Hugging Face folder, or a file of weights: models/<name>/model.yaml is written for it"),
        Knob(name="SERVE_AS", default="that of FROM", commands=NEW,
             help="the model's name, in MODELS and in every URL"),
        Knob(name="HANDLER", default="as the folder's config.json says", commands=NEW,
             help="image_classifier, text_classifier, text_embeddings or token_classifier"),
        Knob(name="ARCH", default="none", commands=NEW,
             help="with HANDLER=image_classifier: a classifier of torchvision.models, such as resnet50"),
        Knob(name="CALIBRATION", default="synthetic", commands=BUILDS,
             help="a path: inputs that INT8's scales come from; by model as WEIGHTS"),
        Knob(name="EVAL", default="synthetic", commands=BUILDS,
             help="a path: held-out inputs for the accuracy gate; by model as WEIGHTS"),
        Knob(name="ALLOW_PICKLE", default="0", choices=SWITCH, commands=BUILDS,
             help="1: read .pt, .pth and .bin where no process without rights can be made"),
    ),
    "Running": (
        Knob(name="RUN_DIR", default="run", commands=(*PLANS, "loadtest-gate", *CONTROLS),
             help="plan, state, tokens and logs of one server; several can run side by side"),
        Knob(name="FOREGROUND", default="0", choices=SWITCH, commands=("serve",),
             help="1: keep the server in this terminal, and end it when verify differs"),
        Knob(name="TORCH_INDEX", default="the CPU-only wheels if reachable", commands=INSTALLS, compose="",
             help="where torch comes from: an index's address, or `default` for pip's own"),
        Knob(name="PYTHON", default="python3", commands=EVERY, help="Python 3.10-3.13 for the environment"),
    ),
    "Load tests": (
        Knob(name="SCENARIO", default="both loops of each served model", commands=SCENARIOS,
             help="<model>-closed, <model>-open, or files"),
        Knob(name="DURATION", default="the scenario's, or the experiment's",
             commands=(*SCENARIOS, *ABLATION, "profile", "soak"), compose="60s",
             help="seconds of each repeat; of a profile, of each system with each collector; of a soak, in "
                  "all; in compose with a unit"),
        Knob(name="USERS", default="the scenario's", commands=SCENARIOS, compose="16",
             help="users of closed loops, such as 8,32"),
        Knob(name="RATE", default="the scenario's", commands=SCENARIOS,
             help="requests a second of open loops, such as 20,80%; a share of what a closed loop reaches"),
        Knob(name="DRIVER", default="the scenario's", choices=("locust", "ab"), commands=("loadtest",),
             help="ab: one ApacheBench with one payload, closed loops only"),
        Knob(name="PAYLOADS", default="what suits the model", commands=(*SCENARIOS, "tune"),
             help="a set's name, or a folder of your own images, texts, or bodies (.json, .bin)"),
        Knob(name="PROCESSES", default="one", commands=(*SCENARIOS, "soak"),
             help="Locust's workers here; remote:N, remote:N@ADDRESS wait for N on others"),
        Knob(name="URL", default="the server of RUN_DIR", commands=SCENARIOS,
             help="any other server, http://host:port, or with the path to ask; it cannot be verified"),
        Knob(name="LOCUSTFILE", default="the kit's", commands=SCENARIOS,
             help="a locustfile of your own; its answers are not judged"),
        Knob(name="A", commands=GATES, help="the base: a result, or a RUN_DIR for the gate"),
        Knob(name="B", commands=GATES, help="the candidate, likewise"),
        Knob(name="BOUND", default="0.05", commands=GATES,
             help="a loss beyond this share is a regression"),
    ),
    "Experiments": (
        Knob(name="STEPS", default="settings", choices=("settings", "backends"), commands=ABLATION,
             help="one setting after the other, or each installed backend in each precision"),
        Knob(name="BUDGET_MINUTES", default="15", commands=("tune",),
             help="of each model or mix, 5 or more"),
        Knob(name="MIX", default="each model alone", commands=("tune",),
             help="several models at once in these shares of the requests, as resnet50:0.7,bert:0.3"),
        Knob(name="RESUME", default="a new one", commands=(*ABLATION, "tune"),
             help="a result that was cut off, by its folder's name, or latest"),
        Knob(name="AGAINST", default="stock", commands=("profile",),
             help="what the kit is profiled beside: stock TorchServe, off (the kit with everything off), or "
                  "the RUN_DIR of a server that runs"),
        Knob(name="RESULT", default="latest", commands=REPORTS, help="folders of kept results"),
    ),
    "Image": (
        Knob(name="IMAGE", default="cpu-kit:latest", commands=("image",), compose="cpu-kit:latest",
             help="the image's name"),
    ),
}
# fmt: on

KNOBS = {knob.name: knob for knobs in GROUPS.values() for knob in knobs}


def find(name: str) -> Knob:
    """The knob of this name."""
    if name not in KNOBS:
        raise ConfigError(f"a knob must be one of config/knobs/table.py: got {name}; add it there first")
    return KNOBS[name]


def add_knobs(parser: Any, names: Iterable[str]) -> None:
    """Options of these knobs; an empty value means "not given", because make passes its unset variables so.

    Their values are judged by the rules, which say what is wrong in the knob's own name.
    """
    for name in names:
        parser.add_argument(find(name).option, default="", help=find(name).usage)
