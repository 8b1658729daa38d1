"""Speaks to a running HAProxy through its runtime socket (management.txt of HAProxy 2.6, section 9)."""

from __future__ import annotations

import csv
import io
import re
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from config.proxy import ENDING, name_prediction
from server.errors import ServerError

TIMEOUT_S = 3.0  # HAProxy answers between two events: milliseconds, however busy

LARGE = ".large"
ENTRY = ".entry"
ALL = "BACKEND"  # stands for a backend's servers together
ANSWERS = ("hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx")

_BACKENDS, _SERVERS = 2, 4
_COLUMNS = ("qcur", "scur", "slim", *ANSWERS, "rtime", "act", "status")
"""A twelfth of all: they are read twice a second."""

Rows = Mapping[tuple[str, str], Mapping[str, str]]


class HaproxyError(ServerError):
    """HAProxy cannot be asked, or does not do a command."""


@dataclass(frozen=True, kw_only=True)
class Stat:
    """One model: of all its instances, small and large requests together."""

    answered: int  # requests that instances have answered, whatever the status
    queued: int  # requests that wait in HAProxy
    in_hand: int  # requests that instances have
    service_ms: float  # from the hand-over to an instance until its answer: mean of the last 1024 small ones
    up: int  # instances that requests can be handed to
    asleep: Mapping[str, int]
    """<backend>/<instance> that has room while requests wait → its limit: HAProxy (2.6.12) forgets a queue
    where the request that it hands over next ends in the same moment, by its deadline."""


class Runtime:
    """The commands that the kit needs."""

    def __init__(self, admin_socket: Path) -> None:
        self._socket = admin_socket

    def read_stats(self) -> dict[str, Stat]:
        """By model."""
        rows = self._read_rows()
        return {model: _parse_stat(rows, model) for model in _list_models(rows)}

    def read_limits(self) -> dict[str, int]:
        """How many requests an instance is handed at once: <model>/<instance>, and <model>.large/<instance>
        of large ones."""
        rows = self._read_rows()
        servers = [one for model in _list_models(rows) for one in _list_servers(rows, model).items()]
        return {place: int(row["slim"] or 0) for place, row in servers}

    def count_without_response(self) -> int:
        """Predictions that were let in and have no answer yet."""
        rows = self._read_rows()
        return sum(
            int(row["scur"]) for (name, side), row in rows.items() if side == ALL and name.endswith(ENTRY)
        )

    def count_in_hand(self, instances: Collection[str]) -> int:
        """Predictions that these have, of all models."""
        rows = self._read_rows()
        return sum(int(row["scur"]) for (_, server), row in rows.items() if server in instances)

    def set_serving(
        self, model: str, instance: str, workers: int, planned: int, maxconn: int = 0, large_maxconn: int = 0
    ) -> None:
        """Hand requests over by how many of the planned workers there are; with none, no new ones, and what
        is in hand is waited for. The limits, where they are given, are those of all planned workers."""
        if not workers:
            self._tell(f"set server {model}/{instance} state maint")
            return
        for backend, limit in ((model, maxconn), (model + LARGE, large_maxconn)):
            self._tell(f"set server {backend}/{instance} weight {max(1, 100 * workers // planned)}%")
            if limit:
                self._tell(f"set maxconn server {backend}/{instance} {max(1, limit * workers // planned)}")
        self._tell(f"set server {model}/{instance} state ready")

    def wake(self, stat: Stat) -> None:
        """Hand over what waits: HAProxy looks at the queue when a limit is set, even to what it is."""
        for place, limit in stat.asleep.items():
            self._tell(f"set maxconn server {place} {limit}")

    def set_prediction(self, model: str, us_per_request: int, service_ms: int) -> None:
        """What a request is rejected by whose deadline would pass; 0 and 0 reject none."""
        for unit, value in (("us", us_per_request), ("ms", service_ms)):
            self._set_variable(name_prediction(model, unit), value)

    def reject_new(self) -> None:
        """From now on every prediction is answered 503: the server is ending."""
        self._set_variable(ENDING, 1)

    def set_token(self, token: str) -> None:
        """From one request to the next this one is good, and no other."""
        # The one list that is a file.
        found = re.search(r"^(\d+) \(.+\) pattern loaded from file", self._ask("show acl"), re.MULTILINE)
        if not found:
            raise HaproxyError("HAProxy has no list of tokens: its configuration is not the kit's")
        said = self._ask(f"prepare acl #{found[1]}").strip()
        if not (version := re.search(r"New version created: (\d+)", said)):
            raise HaproxyError(f"HAProxy prepares no other list of tokens: {said}")
        self._tell(f"add acl @{version[1]} #{found[1]} Bearer\\ {token}")
        self._tell(f"commit acl @{version[1]} #{found[1]}")

    def _set_variable(self, name: str, value: int) -> None:
        self._tell(f"experimental-mode on; set var {name} int({value})")

    def _read_rows(self) -> Rows:
        said = self._ask(f"show stat -1 {_BACKENDS | _SERVERS} -1")
        if not said.startswith("# pxname,svname,"):
            raise HaproxyError(f"HAProxy gives no statistics: {said.strip()[:200]}")
        head, *rows = csv.reader(io.StringIO(said))
        columns = [(name, head.index(name)) for name in _COLUMNS]
        return {(row[0], row[1]): {name: row[column] for name, column in columns} for row in rows if row}

    def _tell(self, command: str) -> None:
        """A command that says nothing when it is done; the token is not repeated in an error."""
        said = self._ask(command).strip()
        if said:
            raise HaproxyError(f"HAProxy does not {' '.join(command.split()[:3])}: {said}")

    def _ask(self, command: str) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(TIMEOUT_S)
                connection.connect(str(self._socket))
                connection.sendall(f"{command}\n".encode())
                with connection.makefile("rb") as answer:
                    return answer.read().decode(errors="replace")
        except OSError as problem:
            raise HaproxyError(f"HAProxy does not answer at {self._socket}: {problem}") from problem


def _list_models(rows: Rows) -> list[str]:
    """Each has a backend of the first hop."""
    ends = LARGE + ENTRY
    return [name.removesuffix(ends) for name, side in rows if side == ALL and name.endswith(ends)]


def _list_servers(rows: Rows, model: str) -> dict[str, Mapping[str, str]]:
    """<model>/<instance>, and <model>.large/<instance> → its row."""
    names = (model, model + LARGE)
    return {f"{name}/{side}": row for (name, side), row in rows.items() if name in names and side != ALL}


def _parse_stat(rows: Rows, model: str) -> Stat:
    servers, total = _list_servers(rows, model), {name: rows[name, ALL] for name in (model, model + LARGE)}
    return Stat(
        answered=sum(int(row[kind] or 0) for row in servers.values() for kind in ANSWERS),
        queued=sum(int(row["qcur"]) for row in total.values()),
        in_hand=sum(int(row["scur"]) for row in servers.values()),
        service_ms=float(total[model]["rtime"] or 0),
        up=int(total[model]["act"]),
        asleep={
            place: int(row["slim"])
            for place, row in servers.items()
            if int(total[place.rpartition("/")[0]]["qcur"]) and row["status"].startswith("UP")
            and int(row["scur"]) < int(row["slim"] or 0)
        },
    )  # fmt: skip
