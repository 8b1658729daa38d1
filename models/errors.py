"""What can go wrong when an archive is built, in words a person can act on."""


class BuildError(Exception):
    """An archive cannot be built; the message says what, which, got, do."""


class InputError(BuildError):
    """A value given on the command line is not among the allowed ones."""


class DownloadError(Exception):
    """Public weights cannot be had now; not an error where random weights will do."""
