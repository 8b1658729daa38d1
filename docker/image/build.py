"""Builds the image, and judges its size."""

from __future__ import annotations

import subprocess
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from docker.image.engines import Engine, ImageError
from handlers.engines.backend import AUTO, parse_backend
from handlers.engines.engine import STACKS
from handlers.engines.stacks import list_of_stack

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 1_800_000_000
"""With the CPU-only wheels: half of it is torch and its default engine, a fifth Java and Debian."""
ENGINE_BYTES = {"openvino": 500_000_000}
"""What BACKEND may add to it: OpenVINO has 190 MB, what NNCF needs (SciPy, scikit-learn) is the rest."""
CUDA_FOLDER = "/opt/kit/.venv/lib/python3.11/site-packages/nvidia"

LARGEST_CA = 100_000
"""Linux takes 128 KiB in one argument of a command (MAX_ARG_STRLEN)."""


def build(engine: Engine, options: Namespace) -> int:
    """0 built, 1 failed or too large."""
    check_values(options)
    command = render_build(engine, options, read_facts())
    print(f"building {options.tag} with {engine.name}", flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise ImageError(f"the build of {options.tag} failed (see above)")
    text, good = judge_size(
        options.tag,
        engine.read_size(options.tag),
        lambda: engine.succeeds_inside(options.tag, "test", "-d", CUDA_FOLDER),
        MAX_BYTES + sum(ENGINE_BYTES.get(name, 0) for name in list_engines(options)),
    )
    print(text)
    return 0 if good else 1


def check_values(options: Namespace) -> None:
    """Refuse what an image would carry to others without a word."""
    for knob, value in (("TORCH_INDEX", options.torch_index), ("--pip-index", options.pip_index)):
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise ImageError(
                f"{knob} must hold no name or password for an image: the engine keeps build arguments; "
                "use an index that asks for none, such as a mirror on this machine (NETWORK=host)"
            )
    list_engines(options)
    lacking = [
        name for name in options.models.replace(",", " ").split() if not _is_named(name, options.weights)
    ]
    if lacking:
        raise ImageError(
            "WEIGHTS must be pretrained or random where MODELS are baked in: got "
            f"{options.weights or 'nothing'} for {', '.join(lacking)}; auto takes random weights where the "
            "public ones cannot be had, and the image would carry them to others"
        )


def list_engines(options: Namespace) -> set[str]:
    """That BACKEND names, or the stack's default; ImageError where it names none, or one of another stack."""
    stack = options.stack or STACKS[0]
    if stack not in STACKS:
        raise ImageError(f"STACK must be one of {', '.join(STACKS)}: got {stack}")
    there = list_of_stack(stack)
    try:
        named = {*parse_backend(options.backend).values()} or {there[0]}
    except ValueError as problem:
        raise ImageError(str(problem)) from problem
    foreign = ", ".join(sorted(named - {*there, AUTO}))
    if foreign:
        raise ImageError(f"BACKEND must be among {', '.join(there)} for STACK={stack}: got {foreign}")
    return named


def _is_named(model: str, weights: str) -> bool:
    """Whether WEIGHTS, `WORD` or `MODEL=WORD,…`, says a word for this model, and not `auto`."""
    pairs = [part.strip().rpartition("=") for part in weights.split(",")]
    words = [word for name, _, word in pairs if name in ("", model)]
    return bool(words) and not {*words} & {"", "auto"}


def render_build(engine: Engine, options: Namespace, facts: dict[str, str]) -> list[str]:
    """The command line; what is not given is left to the Dockerfile."""
    arguments = {
        "MODELS": options.models,
        "WEIGHTS": options.weights,
        "BACKEND": options.backend,
        "STACK": options.stack,
        "TORCH_INDEX": options.torch_index,
        "PIP_INDEX_URL": options.pip_index,
        "BASE": options.base,
        "DEBIAN_SNAPSHOT": options.snapshot,
        "EXTRA_CA": read_certificates(options.ca_file),
        **facts,
    }
    given = [
        word for name, value in arguments.items() if value for word in ("--build-arg", f"{name}={value}")
    ]
    network = ["--network", options.network] if options.network else []
    return [*engine.build_words(), *network, "--file", options.file, "--tag", options.tag, *given, "."]


def read_certificates(name: str) -> str:
    """The text of CA_FILE; a build argument, because only BuildKit could mount the file."""
    if not name:
        return ""
    try:
        text = Path(name).read_text(encoding="ascii")
    except (OSError, ValueError) as problem:
        raise ImageError(f"CA_FILE cannot be read: {name}: {problem}") from problem
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ImageError(
            f"CA_FILE must hold certificates as PEM (-----BEGIN CERTIFICATE-----): {name} holds none"
        )
    if len(text) > LARGEST_CA:
        raise ImageError(
            f"CA_FILE may have {LARGEST_CA} bytes: got {len(text)} ({name}); give the proxy's certificate "
            "alone, not all that the machine trusts"
        )
    return text


def read_facts(root: Path = ROOT) -> dict[str, str]:
    """What the labels say: the commit, not the clock."""
    return {
        "VERSION": _git(root, "describe", "--tags", "--always", "--dirty"),
        "REVISION": _git(root, "rev-parse", "HEAD"),
        "CREATED": _git(root, "log", "-1", "--format=%cI"),
    }


def _git(root: Path, *words: str) -> str:
    """Empty outside a repository: the labels stay empty then."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def judge_size(tag: str, size: int, has_cuda: Callable[[], bool], limit: int = MAX_BYTES) -> tuple[str, bool]:
    """The line to print, and whether the image may be that large."""
    line, at_most = f"{tag}: {render_bytes(size)}", f"at most {render_bytes(limit)}"
    if size <= limit:
        return f"{line} ({at_most})", True
    if has_cuda():
        return (
            f"{line}: it holds the CUDA build of torch, which is all that could be had; {at_most} only holds "
            "for the CPU-only wheels (TORCH_INDEX=…)"
        ), True
    return f"error: {line}, must be {at_most}: look for what came in newly", False


def render_bytes(size: int) -> str:
    """As registries count: 10⁹."""
    return f"{size / 1e9:.2f} GB"


def list_build_options() -> Sequence[tuple[str, str, str]]:
    """(option, default, help)."""
    return (
        ("--models", "", "archives to bake in; default: none, they are mounted"),
        ("--weights", "", "their weights: pretrained, random"),
        ("--backend", "", "engines to install, and to bake archives for, beside those of every image"),
        ("--stack", "", " or ".join(STACKS)),
        ("--torch-index", "", "where torch comes from"),
        ("--pip-index", "", "where the other wheels come from"),
        ("--base", "", "base image (default: debian:bookworm-slim)"),
        ("--snapshot", "", "moment of Debian's archive, as 20250801T000000Z"),
        ("--ca-file", "", "certificates (PEM) to trust while downloading"),
        ("--network", "", "network of the build, such as host"),
        ("--file", "docker/Dockerfile", "Dockerfile"),
    )
