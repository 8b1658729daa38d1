"""The exceptions of this package: their text says what is wrong, which value, what was got and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class ConfigError(ValueError):
    """A value that cannot be planned with; the message is meant for a person and shown without a
    traceback."""


class FitError(ConfigError):
    """More was asked for than these cores and this memory hold; fewer instances have more of both each."""


def explain_invalid(problem: ValidationError) -> str:
    """The first field of a file that is not as it must be, why, and the beginning of what was got."""
    first = problem.errors()[0]
    where = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
    return f"{where}{first['msg']}: got {str(first['input'])[:80]}"
