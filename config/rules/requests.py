"""Refuses what cannot be planned: values outside their lists, and machines that lack what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from config.definitions import ModelDefinition
from config.errors import ConfigError, must_be_one_of
from config.plan import Inputs
from config.topology import Topology

PRECISIONS = ("fp32", "bf16", "int8")
PROFILES = ("throughput", "latency")
ALLOCATORS = ("jemalloc", "tcmalloc", "system")
OPENMPS = ("intel", "gnu")

BF16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Either computes BF16 in hardware; without them IPEX converts to FP32 and back, slower than FP32."""

INT8_FLAGS = ("avx512_vnni", "amx_int8")
"""Either multiplies INT8 in hardware; without them INT8 is no faster than FP32."""

PRECISION_FLAGS = {"bf16": BF16_FLAGS, "int8": INT8_FLAGS}

MAX_PORT = 64000
"""PORT + 920 and upwards name the workers' sockets and must stay below 65535."""


def check_inputs(inputs: Inputs) -> None:
    """Each value against what is allowed."""
    for name, value, allowed in (
        ("PRECISION", inputs.precision, PRECISIONS),
        ("PROFILE", inputs.profile, PROFILES),
        ("ALLOCATOR", inputs.allocator or ALLOCATORS[0], ALLOCATORS),
        ("OPENMP", inputs.openmp or OPENMPS[0], OPENMPS),
    ):
        if value not in allowed:
            raise must_be_one_of(name, value, allowed)
    if not 1 <= inputs.port <= MAX_PORT:
        raise ConfigError(
            f"PORT must be 1 to {MAX_PORT} (PORT + 920 names the workers' sockets): got {inputs.port}"
        )


def check_machine(topology: Topology, inputs: Inputs) -> None:
    """What the CPU must have."""
    if inputs.ipex and "avx2" not in topology.flags:
        raise ConfigError(f"IPEX needs a CPU with avx2: {topology.model_name} has none; plan with --no-ipex")
    if inputs.precision == "int8" and not inputs.ipex:
        raise ConfigError("PRECISION=int8 needs IPEX: got --no-ipex; leave it out, or use PRECISION=fp32")
    flags = PRECISION_FLAGS.get(inputs.precision)
    if flags and not set(flags) & set(topology.flags):
        raise ConfigError(
            f"PRECISION={inputs.precision} needs a CPU with one of {', '.join(flags)}: "
            f"{topology.model_name} has {', '.join(topology.flags) or 'none of the known ones'}; "
            "use PRECISION=fp32"
        )


def check_models(models: Sequence[ModelDefinition], inputs: Inputs) -> None:
    """What the definitions must have."""
    for model in models:
        file = f"models/{model.name}/model.yaml"
        if inputs.precision not in model.precisions:
            raise ConfigError(
                f"PRECISION must be one of {', '.join(model.precisions)} for {model.name}: "
                f"got {inputs.precision} (field precisions, {file})"
            )
        if inputs.precision not in model.worker_memory_mib:
            raise ConfigError(f"field worker_memory_mib.{inputs.precision} is missing: add it ({file})")
