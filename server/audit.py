"""`python -m server.audit`: known holes of what is installed, and which are accepted why.

Of Python packages PyPI's advisories are asked, by pip-audit. Nobody can be asked of the Java libraries inside
TorchServe's jar, which are classes without packages: theirs stand in requirements/accepted.yaml alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import yaml

from handlers.engines.stacks import read_stack
from server.errors import ServerError

ACCEPTED = Path(__file__).parent.parent / "requirements" / "accepted.yaml"
GOOD, HOLES, NOT_RUN, NOT_ASKED = 0, 1, 2, 3
"""Exit codes: all is accepted; something is not; it could not be run; PyPI could not be asked of all."""
_ENDS = {GOOD: "what is known is accepted", HOLES: "not all is accepted", NOT_ASKED: "not all could be asked"}
_SHOWN = 5
_NETTY = re.compile(r"^netty-codec-http\.version=(\S+)$", re.MULTILINE)
_LOG4J = re.compile(r"org\.apache\.logging\.log4j:log4j-core:jar:(\S+)")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """One hole that is known and lived with."""

    id: str
    """Its CVE number, or what the advisory is called."""
    package: str
    """As installed; a Java library by its own name."""
    fixed: str
    """The first version without it."""
    why: str
    """What keeps it from doing harm here, and why the fixed version is not taken."""
    until: date
    """To be looked at again by then."""


@dataclass(frozen=True, kw_only=True)
class Hole:
    """One that PyPI knows of."""

    package: str
    version: str
    names: tuple[str, ...]
    """Its id and aliases."""
    fixed: tuple[str, ...]
    """Versions without it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What PyPI said."""

    holes: tuple[Hole, ...] = ()
    unasked: Mapping[str, str] | None = None
    """Package → why nothing is known of it."""


def read_accepted(file: Path = ACCEPTED) -> tuple[date, list[Accepted]]:
    """The list and its date; ServerError names a line that is not one."""
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        return raw["dated"], [Accepted(**entry) for entry in raw["accepted"]]
    except (KeyError, TypeError) as problem:
        raise ServerError(
            f"{file}: must hold `dated` and `accepted`, each with {', '.join(Accepted.__annotations__)}: "
            f"got {problem}"
        ) from problem


def read_installed() -> dict[str, str]:
    """Package → version, without the local part: advisories speak of 2.8.0, not of 2.8.0+cpu."""
    return {_normalise(one.name): one.version.partition("+")[0] for one in distributions()}


def _normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_java(jar: Path | None = None) -> dict[str, str]:
    """Java library → version, of those whose version TorchServe's jar states."""
    with zipfile.ZipFile(jar or find_jar()) as archive:
        netty = _NETTY.search(archive.read("META-INF/io.netty.versions.properties").decode())
        log4j = _LOG4J.search(archive.read("META-INF/DEPENDENCIES").decode())
    found = {"netty": netty, "log4j": log4j}
    return {name: match[1] for name, match in found.items() if match}


def find_jar() -> Path:
    """TorchServe's, all Java libraries in one."""
    spec = find_spec("ts")
    if spec is None or spec.origin is None:
        raise ServerError("TorchServe is not installed: run `make setup`")
    return Path(spec.origin).parent / "frontend" / "model-server.jar"


def ask_pypi(installed: Mapping[str, str]) -> Answer:
    """Every advisory for these versions; what pip-audit skips, it reports as if it had no holes."""
    if find_spec("pip_audit") is None:
        return Answer(
            unasked=dict.fromkeys(installed, "pip-audit is not installed: `make audit` installs it")
        )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.writelines(f"{name}=={version}\n" for name, version in installed.items())
        wanted.flush()
        command = [sys.executable, "-m", "pip_audit", "--requirement", wanted.name, "--no-deps"]
        command += ["--disable-pip", "--format", "json", "--progress-spinner", "off"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_answer(done.stdout, done.stderr, installed)


def parse_answer(output: str, errors: str, installed: Mapping[str, str]) -> Answer:
    """What pip-audit printed; without an answer nothing was asked, whatever its exit code."""
    try:
        entries = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (errors.strip().splitlines() or ["pip-audit printed nothing"])[-1]
        return Answer(unasked=dict.fromkeys(installed, reason))
    unasked = {entry["name"]: entry["skip_reason"] for entry in entries if "skip_reason" in entry}
    lost = installed.keys() - {_normalise(entry["name"]) for entry in entries}
    holes = [
        Hole(
            package=_normalise(entry["name"]),
            version=entry["version"],
            names=(hole["id"], *hole.get("aliases", ())),
            fixed=tuple(hole.get("fix_versions", ())),
        )
        for entry in entries
        for hole in entry.get("vulns", ())
    ]
    return Answer(holes=tuple(holes), unasked={**unasked, **dict.fromkeys(lost, "pip-audit left it out")})


def audit(
    accepted: Iterable[Accepted], installed: Mapping[str, str], answer: Answer, today: date
) -> tuple[list[str], int]:
    """The lines to print and the exit code."""
    here = [one for one in accepted if one.package in installed and _is_open(one, installed)]
    living = [one for one in here if one.until >= today]
    known = {(one.package, one.id) for one in living}
    new = [hole for hole in answer.holes if known.isdisjoint((hole.package, name) for name in hole.names)]
    lines = [f"accepted, {len(living)}:", *(_render_accepted(one, installed) for one in living)]
    over = [one for one in here if one.until < today]
    if over:
        lines += ["accepted no longer; look at them again:", *(_render_accepted(o, installed) for o in over)]
    if new:
        lines += [f"not accepted, {len(new)}:", *map(_render_hole, new)]
    lines += _render_unasked(answer.unasked or {})
    code = HOLES if new or over else NOT_ASKED if answer.unasked else GOOD
    return lines, code


def _is_open(one: Accepted, installed: Mapping[str, str]) -> bool:
    return parse_version(installed[one.package]) < parse_version(one.fixed)


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers at its beginning: 4.1.53.Final is (4, 1, 53)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _render_accepted(one: Accepted, installed: Mapping[str, str]) -> str:
    return (
        f"  {one.package} {installed[one.package]}  {one.id}  (fixed in {one.fixed}, until {one.until})\n"
        f"    {' '.join(one.why.split())}"
    )


def _render_hole(hole: Hole) -> str:
    fixed = ", ".join(hole.fixed) or "-"
    return f"  {hole.package} {hole.version}  {', '.join(hole.names)}  (fixed in {fixed})"


def _render_unasked(unasked: Mapping[str, str]) -> list[str]:
    if not unasked:
        return []
    names = sorted(unasked)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    reason = " ".join(unasked[names[0]].split())
    return [
        f"PyPI could not be asked of {len(names)} packages: {', '.join(names[:_SHOWN])}{more}",
        f"  {reason}",
        "  do: run it where PyPI itself answers; a mirror has the packages, but not their advisories",
    ]


def main(ask: Callable[[Mapping[str, str]], Answer] = ask_pypi) -> int:
    """Print the list; GOOD, HOLES, NOT_RUN or NOT_ASKED."""
    today = date.today()
    try:
        dated, accepted = read_accepted()
        installed = read_installed()
        libraries = {**installed, **read_java()}
    except ServerError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return NOT_RUN
    print(
        f"audit of {today}, STACK={read_stack(Path(sys.prefix))}: {len(libraries)} packages and libraries; "
        f"accepted.yaml is of {dated}",
        flush=True,
    )
    lines, code = audit(accepted, libraries, ask(installed), today)
    print("\n".join([*lines, f"audit: {_ENDS[code]}"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
