"""What a plan is made from: settings, machine, archives, and what is installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.archives import (
    FOREIGN_SUFFIX,
    ForeignArchive,
    ModelDefinition,
    check_imports,
    read_definitions,
    read_foreign,
)
from config.errors import ConfigError
from config.installed import Installed, list_packages, read_installed
from config.settings import Settings
from config.topology import Topology, read_topology
from handlers.backends.catalogue import DEFAULT_SET, SETS, name_store, read_set

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a plan is made from, but for the batch profile and what was tuned."""

    settings: Settings
    machine: Topology
    archives: Mapping[str, ModelDefinition | tuple[ForeignArchive, ...]]
    """By model: the kit's definition, or the versions that others packed."""
    installed: Installed
    package_set: str = DEFAULT_SET
    prefix: str
    """The virtual environment that TorchServe runs in, absolute."""
    model_store: str
    """The folder of the kit's archives, absolute."""
    run_dir: str

    @property
    def live(self) -> bool:
        """Whether it is this machine, and not a recorded one."""
        return not self.settings.topology

    @property
    def kit(self) -> list[ModelDefinition]:
        """The kit's models, by name."""
        found = [one for one in self.archives.values() if isinstance(one, ModelDefinition)]
        return sorted(found, key=lambda one: one.name)

    @property
    def foreign(self) -> dict[str, tuple[ForeignArchive, ...]]:
        """Models whose archives others made."""
        return {name: one for name, one in self.archives.items() if isinstance(one, tuple)}

    def find_backend(self, model: str) -> str:
        """What is named for a model, else the first of the package set."""
        return str(self.settings.of_model("backend", model) or SETS[self.package_set][0])


def read_facts(settings: Settings) -> Facts:
    """Read everything; ConfigError for an archive that is missing or cannot be served."""
    prefix = Path(settings.prefix or sys.prefix).absolute()
    # Where no environment was set up, the one that has all named backends.
    package_set = read_set(prefix) or settings.package_set
    store = Path(settings.model_store or CHECKOUT / name_store(package_set)).absolute()
    given = {"BACKEND": settings.backend.get("*", ""), "PRECISION": settings.precision}
    build = " ".join(["make models", *(f"{name}={value}" for name, value in given.items() if value)])
    names = [name for name in settings.models if not name.endswith(FOREIGN_SUFFIX)]
    archives: dict[str, ModelDefinition | tuple[ForeignArchive, ...]] = {
        one.name: one for one in read_definitions(store, names, build)
    }
    files: set[str] = set()
    for path in (Path(name) for name in settings.models if name.endswith(FOREIGN_SUFFIX)):
        archive = read_foreign(path)
        if not settings.topology:
            check_imports(archive, list_packages(prefix))
        versions = archives.get(archive.name, ())
        others = (
            ["the kit's model"]
            if isinstance(versions, ModelDefinition)
            else [one.path for one in versions if one.version == archive.version]
        )
        if others or isinstance(versions, ModelDefinition):
            raise ConfigError(
                f"MODELS has two archives of {archive.name} {archive.version}: got {archive.path} beside "
                f"{others[0]}; serve them by two servers, or pack one with another --model-name or --version"
            )
        if path.name in files:
            raise ConfigError(
                f"MODELS has two files of one name, {path.name}, which one model store cannot have; rename "
                "one"
            )
        files.add(path.name)
        archives[archive.name] = (*versions, archive)
    return Facts(
        settings=settings, machine=read_topology(settings.topology or "/"), archives=archives,
        installed=read_installed(prefix), package_set=package_set, prefix=str(prefix), model_store=str(store),
        run_dir=str(Path(settings.run_dir).resolve()),
    )  # fmt: skip
