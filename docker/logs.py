"""Passes on what the door and each TorchServe log.

What `server` prints comes from the child itself, with the supervisor's words in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docker.follow import Follower
from docker.lines import Speaker, is_routine, parse_haproxy, parse_torchserve
from server.rundir import RunDir

LOOK_SECONDS = 0.5


@dataclass(kw_only=True)
class Log:
    """One file."""

    path: Path
    source: str
    """door, torchserve, worker or console."""
    parse: Callable[[str], dict[str, str]]
    """A line to its fields."""
    instance: str = ""
    """Whose it is, where there are several."""
    follower: Follower = field(init=False)

    def __post_init__(self) -> None:
        self.follower = Follower(self.path)

    def read(self) -> Iterator[dict[str, str]]:
        """What is new and worth a line."""
        whose = {"instance": self.instance} if self.instance else {}
        for fields in map(self.parse, self.follower.read_lines()):
            if not is_routine(fields["message"]):
                yield {**whose, **fields}


def list_logs(run: RunDir) -> Iterator[Log]:
    """Of the door, and of each TorchServe: one, or the instances behind the door."""
    yield Log(path=run.door_log, source="door", parse=parse_haproxy)
    for server, instance in [(run, ""), *((one, one.path.name) for one in run.list_instances())]:
        files = {"torchserve": server.server_log, "worker": server.model_log, "console": server.console_log}
        for source, path in files.items():
            yield Log(path=path, source=source, parse=parse_torchserve, instance=instance)


class Following:
    """Passes the lines on while the server runs, and what is left of them at the end."""

    def __init__(self, speaker: Speaker, run: RunDir) -> None:
        self._speaker = speaker
        self._run = run
        self._logs: dict[Path, Log] = {}
        self._find_new()
        for log in self._logs.values():
            log.follower.skip()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._pass_lines()

    def _follow(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._pass_lines()

    def _find_new(self) -> None:
        """Instances come while the server runs: a reload starts others."""
        for log in list_logs(self._run):
            self._logs.setdefault(log.path, log)

    def _pass_lines(self) -> None:
        self._find_new()
        for log in self._logs.values():
            for fields in log.read():
                self._speaker.pass_on(log.source, fields)
