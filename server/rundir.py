"""Where each file of one server lives: all in its run directory, but for sockets when that is too long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config.atomic import name_draft
from config.door.files import DoorFiles
from config.folders import CHECKOUT_RUN, LOCK, MARKER, find_temporary
from config.plan import HAPROXY_FILE, INSTANCES_FOLDER, NEXT_FOLDER
from config.tuned import TUNED_FILE

MARK = "CPU_KIT_RUN"
"""Environment variable on every process of a server; its value is the absolute run directory."""

# In the checkout's run/ only: the set-up's log, the archives of tests and comparisons, unfinished builds.
_OF_THE_CHECKOUT = ("setup.log", "test-store", "build")


@dataclass(frozen=True, kw_only=True)
class RunDir:
    """The files of one server, by purpose."""

    path: Path
    """The run directory, absolute."""

    @classmethod
    def at(cls, path: Path | str) -> RunDir:
        """The run directory of that name; symbolic links are resolved, so one server has one mark."""
        return cls(path=Path(path).resolve())

    @property
    def plan(self) -> Path:
        """What the server was asked to be."""
        return self.path / "plan.json"

    @property
    def properties(self) -> Path:
        """TorchServe's configuration, rendered from the plan."""
        return self.path / "config.properties"

    @property
    def environment(self) -> Path:
        """What the plan sets in TorchServe's environment, to be read by a person."""
        return self.path / "environment"

    @property
    def timings(self) -> Path:
        """What batches take here: batches are planned by it (`python -m models time`)."""
        return self.path / "timings.json"

    @property
    def tuned(self) -> Path:
        """What `make tune` found, which took it many minutes: a person removes it."""
        return self.path / TUNED_FILE

    @property
    def state(self) -> Path:
        """What was started, and when."""
        return self.path / "server.json"

    @property
    def failure(self) -> Path:
        """Why the last start failed; absent after a good one."""
        return self.path / "failure.json"

    @property
    def lock(self) -> Path:
        """Held while a plan is written or a start is under way."""
        return self.path / LOCK

    @property
    def marker(self) -> Path:
        """Says that this folder is the kit's: nothing is written into another that is not empty."""
        return self.path / MARKER

    @property
    def authorization(self) -> Path:
        """The header with the inference token, for `curl -H @FILE`."""
        return self.path / "authorization"

    @property
    def health(self) -> Path:
        """Whether it answers right, kept by the process that stays with it."""
        return self.path / "health"

    @property
    def looks(self) -> Path:
        """The same by model, with the workers' process ids, for the supervisor."""
        return self.path / "looks.json"

    @property
    def instances(self) -> Path:
        """A run directory for each TorchServe."""
        return self.path / INSTANCES_FOLDER

    @property
    def next(self) -> Path:
        """What a reload moves to: a plan and HAProxy's configuration."""
        return self.path / NEXT_FOLDER

    @property
    def door(self) -> Path:
        """HAProxy's configuration, rendered from the plan."""
        return self.path / HAPROXY_FILE

    @property
    def record(self) -> Path:
        """What the supervisor says of itself (server/supervisor/record.py)."""
        return self.path / "supervisor.json"

    @property
    def token(self) -> Path:
        """The token that the door asks for; made once, and changed with the file."""
        return self.path / "token"

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

    @property
    def logs(self) -> Path:
        """Logs of this start; those of the one before are in logs.previous."""
        return self.path / "logs"

    @property
    def previous_logs(self) -> Path:
        """Logs of the start before."""
        return self.path / "logs.previous"

    @property
    def console_log(self) -> Path:
        """What TorchServe and the JVM print: errors only."""
        return self.logs / "console.log"

    @property
    def model_log(self) -> Path:
        """What the workers print."""
        return self.logs / "model_log.log"

    @property
    def server_log(self) -> Path:
        """What TorchServe's frontend logs."""
        return self.logs / "ts_log.log"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor and the starts of its instances say."""
        return self.logs / "supervisor.log"

    @property
    def door_log(self) -> Path:
        """What HAProxy says: its own troubles, and a line for each request that failed."""
        return self.logs / "haproxy.log"

    @property
    def samples(self) -> Path:
        """Inputs to try the models with."""
        return self.path / "samples"

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
            self.timings,
            self.state,
            self.failure,
            self.lock,
            self.authorization,
            self.health,
            self.door,
            self.record,
            self.token,
            self.bearers,
            self.certificate,
        )
        drafts = [name_draft(file) for file in (*files, self.plan, self.tuned)]
        folders = (self.logs, self.previous_logs, self.samples, self.path / "tmp", self.instances, self.next)
        shared = [self.path / name for name in _OF_THE_CHECKOUT if self.path == CHECKOUT_RUN]
        return [*files, *drafts, *folders, *shared, self.plan, self.marker]
