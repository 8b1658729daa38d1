"""What a plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from config.archives import ForeignArchive, ModelDefinition
from config.installed import Installed
from config.settings import Settings
from config.topology import Topology
from handlers.backends.catalogue import DEFAULT_SET


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
