"""Raw rows: a DataFrame with one row a request, kept as it was seen and never rounded to statistics.

Columns: payload (its number), due (when it should be sent; NaN in a closed loop), sent, ended (seconds from
the begin of the measured window, so that warm-up is negative), status (HTTP; 0 without an answer), answer
(number of its text among the answers; -1 when none was kept), error (in a few words; empty when nothing went
wrong). A block's rows have the number of their window too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

NO_ANSWER = -1
KINDS = {
    "payload": int, "due": float, "sent": float, "ended": float,
    "status": int, "answer": int, "error": object,
}  # fmt: skip


def make_rows(listed: Iterable[Sequence]) -> pd.DataFrame:
    """From rows in the order of KINDS."""
    return pd.DataFrame(list(listed), columns=list(KINDS)).astype(KINDS)


def merge_rows(parts: Sequence[tuple[pd.DataFrame, Sequence[str]]]) -> tuple[pd.DataFrame, list[str]]:
    """Several generators' (rows, answers) as one, ordered by when the requests began."""
    answers: list[str] = []
    moved = []
    for rows, own in parts:
        kept = rows["answer"] != NO_ANSWER
        moved.append(rows.assign(answer=rows["answer"].where(~kept, rows["answer"] + len(answers))))
        answers += own
    merged = pd.concat(moved, ignore_index=True) if moved else make_rows([])
    return merged.iloc[np.argsort(find_begun(merged), kind="stable")].reset_index(drop=True), answers


def find_good(rows: pd.DataFrame) -> np.ndarray:
    """Which requests were answered with 2xx and whole."""
    status = rows["status"].to_numpy()
    return (status >= 200) & (status < 300) & (rows["error"].to_numpy() == "")


def find_begun(rows: pd.DataFrame) -> np.ndarray:
    """When a request began for the one who waits: when it was due, or in a closed loop was sent."""
    return rows["due"].fillna(rows["sent"]).to_numpy()


def find_latency(rows: pd.DataFrame) -> np.ndarray:
    """Seconds waited; in an open loop counted from when the request was due."""
    return rows["ended"].to_numpy() - find_begun(rows)


def cut_window(rows: pd.DataFrame, begin_s: float, end_s: float) -> pd.DataFrame:
    """The requests that began in the window, warm-up and cool-down excluded."""
    begun = find_begun(rows)
    return rows[(begun >= begin_s) & (begun < end_s)]


def write_rows(file: Path, windows: Sequence[tuple[pd.DataFrame, Sequence[str]]]) -> None:
    """A compressed CSV that any tool reads, windows by number; answers beside it, a JSON line each."""
    lines: list[str] = []
    parts = []
    for number, (rows, answers) in enumerate(windows):
        kept = rows["answer"] != NO_ANSWER
        moved = rows["answer"].where(~kept, rows["answer"] + len(lines))
        parts.append(rows.assign(window=number, answer=moved))
        lines += [json.dumps(answer, ensure_ascii=False) for answer in answers]
    table = pd.concat(parts, ignore_index=True) if parts else make_rows([]).assign(window=0)
    text = table[["window", *KINDS]].to_csv(index=False, float_format="%.6f", lineterminator="\n")
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
    answers_file = file.with_name(file.name.replace("requests.csv", "answers.jsonl"))
    answers_file.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


def read_rows(file: Path, windows: int) -> list[pd.DataFrame]:
    """Of so many windows, as they were written; one without any request has none."""
    # An error may hold a carriage return, which pandas writes without quotes.
    table = pd.read_csv(
        file, keep_default_na=False, na_values={"due": [""]}, dtype={"error": object}, lineterminator="\n"
    )
    return [
        table[table["window"] == number].drop(columns="window").astype(KINDS) for number in range(windows)
    ]
