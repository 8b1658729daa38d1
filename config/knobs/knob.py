"""What is known of a knob: a value that a person gives by name to make, to the container or to compose."""

from __future__ import annotations

from dataclasses import dataclass

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
