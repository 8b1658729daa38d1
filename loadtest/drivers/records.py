"""Raw records: one row a request, kept as they were seen and never rounded to statistics.

Times are seconds from the begin of the measured window, so that warm-up is negative.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

COLUMNS = ("trial", "payload", "scheduled_s", "sent_s", "ended_s", "status", "answer", "error")
NO_ANSWER = -1


@dataclass(frozen=True, kw_only=True)
class Records:
    """The requests of one repeat; arrays of one length."""

    payload: np.ndarray
    """Number of the payload."""
    scheduled: np.ndarray
    """When the request was due; NaN in a closed loop, where nothing is."""
    sent: np.ndarray
    """When it was sent."""
    ended: np.ndarray
    """When its answer was complete, or it was given up."""
    status: np.ndarray
    """HTTP status; 0 without an answer."""
    answer: np.ndarray
    """Number of its answer in `answers`; -1 when none was kept."""
    error: np.ndarray
    """What went wrong, in a few words; empty when nothing did."""
    answers: tuple[str, ...] = ()
    """The different answers that were seen."""

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def good(self) -> np.ndarray:
        """Which requests were answered with 2xx and whole."""
        return (self.status >= 200) & (self.status < 300) & (self.error == "")

    @property
    def begun(self) -> np.ndarray:
        """When the request began for the one who waits: when it was due, or in a closed loop was sent."""
        return np.where(np.isnan(self.scheduled), self.sent, self.scheduled)

    @property
    def latency(self) -> np.ndarray:
        """Seconds waited; in an open loop counted from when the request was due."""
        return self.ended - self.begun

    @property
    def lag(self) -> np.ndarray:
        """Seconds the generator itself was late; NaN in a closed loop."""
        return self.sent - self.scheduled

    def within(self, begin_s: float, end_s: float) -> Records:
        """The requests that began in the window, warm-up and cool-down excluded."""
        return self.take((self.begun >= begin_s) & (self.begun < end_s))

    def take(self, chosen: np.ndarray) -> Records:
        """Some of the requests, by mask or index."""
        columns = {name: getattr(self, name)[chosen] for name in ROW}
        return Records(**columns, answers=self.answers)


ROW = ("payload", "scheduled", "sent", "ended", "status", "answer", "error")


@dataclass(kw_only=True)
class Recorder:
    """Collects rows while a run goes on; equal answers to one payload are kept once."""

    rows: list[tuple[int, float, float, float, int, int, str]] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    most_answers: int = 50_000
    """Further different ones are not kept; sums in batches of other sizes differ in the last digits."""

    def add(
        self, *, payload: int, scheduled: float, sent: float, ended: float, status: int, body: str, error: str
    ) -> None:
        kept = body in self.answers or len(self.answers) < self.most_answers
        number = self.answers.setdefault(body, len(self.answers)) if body and kept else NO_ANSWER
        self.rows.append((payload, scheduled, sent, ended, status, number, error))


def make_records(rows: Iterable[Sequence], answers: Sequence[str]) -> Records:
    """From rows in the order of ROW."""
    columns = list(zip(*rows, strict=True)) or [()] * len(ROW)
    kinds = (int, float, float, float, int, int, object)
    arrays: dict[str, np.ndarray] = {
        name: np.array(column, dtype=kind) for name, column, kind in zip(ROW, columns, kinds, strict=True)
    }
    return Records(**arrays, answers=tuple(answers))


def merge_records(parts: Sequence[Records]) -> Records:
    """Several generators' rows as one, ordered by when they began."""
    answers: list[str] = []
    moved = []
    for part in parts:
        moved.append(np.where(part.answer == NO_ANSWER, NO_ANSWER, part.answer + len(answers)))
        answers += part.answers
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ROW}
    columns["answer"] = np.concatenate(moved)
    merged = Records(**columns, answers=tuple(answers))
    return merged.take(np.argsort(merged.begun, kind="stable"))


def write_records(path: Path, trials: Sequence[Records]) -> None:
    """A compressed CSV that any tool reads, trials by number; answers beside it, a JSON line each."""
    lines: list[str] = []
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for number, records in enumerate(trials):
        offset = len(lines)
        lines += [json.dumps(answer, ensure_ascii=False) for answer in records.answers]
        for row in zip(*(getattr(records, name).tolist() for name in ROW), strict=True):
            payload, scheduled, sent, ended, status, answer, error = row
            due = "" if np.isnan(scheduled) else f"{scheduled:.6f}"
            kept = "" if answer == NO_ANSWER else answer + offset
            writer.writerow([number, payload, due, f"{sent:.6f}", f"{ended:.6f}", status, kept, error])
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    answers_beside(path).write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def answers_beside(path: Path) -> Path:
    """`….answers.jsonl.gz` beside `….requests.csv.gz`."""
    return path.with_name(path.name.replace("requests.csv", "answers.jsonl"))


def read_records(path: Path, trials: int) -> list[Records]:
    """Of so many trials, as they were written; one without any request has none."""
    packed = gzip.decompress(answers_beside(path).read_bytes()).decode()
    answers = tuple(json.loads(line) for line in packed.splitlines())
    groups: list[list[tuple]] = [[] for _ in range(trials)]
    for row in csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode(), newline="")):
        times = (float(row["scheduled_s"] or "nan"), float(row["sent_s"]), float(row["ended_s"]))
        kept = int(row["answer"] or NO_ANSWER)
        groups[int(row["trial"])].append(
            (int(row["payload"]), *times, int(row["status"]), kept, row["error"])
        )
    return [make_records(rows, answers) for rows in groups]
