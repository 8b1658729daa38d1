"""Where each file of one server lives: all in its run directory, but for sockets when that is too long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config.door.process import DoorFiles
from config.folders import CHECKOUT_RUN, LOCK, MARKER, find_temporary, name_draft
from config.plan import HAPROXY_FILE, INSTANCES_FOLDER, NEXT_FOLDER
from config.tuned import TUNED_FILE

MARK = "CPU_KIT_RUN"
"""Environment variable on every process of a server; its value is the absolute run directory."""

# In the checkout's run/ only: the set-up's log, the archives of tests and comparisons, unfinished builds.
_OF_THE_CHECKOUT = ("setup.log", "test-store", "build")


class _File:
    """A file of the run directory, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDir, owner: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True, kw_only=True)
class RunDir:
    """The files of one server, by purpose."""

    path: Path
    """The run directory, absolute."""

    @classmethod
    def at(cls, path: Path | str) -> RunDir:
        """The run directory of that name; symbolic links are resolved, so one server has one mark."""
        return cls(path=Path(path).resolve())

    plan = _File("plan.json")
    """What the server was asked to be."""
    properties = _File("config.properties")
    """TorchServe's configuration, rendered from the plan."""
    environment = _File("environment")
    """What the plan sets in TorchServe's environment, to be read by a person."""
    timings = _File("timings.json")
    """What batches take here: batches are planned by it (`python -m models time`)."""
    tuned = _File(TUNED_FILE)
    """What `make tune` found, which took it many minutes: a person removes it."""
    state = _File("server.json")
    """What was started, and when."""
    failure = _File("failure.json")
    """Why the last start failed; absent after a good one."""
    lock = _File(LOCK)
    """Held while a plan is written or a start is under way."""
    marker = _File(MARKER)
    """Says that this folder is the kit's: nothing is written into another that is not empty."""
    authorization = _File("authorization")
    """The header with the inference token, for `curl -H @FILE`."""
    health = _File("health")
    """Whether it answers right, kept by the process that stays with it."""
    looks = _File("looks.json")
    """The same by model, with the workers' process ids, for the supervisor."""
    instances = _File(INSTANCES_FOLDER)
    """A run directory for each TorchServe."""
    next = _File(NEXT_FOLDER)
    """What a reload moves to: a plan and HAProxy's configuration."""
    door = _File(HAPROXY_FILE)
    """HAProxy's configuration, rendered from the plan."""
    record = _File("supervisor.json")
    """What the supervisor says of itself (server/supervisor/record.py)."""
    token = _File("token")
    """The token that the door asks for; made once, and changed with the file."""

    @property
    def door_files(self) -> DoorFiles:
        """What haproxy.cfg names."""
        return DoorFiles.of(self.path)

    @property
    def bearers(self) -> Path:
        """The token as HAProxy compares it: the whole value of the header."""
        return Path(self.door_files.bearers)

    @property
    def certificate(self) -> Path:
        """Certificate and key in one file, as HAProxy wants them."""
        return Path(self.door_files.certificate)

    logs = _File("logs")
    """Logs of this start; those of the one before are in logs.previous."""
    previous_logs = _File("logs.previous")
    """Logs of the start before."""
    console_log = _File("logs/console.log")
    """What TorchServe and the JVM print: errors only."""
    model_log = _File("logs/model_log.log")
    """What the workers print."""
    server_log = _File("logs/ts_log.log")
    """What TorchServe's frontend logs."""
    supervisor_log = _File("logs/supervisor.log")
    """What the supervisor and the starts of its instances say."""
    door_log = _File("logs/haproxy.log")
    """What HAProxy says: its own troubles, and a line for each request that failed."""
    samples = _File("samples")
    """Inputs to try the models with."""

    @property
    def temporary(self) -> Path:
        """Sockets and unpacked archives; in /tmp when the run directory's name is too long for a socket."""
        return find_temporary(self.path)

    @property
    def admin_socket(self) -> Path:
        """HAProxy's runtime commands."""
        return Path(self.door_files.admin_socket)

    @property
    def supervisor_socket(self) -> Path:
        """Where the door asks for /ready and /live, and `make reload` for a reload."""
        return Path(self.door_files.supervisor_socket)

    def instance(self, name: str) -> RunDir:
        """The run directory of one TorchServe behind the door."""
        return RunDir(path=self.instances / name)

    def list_instances(self) -> list[RunDir]:
        """Those that were ever planned here and are left."""
        if not self.instances.is_dir():
            return []
        return [self.instance(folder.name) for folder in sorted(self.instances.iterdir()) if folder.is_dir()]

    def list_own(self) -> list[Path]:
        """Everything the kit puts here, the marker last: until it is gone, a second clean can go on."""
        files = (
            *(self.timings, self.state, self.failure, self.lock, self.authorization, self.health),
            *(self.door, self.record, self.token, self.bearers, self.certificate),
        )
        drafts = [name_draft(file) for file in (*files, self.plan, self.tuned)]
        folders = (self.logs, self.previous_logs, self.samples, self.path / "tmp", self.instances, self.next)
        shared = [self.path / name for name in _OF_THE_CHECKOUT if self.path == CHECKOUT_RUN]
        return [*files, *drafts, *folders, *shared, self.plan, self.marker]
