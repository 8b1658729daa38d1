"""Where each file of one server lives: all in its run directory, but for sockets when that is too long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config.folders import CHECKOUT_RUN, LOCK, MARKER, PLAN_FILE, find_temporary, name_draft
from config.plan import INSTANCES_FOLDER, NEXT_FOLDER, PROPERTIES_FILE, PROXY_FILE
from config.proxy import ProxyFiles

MARK = "CPU_KIT_RUN"
"""Environment variable on every process of a server; its value is the absolute run directory, or that of the
instance."""

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
    """The files of one server, or of one of its instances, by purpose."""

    path: Path  # the run directory, absolute

    @classmethod
    def at(cls, path: Path | str) -> RunDir:
        """The run directory of that name; symbolic links are resolved, so one server has one mark."""
        return cls(path=Path(path).resolve())

    marker = _File(MARKER)  # this folder is the kit's: nothing is written into another that is not empty
    lock = _File(LOCK)  # held while a plan is written or a start is under way
    plan = _File(PLAN_FILE)  # what the server is to be
    next = _File(NEXT_FOLDER)  # what a reload moves to: a plan and HAProxy's configuration
    timings = _File("timings.json")  # the batch profile: what batches take here (`python -m models time`)
    tuned = _File("tuned.json")  # what `make tune` found, which took it many minutes: a person removes it
    instances = _File(INSTANCES_FOLDER)  # a folder for each TorchServe
    properties = _File(PROPERTIES_FILE)  # of an instance: TorchServe's configuration, rendered from the plan
    proxy_config = _File(PROXY_FILE)  # HAProxy's configuration, rendered from the plan

    state = _File("server.json")  # what was started, and when
    failure = _File("failure.json")  # why the last start failed; absent after a good one
    record = _File("supervisor.json")  # what the supervisor says of itself (server/state.py)
    token = _File("token")  # the token that the proxy asks for; made once, and changed with the file
    authorization = _File("authorization")  # the header with that token, for `curl -H @FILE`
    samples = _File("samples")  # inputs to try the models with
    metrics = _File("metrics")  # what workers count, added up by the supervisor
    verified = _File("verify.json")  # what `make verify` found last, for the metrics page

    logs = _File("logs")  # logs of this start
    previous_logs = _File("logs.previous")  # logs of the start before
    supervisor_log = _File("logs/supervisor.log")  # what the supervisor and the starts of its instances say
    request_log = _File("logs/requests.log")  # a line for each request that failed
    proxy_log = _File("logs/haproxy.log")  # what HAProxy prints when it starts; later the supervisor has it
    console_log = _File("logs/console.log")  # of an instance: what TorchServe and the JVM print, errors only
    server_log = _File("logs/ts_log.log")  # of an instance: what TorchServe's frontend logs
    model_log = _File("logs/model_log.log")  # of an instance: what the workers print

    @property
    def proxy_files(self) -> ProxyFiles:
        """What haproxy.cfg names."""
        return ProxyFiles.of(self.path)

    @property
    def temporary(self) -> Path:
        """Sockets and unpacked archives; in /tmp when the run directory's name is too long for a socket."""
        return find_temporary(self.path)

    def instance(self, name: str) -> RunDir:
        """The folder of one TorchServe."""
        return RunDir(path=self.instances / name)

    def list_instances(self) -> list[RunDir]:
        """Those that were ever planned here and are left."""
        return [self.instance(folder.name) for folder in sorted(self.instances.glob("*")) if folder.is_dir()]

    def list_own(self) -> list[Path]:
        """Everything the kit puts here, the marker last: until it is gone, a second clean can go on."""
        secrets = map(Path, (self.proxy_files.bearers, self.proxy_files.certificate))
        files = [self.timings, self.state, self.failure, self.lock, self.authorization, self.proxy_config]
        files += [self.record, self.token, self.verified, *secrets]
        drafts = [name_draft(file) for file in (*files, self.plan, self.tuned)]
        folders = [self.logs, self.previous_logs, self.samples, self.path / "tmp", self.instances, self.next]
        folders += [self.metrics]
        shared = [self.path / name for name in _OF_THE_CHECKOUT if self.path == CHECKOUT_RUN]
        return [*files, *drafts, *folders, *shared, self.plan, self.marker]
