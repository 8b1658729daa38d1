"""`python -m loadtest COMMAND`."""

import sys

from loadtest.commands import main

if __name__ == "__main__":
    sys.exit(main())
