"""What can go wrong with the server, in words for the person who typed the command."""

RESTART = "make stop && make serve"
"""What to do about a running server that is not what it should be."""


class ServerError(Exception):
    """Something asked for cannot be done; the text says what, which, got, do."""


class ApiError(ServerError):
    """TorchServe answered with an error, or not at all (status 0)."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
