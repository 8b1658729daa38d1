"""`kit reload`: as `make reload`, to new archives or to knobs of `docker exec --env`."""

from __future__ import annotations

import os
import sys

from docker.settings import SettingsError, read_settings
from server import cli


def main() -> int:
    """0 moved, 1 the server is what it was, 2 a value that cannot be used."""
    try:
        settings = read_settings(os.environ)
    except SettingsError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return cli.main(settings.reload_arguments())


if __name__ == "__main__":
    sys.exit(main())
