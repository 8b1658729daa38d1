"""The exceptions of this package: their text says what is wrong, which value, what was got and what to do."""

from __future__ import annotations

from collections.abc import Iterable


class ConfigError(ValueError):
    """A value that cannot be planned with; the message is meant for a person and shown without a
    traceback."""


class FitError(ConfigError):
    """More was asked for than these cores and this memory hold; fewer instances have more of both each."""


def must_be_one_of(name: str, got: object, allowed: Iterable[object]) -> ConfigError:
    """The error for a value outside a closed list: names the setting, the allowed values and what came."""
    return ConfigError(f"{name} must be one of {', '.join(str(item) for item in allowed)}: got {got}")
