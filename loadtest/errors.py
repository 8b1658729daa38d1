"""What can go wrong in a measurement, in words a person can act on."""


class LoadTestError(Exception):
    """A measurement cannot be made or is not valid; the message says what, got, do."""


class RejectedError(LoadTestError):
    """The kit says that it cannot serve a model so; `reason` is its own."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotMeasuredError(LoadTestError):
    """A kept result that was interrupted lacks a block."""


class CapacityError(LoadTestError):
    """What 100 % is cannot be told."""
