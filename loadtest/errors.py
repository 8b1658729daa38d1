"""What can go wrong in a measurement, in words a person can act on."""


class LoadTestError(Exception):
    """A measurement cannot be made or is not valid; the message says what, which, got, do."""


class RefusedError(LoadTestError):
    """The kit says that it cannot serve so; `reason` is its own."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
