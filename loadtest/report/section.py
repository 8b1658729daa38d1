"""What a section of the report is made of, whatever was measured: one experiment gives one section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadtest.trials.validity import Finding


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table with its title and what must be known to read it."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One picture, twice."""

    name: str
    """Of its file, without a suffix."""
    title: str
    png: bytes
    svg: bytes


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture that is looked into: an SVG with a program of its own, which needs nothing from elsewhere."""

    name: str
    """Of its file, without a suffix."""
    title: str
    svg: bytes


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A finding and where it was made; a remark where nothing is wrong with the figures."""

    where: str
    """A scenario with its load, a rung, a row."""
    state: str
    evidence: str = ""
    next_step: str = ""
    invalid: bool = True


@dataclass(frozen=True, kw_only=True)
class Section:
    """One kept result on a page."""

    title: str
    notes: tuple[str, ...]
    """Host, servers, time; what belongs above every figure."""
    tables: tuple[Table, ...]
    """Of figures; those without rows are left out."""
    plots: tuple[Plot, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    """On the HTML page and as files; documents have none of them."""
    proofs: tuple[Table, ...] = ()
    """What the figures stand on: answers, settings, accuracy."""
    findings: tuple[Doubt, ...] = ()
    closing: tuple[str, ...] = ()
    """How it was measured, in paragraphs below all else."""
    whole: bool = True
    """Whether all that was asked was measured; only such results go to the documents."""

    @property
    def valid(self) -> bool:
        """Whether every figure in it may be quoted."""
        return not any(one.invalid for one in self.findings)


def make_doubts(where: str, findings: Iterable[Finding]) -> tuple[Doubt, ...]:
    """What the rules found of one series."""
    return tuple(
        Doubt(
            where=where, state=one.state, evidence=one.evidence, next_step=one.next_step, invalid=one.invalid
        )
        for one in findings
    )
