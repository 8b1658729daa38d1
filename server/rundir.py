"""Where each file of one server lives: all in its run directory, but for sockets when that is too long."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from config.atomic import name_draft
from config.folders import CHECKOUT_RUN, LOCK, MARKER

MARK = "CPU_KIT_RUN"
"""Environment variable on every process of a server; its value is the absolute run directory."""

# sockaddr_un.sun_path holds 108 bytes with its final zero. TorchServe puts the workers' sockets at
# <java.io.tmpdir>/.ts.sock.<port> (Connector.java).
_SOCKET_PATH_BYTES = 107
_LONGEST_SOCKET_NAME = "/.ts.sock.65535"

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
        """How fast each precision is on this host, which PRECISION=auto goes by (`python -m models time`)."""
        return self.path / "timings.json"

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
    def key_file(self) -> Path:
        """The tokens; TorchServe writes it into its working directory (TokenAuthorization.java)."""
        return self.path / "key_file.json"

    @property
    def authorization(self) -> Path:
        """The header with the inference token, for `curl -H @FILE`."""
        return self.path / "authorization"

    @property
    def health(self) -> Path:
        """Whether the server answers right, kept by the process that stays in the foreground."""
        return self.path / "health"

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
    def samples(self) -> Path:
        """Inputs to try the models with."""
        return self.path / "samples"

    @property
    def temporary(self) -> Path:
        """Sockets and unpacked archives; in /tmp when the run directory's name is too long for a socket."""
        inside = self.path / "tmp"
        if len(os.fsencode(inside)) + len(_LONGEST_SOCKET_NAME) <= _SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return Path(f"/tmp/cpu-kit-{os.getuid()}-{digest}")

    def list_own(self) -> list[Path]:
        """Everything the kit puts here, the marker last: until it is gone, a second clean can go on."""
        files = (
            self.properties,
            self.environment,
            self.timings,
            self.state,
            self.failure,
            self.lock,
            self.key_file,
            self.authorization,
            self.health,
        )
        drafts = [name_draft(file) for file in (*files, self.plan)]
        folders = (self.logs, self.previous_logs, self.samples, self.path / "tmp")
        shared = [self.path / name for name in _OF_THE_CHECKOUT if self.path == CHECKOUT_RUN]
        return [*files, *drafts, *folders, *shared, self.plan, self.marker]
