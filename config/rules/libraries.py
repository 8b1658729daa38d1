"""Which allocator and which OpenMP library the workers preload, and the variables that come with them."""

from __future__ import annotations

from config.errors import ConfigError
from config.installed import ALLOCATOR_PACKAGES, OPENMP_FILE, Installed
from config.knobs.table import find
from config.plan import Inputs, Libraries, Setting

MALLOC_CONF = (
    "oversize_threshold:1,background_thread:false,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
    "lg_extent_max_active_fit:16"
)
"""The launcher's three options, of which one the other way round, and three more; it keeps what is set.

Decay -1: never give pages back. With the launcher's three alone ResNet50 got slower than with glibc's
allocator (15.8 → 12.6 images/s), with the pages kept twice as fast (31).
Fit 16: a kept block may serve requests down to 1/65,536 of its size. By default, 1/64, blocks that texts of
many lengths left behind are not used again: BERT in INT8 grew by 0.6 MiB a request; now by none (seen).
No background thread: it gives pages back, so here it has nothing to do, but what is freed wakes it: 6,500
times a second on the core that computes (BERT in INT8, seen in /proc/PID/task/*/status)."""

ALLOCATOR_FLAGS = {
    "jemalloc": "--enable_jemalloc",
    "tcmalloc": "--enable_tcmalloc",
    # without any flag the launcher takes whatever it finds, tcmalloc first
    "system": "--use_default_allocator",
}

OPENMP_FLAGS = {"intel": "", "gnu": "--disable_iomp"}

ALLOCATOR_REASONS = {
    "jemalloc": "with page return off it keeps the activations' memory: ResNet50 doubled over glibc's malloc",
    "tcmalloc": "as fast as jemalloc for these models",
    "system": "glibc's malloc gives large blocks back after each batch and pays in page faults",
}

OPENMP_REASONS = {
    "intel": "Intel's kernels are tuned for it, and KMP_AFFINITY can pin its threads one to a core",
    "gnu": "torch's own libgomp, which no launcher setting pins inside the worker's CPUs",
}


def plan_libraries(inputs: Inputs, installed: Installed) -> Libraries:
    """Real files and the names the launcher looks for; a missing library is an error on the live machine."""
    allocator = inputs.allocator or find("ALLOCATOR").default
    openmp = inputs.openmp or find("OPENMP").default
    given = {True: "asked for", False: "default"}
    return Libraries(
        allocator=Setting(
            value=allocator, reason=f"{given[inputs.allocator is not None]}: {ALLOCATOR_REASONS[allocator]}"
        ),
        allocator_path=_plan_allocator_path(allocator, inputs, installed),
        allocator_link=_plan_allocator_link(allocator, inputs),
        openmp=Setting(value=openmp, reason=f"{given[inputs.openmp is not None]}: {OPENMP_REASONS[openmp]}"),
        openmp_path=_plan_openmp_path(openmp, inputs, installed),
    )


def render_library_flags(libraries: Libraries) -> str:
    """The launcher's flags for both."""
    flags = (ALLOCATOR_FLAGS[libraries.allocator.value], OPENMP_FLAGS[libraries.openmp.value])
    return " ".join(flag for flag in flags if flag)


def list_preloads(libraries: Libraries) -> list[str]:
    """LD_PRELOAD in the launcher's order: each library it finds goes in front, the allocator before
    OpenMP."""
    found = (libraries.openmp_path.value, libraries.allocator_link.value)
    return [path for path in found if path]


def _plan_allocator_path(allocator: str, inputs: Inputs, installed: Installed) -> Setting:
    if allocator == "system":
        return Setting(value=None, reason="glibc's malloc is always there")
    path = installed.allocators.get(allocator)
    if path is None and inputs.topology == "live":
        package = ALLOCATOR_PACKAGES[allocator]
        raise ConfigError(
            f"ALLOCATOR={allocator}: its library is not on this machine: install it (apt install {package}) "
            "or use ALLOCATOR=system"
        )
    return Setting(value=path, reason="the real file" if path else "not on the machine this was planned on")


def _plan_allocator_link(allocator: str, inputs: Inputs) -> Setting:
    if allocator == "system":
        return Setting(value=None, reason="nothing is preloaded")
    reason = (
        "the launcher finds lib<name>.so only in $VIRTUAL_ENV/lib and folders where distributions have none"
    )
    return Setting(value=f"{inputs.prefix}/lib/lib{allocator}.so", reason=reason)


def _plan_openmp_path(openmp: str, inputs: Inputs, installed: Installed) -> Setting:
    if openmp == "gnu":
        return Setting(value=None, reason="libgomp comes with torch and is not preloaded")
    if installed.openmp is None and inputs.topology == "live":
        raise ConfigError(
            f"OPENMP=intel: {inputs.prefix}/lib/{OPENMP_FILE} is missing: run `make setup` "
            "(pip install intel-openmp) or use OPENMP=gnu"
        )
    path = f"{inputs.prefix}/lib/{OPENMP_FILE}"
    return Setting(value=path, reason="where pip puts intel-openmp's library, and where the launcher looks")
