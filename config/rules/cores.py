"""CORES: the CPUs each model has for itself, as `bert=0-3,8,resnet50=4-7`; the lists are the kernel's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from config.errors import ConfigError
from config.files import parse_id_list, render_id_list
from config.topology import Core, Topology

EXAMPLE = "bert=0-3,resnet50=4-7"
_RANGE = re.compile(r"\d{1,5}(-\d{1,5})?")


def parse_cores(text: str) -> dict[str, tuple[int, ...]]:
    """CPUs by model; commas or blanks part models and ranges alike."""
    lists: dict[str, list[str]] = {}
    name = ""
    for word in text.replace(",", " ").split():
        before, equals, after = word.rpartition("=")
        if equals:
            name = before
            if not name or name in lists:
                raise ConfigError(f"CORES must name each model once, as {EXAMPLE}: got {text}")
        if not name or not _RANGE.fullmatch(after):
            raise ConfigError(f"CORES must be lists of CPUs by model, as {EXAMPLE}: got {word} in {text}")
        lists.setdefault(name, []).append(after)
    cpus = {name: parse_id_list(",".join(ranges)) for name, ranges in lists.items()}
    for name, numbers in cpus.items():
        if not numbers:
            raise ConfigError(f"CORES must give {name} a CPU, as {EXAMPLE}: got {text}")
    return cpus


def render_cores(cpus: Mapping[str, Sequence[int]]) -> str:
    """In one order, so that the same lists are the same plan."""
    return ",".join(f"{name}={render_id_list(numbers)}" for name, numbers in sorted(cpus.items()))


def check_cores(topology: Topology, models: Sequence[str], asked: Mapping[str, Sequence[int]]) -> None:
    """Each model has CPUs, which this process may use, and no core with another one."""
    if sorted(asked) != sorted(models):
        raise ConfigError(
            f"CORES must name the models that are served, {', '.join(models)}: got {', '.join(sorted(asked))}"
        )
    for name, cpus in asked.items():
        others = set(cpus) - set(topology.cpus_allowed)
        if others:
            raise ConfigError(
                f"CORES must be CPUs that this process may use, {render_id_list(topology.cpus_allowed)}: "
                f"got {render_id_list(others)} for {name}"
            )
    for core in topology.cores:
        _check_core(core, asked)
    named = sum(len(take_cores(topology, cpus)) for cpus in asked.values())
    if named > topology.usable_cores:
        raise ConfigError(
            f"CORES must name at most {topology.usable_cores} physical cores, which is what the quota of "
            f"{topology.quota_cpus:g} CPUs keeps busy ({topology.quota_source}): got {named}"
        )


def take_cores(topology: Topology, cpus: Sequence[int]) -> tuple[Core, ...]:
    """The cores of these CPUs; of their siblings only those that were named."""
    taken = []
    for core in topology.cores:
        named = tuple(cpu for cpu in core.siblings if cpu in cpus)
        if named:
            taken.append(replace(core, cpu=min(named), siblings=tuple(sorted(named))))
    return tuple(taken)


def _check_core(core: Core, asked: Mapping[str, Sequence[int]]) -> None:
    """SMT siblings share what computes: two models on them would share a core."""
    owners = {name: set(core.siblings) & set(cpus) for name, cpus in asked.items()}
    names = [name for name in sorted(owners) if owners[name]]
    if len(names) > 1:
        shared = render_id_list(set.union(*owners.values()))
        what = (
            f"CPUs {shared}, which are one core," if len(set.union(*owners.values())) > 1 else f"CPU {shared}"
        )
        raise ConfigError(f"CORES must give a core to one model: got {what} for {' and '.join(names)}")
