"""`python3 -m setup COMMAND`, in Python 3.6 syntax: an old Python gets a sentence, not a SyntaxError."""

import sys


def explain_python(version: "tuple[int, ...]", executable: str) -> str:
    """The sentence for a Python that the pinned packages have no wheels for; empty for the others."""
    text = "Python must be 3.10 to 3.13, which have wheels: got {}.{} ({})\n  do: make PYTHON=python3.12"
    return "" if (3, 10) <= tuple(version[:2]) <= (3, 13) else text.format(*version[:2], executable)


if __name__ == "__main__":
    sentence = explain_python(sys.version_info[:3], sys.executable)
    if sentence:
        sys.exit(sentence)
    from setup.command import main

    main(sys.argv[1:])
