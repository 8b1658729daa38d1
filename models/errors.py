"""What can go wrong when an archive is built, in words a person can act on."""


class BuildError(Exception):
    """An archive cannot be built as asked; the message says what, which, got, do."""
