"""The backends: what each offers and needs, and the package sets that they are installed in.

Standard library alone: settings, plan, doctor and verify ask it too, before anything is installed, and the
Makefile and the image ask it what BACKEND means (`python -m handlers.backends.catalogue BACKEND`). A new
backend is an entry here and the file that its `loader` names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from handlers.backends.proofs import Judge, judge_eager, judge_inductor, judge_ipex, judge_openvino

INT8 = "int8"
BASELINE = "fp32"
"""In every archive: what the other precisions are compared with."""
BF16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Either computes BF16 in hardware; without them it is converted to FP32 and back, slower than FP32."""
INT8_FLAGS = ("avx2",)
"""It multiplies INT8 twice as fast as FP32 (Zen 3), with VNNI or AMX faster still."""
WIDE_SUMS = ("avx512_vnni", "avx_vnni", "amx_int8")
"""Each adds products of INT8 in 32 bits; AVX2 alone adds two of them in 16, where they may not fit."""
OTHER_SUMS = "was calibrated on a CPU that adds products in 32 bits, and this one adds them in 16"
"""What `needs_wide_sums` finds, as a person is told."""
IPEX = "intel_extension_for_pytorch"
COMPILER = "g++"
"""Inductor's, where models are built."""
PT2E = ("torch.ao.quantization", "torchao.quantization.pt2e")
"""PyTorch's own static quantisation of exports: in torch 2.8, and since it left torch in torchao."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to compute a model."""

    name: str
    """As BACKEND names it."""
    reason: str
    """Why one would take it."""
    loader: str
    """`module:class` of its Loader, imported where a model is loaded or built."""
    flags: Mapping[str, tuple[str, ...]]
    """Precision it offers → CPU flags of which it needs one; () needs none."""
    judge: Judge
    """Whether its evidence is what was planned."""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Precision → what a load reads beside the weights, prepared at build."""
    switches: frozenset[str] = frozenset()
    """Load steps of it that a plan may switch off."""
    distribution: str | None = None
    """What must be installed for it beside PyTorch."""
    tools: tuple[str, ...] = ()
    """Programs that must be there where models are built for it."""
    channels_last: bool = False
    """Whether the memory format of tensors is its load's business."""
    compiles_without: str = ""
    """The step without which each worker compiles the model itself, which takes minutes."""

    switch: str = ""
    """Property of TorchServe's configuration that names it; `TS_` and the same in capitals in a worker."""
    variables: tuple[str, ...] = ()
    """How the names of environment variables begin that its libraries read."""
    cache_bound: str = ""
    """That of them which bounds a cache of primitives of its own."""

    library: str = ""
    """How the file begins that is mapped into each process which has imported it; empty: nothing tells."""
    onednn: str = ""
    """Module with the switch of the log of a copy of oneDNN that is its own."""
    binds_memory: bool = False
    """Whether its runtime binds single mappings to the NUMA node that it computes on, whatever is planned."""

    @property
    def switch_variable(self) -> str:
        """What a worker sees `switch` as (ConfigManager.getBackendConfiguration)."""
        return f"TS_{self.switch.upper()}" if self.switch else ""

    def is_installed(self, folders: Sequence[str] | None = None) -> bool:
        """Whether it could be imported here, or by a Python that looks in these folders."""
        path = sys.path if folders is None else [*folders]
        return self.distribution is None or any(distributions(name=self.distribution, path=path))

    def compiles_at_start(self, off: Collection[str]) -> bool:
        """Whether a worker's load takes minutes, with these steps switched off."""
        return bool(self.compiles_without) and self.compiles_without in off

    def must_be_validated(self, precision: str) -> bool:
        """Whether a build prepares or judges it: only FP32 as it comes can be left to a load's own check."""
        return precision != BASELINE or precision in self.files


def find_pt2e(folders: Sequence[str] | None = None) -> str | None:
    """The one of PT2E that is installed; never imports it."""
    for home in PT2E:
        package, *inner = home.split(".")
        spec = PathFinder.find_spec(package, folders)
        places = (spec and spec.submodule_search_locations) or ()
        if any(Path(place, *inner, "quantize_pt2e.py").exists() for place in places):
            return home
    return None


def list_inductor_flags(folders: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """Precision → CPU flags; INT8 where its quantiser is. Where no PyTorch is (before a set-up) nothing is
    said against it yet."""
    flags: dict[str, tuple[str, ...]] = {"fp32": (), "bf16": BF16_FLAGS}
    quantises = find_pt2e(folders) or PathFinder.find_spec("torch", folders) is None
    return {**flags, "int8": INT8_FLAGS} if quantises else flags


TORCHSCRIPT = frozenset({"channels_last", "trace", "freeze"})
_OPENVINO_FLOATS = ("openvino-fp32.xml", "openvino-fp32.bin")
BACKENDS: dict[str, Backend] = {
    one.name: one
    for one in (
        Backend(
            name="ipex",
            reason="fused oneDNN kernels in TorchScript, INT8 by calibration; its last release is 2.8",
            loader="handlers.backends.ipex:IpexLoader",
            flags={"fp32": ("avx2",), "bf16": BF16_FLAGS, "int8": INT8_FLAGS},
            judge=judge_ipex,
            files={"int8": ("int8.json",)},
            switches=TORCHSCRIPT,
            distribution=IPEX,
            channels_last=True,
            switch="ipex_enable",
            variables=("IPEX_", "LRU_"),
            cache_bound="LRU_CACHE_CAPACITY",
            library="libintel-ext-pt",
            onednn=f"{IPEX}._C",
        ),
        Backend(
            name="openvino",
            reason="a graph and kernels of its own, INT8 by NNCF; maintained, and bound to no release of "
            "PyTorch",
            loader="handlers.backends.openvino:OpenVinoLoader",
            flags={"fp32": (), "bf16": BF16_FLAGS, "int8": INT8_FLAGS},
            judge=judge_openvino,
            files={
                # BF16 is FP32's IR with another execution precision.
                **dict.fromkeys(("fp32", "bf16"), _OPENVINO_FLOATS),
                "int8": ("openvino-int8.xml", "openvino-int8.bin"),
            },
            distribution="openvino",
            variables=("OV_", "OPENVINO_", "TBB_"),
            binds_memory=True,
        ),
        Backend(
            name="inductor",
            reason="PyTorch's own compiler, ahead of time: nothing beside PyTorch, but g++ where models are "
            "built",
            loader="handlers.backends.inductor:InductorLoader",
            flags=list_inductor_flags(),
            judge=judge_inductor,
            files={one: (f"inductor-{one}.so", f"inductor-{one}.json") for one in ("fp32", "bf16", "int8")},
            switches=frozenset({"freeze"}),
            tools=(COMPILER,),
            compiles_without="freeze",
        ),
        Backend(
            name="eager",
            reason="PyTorch alone, a baseline: nothing else has to be installed",
            loader="handlers.backends.eager:EagerLoader",
            flags={"fp32": (), "bf16": BF16_FLAGS},
            judge=judge_eager,
            switches=TORCHSCRIPT,
            channels_last=True,
        ),
    )
}
"""The default first."""
DEFAULT = next(iter(BACKENDS))
SWITCHED = {one.switch: one.name for one in BACKENDS.values() if one.switch}
"""Property of TorchServe's configuration → the backend it names."""

SETS = {"ipex": ("ipex", "eager"), "current": ("openvino", "inductor", "eager")}
"""Package sets: the backends that are installed beside each other, with a torch that they run with
(requirements/NAME/); the first one computes what BACKEND does not name. Each has an environment and archives
of its own, and a server has one."""
DEFAULT_SET = "ipex"

EXAMPLE = "bert=eager,resnet50=openvino"
ALL = ""
"""The key of what holds for every model that is not named."""


def name_variant(backend: str, precision: str) -> str:
    """What is built and validated as one: `ipex int8`."""
    return f"{backend} {precision}"


def find_missing(folders: Sequence[str] | None = None) -> frozenset[str]:
    """Those that cannot be imported here, or by a Python that looks in these folders."""
    return frozenset(name for name, one in BACKENDS.items() if not one.is_installed(folders))


def has_flags(flags: Sequence[str], cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU has one of them; () needs none."""
    return not flags or bool({*flags} & {*cpuinfo.read_text(encoding="utf-8").split()})


def has_wide_sums() -> bool:
    """Without them activations or weights are given seven bits, at build: with eight, sums saturate (relative
    error of a small convolution's logits 0.46, seen)."""
    return has_flags(WIDE_SUMS)


def needs_wide_sums(validated: Mapping[str, Any]) -> bool:
    """Whether what the gate validated on another CPU would saturate on this one, by one variant's
    figures."""
    return bool(validated.get("wide_sums")) and not has_wide_sums()


def parse_backend(text: str) -> dict[str, str]:
    """Backend by model, of `openvino` for all or of EXAMPLE; ValueError for what is none, or two for one
    model."""
    chosen: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        model, _, name = word.rpartition("=")
        if name not in BACKENDS:
            raise ValueError(
                f"BACKEND must be one of {', '.join(BACKENDS)}, or by model, as {EXAMPLE}: got {text}"
            )
        if model in chosen:
            raise ValueError(f"BACKEND must have one backend for each model, as {EXAMPLE}: got {text}")
        chosen[model] = name
    return chosen


def render_backend(chosen: Mapping[str, str]) -> str:
    """In one order, so that the same choice is the same plan."""
    return ",".join(f"{model}={name}" if model else name for model, name in sorted(chosen.items()))


def find_asked(chosen: Mapping[str, str], model: str, package_set: str) -> str:
    """What computes one model; what is not named, the first of the package set."""
    return chosen.get(model, chosen.get(ALL, SETS[package_set][0]))


def choose_set(backend: str) -> str:
    """The package set that has all that BACKEND names; ValueError where none has."""
    words = [word for word in backend.replace(",", " ").split() if word.rpartition("=")[2] in BACKENDS]
    needed = {word.rpartition("=")[2] for word in words}
    for name, backends in SETS.items():
        if needed <= {*backends}:
            return name
    homes = {word: [name for name in SETS if word.rpartition("=")[2] in SETS[name]] for word in words}
    told = ", ".join(f"{word} needs {names[0]}" for word, names in homes.items() if len(names) == 1)
    raise ValueError(
        f"BACKEND must name backends of one package set, because each has a torch of its own: got {told}; "
        "do: serve them by two servers, each with its own RUN_DIR and PORT"
    )


def read_set(prefix: Path) -> str | None:
    """That of an environment, by what its set-up wrote; None where no set-up of ours was."""
    try:
        return str(json.loads((prefix / "setup.json").read_text(encoding="utf-8"))["set"])
    except (OSError, ValueError, KeyError):
        return None


def find_set() -> str:
    """Of the environment that runs this."""
    return read_set(Path(sys.prefix)) or DEFAULT_SET


def name_store(package_set: str) -> str:
    """The folder of its archives, beside the code."""
    return "model-store" if package_set == DEFAULT_SET else f"model-store-{package_set}"


if __name__ == "__main__":
    print(choose_set(sys.argv[1]))
