"""Starts TorchServe as a child in its own session, with exactly the environment the plan wants.

The `torchserve` command of the virtual environment is used (model_server.py): it turns TEMP into
-Djava.io.tmpdir, reads vmargs from config.properties, and keeps its pid file in TMPDIR; with both in a
private folder two servers do not meet. `--foreground` keeps it the parent of java, so java's death is seen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from config.plan import STORE_FOLDER, Plan
from handlers.shared.metrics import FOLDER, SLO
from server.errors import ServerError
from server.rundir import MARK, RunDir

LOG_CONFIG = Path(__file__).with_name("log4j2.xml")
PRIVATE_UMASK = 0o077
"""Of a start and all it starts: no token, log or socket is another's to read, not even for an instant."""

# All that is taken from the caller's shell. Anything else could change what the JVM, the loader, Python,
# torch, a backend, oneDNN, OpenMP or the allocator do, and they know more variables than a list could forbid:
# _JAVA_OPTIONS beats the planned heap, PYTORCH_JIT=0 the traced model, LD_LIBRARY_PATH the pinned libraries.
_INHERITED = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "JAVA_HOME",  # to find java and the user's folder
    "TZ",  # times in logs
    "PYTHONDONTWRITEBYTECODE",  # of the image
    "LOG_FILE_SIZE", "ACCESS_LOG_LEVEL",  # log4j2.xml's own
})  # fmt: skip
LOG_LINES = {
    "text": "%d{ISO8601} [%-5p] %t %c - %m%n",
    "json": (
        '{"time":"%d{yyyy-MM-dd\'T\'HH:mm:ss.SSS\'Z\'}{UTC}","level":"%p","source":"%t","logger":"%c",'
        '"message":"%enc{%m}{JSON}","exception":"%enc{%ex}{JSON}"}%n'
    ),
}
"""By LOG: the pattern of TorchServe's and the workers' lines (log4j's PatternLayout)."""
CLASSES = "lib/cpukit/org"
"""Below the environment: classes that stand in for TorchServe's own (server/java, built by set-up)."""


def prepare_folders(run: RunDir) -> None:
    """Fresh logs (the last ones stay once), and an empty temporary folder for this user alone."""
    check_permissions_hold(run)
    shutil.rmtree(run.previous_logs, ignore_errors=True)
    if run.logs.exists():
        run.logs.rename(run.previous_logs)
    run.logs.mkdir(mode=0o700)
    remove_temporary(run)
    run.temporary.mkdir(mode=0o700, parents=True)
    run.authorization.unlink(missing_ok=True)


def check_permissions_hold(run: RunDir) -> None:
    """Raise where a file cannot be made private: tokens and sockets would be everybody's.

    File systems of Windows (drvfs of WSL, CIFS) do not take the mode, or say yes and do nothing.
    """
    probe = run.path / ".permissions"
    try:
        probe.write_bytes(b"")
        probe.chmod(0o600)
        mode = stat.S_IMODE(probe.stat().st_mode)
        problem = "" if mode == 0o600 else f"a file set to 600 has {mode:o}"
    except PermissionError as error:
        problem = f"chmod failed: {error.strerror}"
    finally:
        probe.unlink(missing_ok=True)
    if problem:
        raise ServerError(
            f"RUN_DIR must be on a file system that keeps permissions, for tokens and sockets: {run.path}: "
            f"{problem}; give a folder of a Linux file system: RUN_DIR=…"
        )


def remove_temporary(run: RunDir) -> None:
    """Delete the temporary folder; a link or a folder of another user's under its name is an error.

    In the run directory a folder of that directory's user is right too: root stops other users' servers.
    """
    folder, owners = run.temporary, {os.getuid()}
    if folder.parent == run.path:
        owners.add(run.path.stat().st_uid)
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid not in owners):
        raise ServerError(
            f"temporary folder must be an own folder: {folder} is a link or another user's; remove it"
        )
    shutil.rmtree(folder, ignore_errors=True)


def make_allocator_link(plan: Plan) -> str | None:
    """Make the name the launcher looks for; what was done, or None when nothing had to be.

    Several run directories share one virtual environment, so links of other allocators stay: the launcher is
    given the name of the one to take. A link of the same name is replaced in one step.
    """
    target, link = plan.libraries.allocator_path, plan.libraries.allocator_link
    if link is None:
        return None
    if target is None or not Path(target).is_file():
        name = plan.libraries.allocator
        raise ServerError(
            f"no library for ALLOCATOR={name}: {target or 'not found'}; run: make setup && make serve"
        )
    path = Path(link)
    if path.exists() and path.resolve() == Path(target).resolve():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:  # instances start at the same time
        new = Path(scratch, path.name)
        new.symlink_to(target)
        new.replace(path)
    return f"linked {path} to {target}"


def prepare_store(plan: Plan, name: str, run: RunDir) -> Path:
    """Where an instance's archives are: the model store, or a folder with links to those that others made."""
    if plan.instances[name].kit:
        return Path(plan.model_store)
    store = run.path / STORE_FOLDER
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(mode=0o700)
    for model in plan.instances[name].models.values():
        for file in model.archives.values():
            (store / Path(file).name).symlink_to(Path(plan.model_store) / file)
    return store


def render_environment(plan: Plan, name: str, run: RunDir, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of an instance's TorchServe, which its workers inherit."""
    return {
        **inherit(inherited),
        **plan.instances[name].environment,
        # TorchServe's probe of the launcher runs the literal `python` (WorkerLifeCycle.java).
        "PATH": f"{plan.prefix}/bin{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": plan.prefix,  # the launcher looks for libraries in its lib/
        "TMPDIR": str(run.temporary),
        "TEMP": str(run.temporary),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",  # TorchServe reads the workers' lines as UTF-8, whatever the locale
        "LC_ALL": "C.UTF-8",  # Java can open no file whose name is not of its locale
        "CPU_KIT_LOG_LINE": LOG_LINES[plan.log],
        FOLDER: str(find_metrics_folder(plan)),
        SLO: str(plan.slo_p99_ms),
        MARK: str(run.path),
    }


def find_metrics_folder(plan: Plan) -> Path:
    """Where its workers count: the limit, whose shares are the buckets, is one for all that is in it."""
    return RunDir(path=Path(plan.run_dir)).metrics / str(plan.slo_p99_ms)


def inherit(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the caller's reaches HAProxy, the supervisor and TorchServe."""
    return {name: value for name, value in environment.items() if name in _INHERITED}


def launch(plan: Plan, name: str, run: RunDir) -> subprocess.Popen[bytes]:
    """Start an instance's TorchServe; its own output goes to logs/console.log."""
    prefix = Path(plan.prefix)
    classes = prefix / CLASSES
    # Not through the script's first line: that breaks when the checkout moves or its path is long.
    programs = [prefix / "bin" / program for program in ("python", "torchserve")]
    for needed in (*programs, classes, run.properties):
        if not needed.exists():
            raise ServerError(f"missing: {needed}; run: make setup && make serve")
    # TorchServe's class path begins with the working directory (ts/model_server.py).
    (run.path / classes.name).unlink(missing_ok=True)
    (run.path / classes.name).symlink_to(classes)
    options = ["--start", "--foreground", "--no-config-snapshots", "--ts-config", str(run.properties)]
    options += ["--model-store", str(prepare_store(plan, name, run)), "--log-config", str(LOG_CONFIG)]
    environment = render_environment(plan, name, run, os.environ)
    command, cpus = [*map(str, programs), *options], plan.instances[name].server_cpus
    return spawn(command, run.path, environment, run.console_log, cpus)


def spawn(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path,
    cpus: Iterable[int] | None = None, pass_fds: Collection[int] = (),
) -> subprocess.Popen[bytes]:  # fmt: skip
    """A process that leads a session of its own, on these CPUs: a Ctrl-C is not for it. What it prints is
    added to the log, and its files and sockets are private."""
    with log.open("ab") as output, confined(cpus):
        return subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, umask=PRIVATE_UMASK, pass_fds=pass_fds,
        )  # fmt: skip


def list_server_cpus(plan: Plan) -> tuple[int, ...] | None:
    """What HAProxy and the supervisor are confined to: nothing, or all that the instances are."""
    lists = [own.server_cpus for own in plan.instances.values()]
    found = {cpu for cpus in lists if cpus is not None for cpu in cpus}
    return None if None in lists else tuple(sorted(found))


def confine(cpus: Iterable[int] | None) -> None:
    """Keep this thread and what it starts on these CPUs; None: as it is."""
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def confined(cpus: Iterable[int] | None) -> Iterator[None]:
    """The same until the end of the block: what is started in it inherits that, and needs no code between
    fork and exec, which must not be where other threads run."""
    before = os.sched_getaffinity(0)
    confine(cpus)
    try:
        yield
    finally:
        confine(before)


def check_machine(plan: Plan) -> None:
    """Raise when the plan is not for this machine as it is now."""
    if not plan.live:
        raise ServerError("the plan is for a recorded machine (TOPOLOGY); run: make serve")
    planned = {cpu for own in plan.instances.values() for cpus in own.worker_cpus for cpu in cpus}
    missing = sorted(planned - os.sched_getaffinity(0))
    if missing:
        names = ", ".join(map(str, missing))
        raise ServerError(f"the plan uses CPU {names}, which this process may not use; run: make serve")
