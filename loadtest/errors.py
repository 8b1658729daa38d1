"""What can go wrong in a measurement, in words a person can act on."""


class LoadTestError(Exception):
    """A measurement cannot be made or is not valid; the message says what, which, got, do."""
