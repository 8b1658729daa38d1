"""The two kinds of failure of a handler: a model that cannot load, a request that cannot be answered."""

from __future__ import annotations


class LoadError(Exception):
    """A model cannot be loaded as it was asked for; `fix` says what to install or change."""

    def __init__(self, cause: str, *, fix: str) -> None:
        super().__init__(f"{cause}; {fix}")
        self.cause = cause
        self.fix = fix


class BadRequest(Exception):  # noqa: N818 (as HTTP and web frameworks name it)
    """One request cannot be answered; only this request gets `status`, its batch goes on."""

    def __init__(self, status: int, message: str, *, cause: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.cause = cause or message
        """What is logged: the message, where that quotes nothing of what the client sent."""
