"""Checks which allocator and OpenMP library a worker really uses: mapped, alone, resolved by the linker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from config.plan import Plan
from server.verify.evidence import WorkerEvidence
from server.verify.findings import Finding, compare, need_describe

# libtcm.so of intel-openmp is a thread manager, not tcmalloc.
_ALLOCATORS = re.compile(r"lib(jemalloc|tcmalloc|mimalloc|tbbmalloc_proxy|hoard|scalloc)")
_OPENMP = re.compile(r"lib(iomp5|gomp|omp)[-.]")
# Below its smallest large size class jemalloc turns the threshold off and says 0 (arena_init_huge).
_SMALLEST_LARGE_SIZE = 16384
_LINK_CURE = "the launcher found no library to preload: make stop && make serve makes the link again"


@need_describe("allocator")
def check_allocator(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The planned allocator is mapped, no other one is, and malloc resolves to it."""
    name = str(plan.libraries.allocator.value)
    path = plan.libraries.allocator_path.value
    wanted = {str(Path(path).resolve())} if path else set()
    mapped = {file for file in seen.libraries or () if _ALLOCATORS.search(Path(file).name)}
    resolved = _get(seen, "allocator", "name")
    got = f"malloc is {resolved or 'unknown'}; mapped: {render_names(mapped)}"
    return compare(
        "allocator",
        f"malloc is {name}; mapped: {render_names(wanted)}",
        got,
        evidence="/proc/PID/maps, describe (dladdr of malloc)",
        cure=_LINK_CURE
        if mapped != wanted
        else "another library's malloc comes first: see LD_PRELOAD in the environment",
        same=seen.libraries is not None and mapped == wanted and resolved == name,
    )


@need_describe("allocator options")
def check_allocator_options(plan: Plan, seen: WorkerEvidence) -> Finding:
    """jemalloc runs with the options of the plan's MALLOC_CONF, as it says itself."""
    setting = plan.environment.get("MALLOC_CONF")
    asked = (
        expect_options(str(setting.value)) if setting and plan.libraries.allocator.value == "jemalloc" else {}
    )
    if not asked:
        return compare("allocator options", "none", "none", evidence="no MALLOC_CONF in the plan", cure="")
    live = _get(seen, "allocator", "options") or {}
    got = {option: render_option(live[option]) for option in asked if option in live}
    unread = sorted(set(asked) - set(got))
    cure = "MALLOC_CONF did not reach jemalloc; nothing else may set it: make stop && make serve"
    if unread:
        cure = (
            f"not read back: {', '.join(unread)}; is jemalloc the allocator, and does it know these options?"
        )
    return compare(
        "allocator options",
        _render(asked),
        _render(got) or "none",
        evidence="describe (mallctl opt.*)",
        cure=cure,
    )


def parse_malloc_conf(text: str) -> dict[str, str]:
    """"a:1,b:true" → {"a": "1", "b": "true"} (jemalloc(3))."""  # fmt: skip
    return dict(
        sorted((name, value) for name, _, value in (part.partition(":") for part in text.split(",")) if name)
    )


def expect_options(malloc_conf: str) -> dict[str, str]:
    """What jemalloc says of itself under that MALLOC_CONF."""
    options = parse_malloc_conf(malloc_conf)
    if 0 < int(options.get("oversize_threshold", 0)) < _SMALLEST_LARGE_SIZE:
        options["oversize_threshold"] = "0"
    return options


def render_option(value: Any) -> str:
    """As MALLOC_CONF writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _render(options: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in options.items())


@need_describe("OpenMP")
def check_openmp(plan: Plan, seen: WorkerEvidence) -> Finding:
    """The parallel regions resolve to the planned library; libgomp may be mapped too (torch brings it)."""
    name = str(plan.libraries.openmp.value)
    path = plan.libraries.openmp_path.value
    resolved, library = _get(seen, "openmp", "name"), _get(seen, "openmp", "library")
    mapped = {file for file in seen.libraries or () if _OPENMP.search(Path(file).name)}
    same = resolved == name and library in mapped
    if path:
        same = same and library == str(Path(path).resolve())
    return compare(
        "OpenMP",
        f"{name}" + (f" ({Path(path).name})" if path else ""),
        f"{resolved or 'unknown'} ({Path(library).name if library else 'no answer'})",
        evidence=f"describe (dladdr of GOMP_parallel), mapped: {render_names(mapped)}",
        cure=_LINK_CURE + "; libiomp5.so comes with the package intel-openmp: make setup",
        same=same,
    )


def render_names(paths: set[str]) -> str:
    """File names for a person."""
    return ", ".join(sorted(Path(path).name for path in paths)) or "none"


def _get(seen: WorkerEvidence, section: str, name: str) -> Any:
    return ((seen.describe or {}).get(section) or {}).get(name)
