"""`python3 -m config.knobs`, in Python 3.6 syntax: an older Python gets a sentence, not a SyntaxError."""

import sys

OLDEST = (3, 10)

if __name__ == "__main__":
    if sys.version_info < OLDEST:
        got = sys.version.split()[0]
        sys.exit("knobs: Python must be 3.10 or newer: got " + got + "; do: make PYTHON=python3.12")
    from config.knobs.commands import main

    sys.exit(main(sys.argv[1:]))
