"""`python3 -m setup COMMAND`, in Python 3.6 syntax: an old Python gets a sentence, not a SyntaxError."""

import sys


def explain_python(version: "tuple[int, ...]", executable: str) -> "str | None":
    """The sentence for a Python that the pinned packages have no wheels for, else None."""
    if (3, 10) <= tuple(version[:2]) <= (3, 13):
        return None
    got = "{}.{} ({})\n  do: make PYTHON=python3.12, or the one you have".format(*version[:2], executable)
    return "Python must be 3.10 to 3.13, for which there are wheels: got " + got


if __name__ == "__main__":
    sentence = explain_python(sys.version_info[:3], sys.executable)
    if sentence:
        sys.exit(sentence)
    from setup.command import main

    sys.exit(main(sys.argv[1:]))
