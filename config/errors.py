"""The exceptions of this package: their text says what is wrong, which value, what was got and what to do."""

from __future__ import annotations


class ConfigError(ValueError):
    """A value that cannot be planned with; the message is meant for a person and shown without a
    traceback."""


class FitError(ConfigError):
    """More was asked for than these cores and this memory hold; fewer instances have more of both each."""
