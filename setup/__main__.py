"""`python3 -m setup`, in Python 3.6 syntax: an old Python gets a sentence, not a SyntaxError."""

import sys

OLDEST, NEWEST = (3, 10), (3, 13)


def explain_python(version: "tuple[int, ...]", executable: str) -> "str | None":
    """The sentence for a Python that the pinned packages have no wheels for, or None."""
    if OLDEST <= tuple(version[:2]) <= NEWEST:
        return None
    return (
        "Python must be one of 3.10, 3.11, 3.12, 3.13 (the pinned packages have wheels for these): "
        f"got {version[0]}.{version[1]} ({executable})\n"
        "  do: install one of them and run `make <target> PYTHON=python3.12` (or the one you have)"
    )


if __name__ == "__main__":
    sentence = explain_python(sys.version_info[:3], sys.executable)
    if sentence:
        sys.exit(sentence)
    from setup.environment import main

    sys.exit(main(sys.argv[1:]))
