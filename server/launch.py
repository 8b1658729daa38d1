"""Starts TorchServe as a child in its own session, with exactly the environment the plan wants.

The `torchserve` command of the virtual environment is used (model_server.py): it turns TEMP into
-Djava.io.tmpdir, reads vmargs from config.properties, and keeps its pid file in TMPDIR; with both in a
private folder two servers do not meet. `--foreground` keeps it the parent of java, so java's death is seen.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from config.plan import Plan
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
CLASSES = "lib/cpukit/org"
"""Below the environment: classes that stand in for TorchServe's own (server/java, built by set-up)."""


def prepare_folders(run: RunDir) -> None:
    """Fresh logs (the last ones are kept once), and an empty temporary folder for this user alone."""
    check_permissions_hold(run)
    shutil.rmtree(run.previous_logs, ignore_errors=True)
    if run.logs.exists():
        run.logs.rename(run.previous_logs)
    run.logs.mkdir(mode=0o700)
    remove_temporary(run)
    run.temporary.mkdir(mode=0o700, parents=True)
    for left in (run.authorization, run.health, run.looks):
        left.unlink(missing_ok=True)


def check_permissions_hold(run: RunDir) -> None:
    """Raise where a file cannot be made private: tokens and sockets would be everybody's.

    File systems of Windows (drvfs of WSL, CIFS) refuse, or say yes and do nothing.
    """
    probe = run.path / ".permissions"
    try:
        probe.write_bytes(b"")
        probe.chmod(0o600)
        mode = stat.S_IMODE(probe.stat().st_mode)
        problem = "" if mode == 0o600 else f"a file set to 600 has {mode:o}"
    except PermissionError as refused:
        problem = f"chmod failed: {refused.strerror}"
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
    told by name which one to take. A link of the same name is replaced whole.
    """
    target, link = plan.libraries.allocator_path.value, plan.libraries.allocator_link.value
    if link is None:
        return None
    if target is None or not Path(target).is_file():
        name = plan.libraries.allocator.value
        raise ServerError(
            f"no library for ALLOCATOR={name}: {target or 'not found'}; run: make setup && make plan"
        )
    path = Path(link)
    if path.exists() and path.resolve() == Path(target).resolve():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.symlink_to(target)
    scratch.replace(path)
    return f"linked {path} to {target}"


def render_command(plan: Plan, run: RunDir, model_store: Path) -> list[str]:
    """The command line of TorchServe."""
    prefix = Path(plan.inputs.prefix)
    # Not through the script's first line: that breaks when the checkout moves or its path is long.
    return [
        *(str(prefix / "bin" / name) for name in ("python", "torchserve")),
        *("--start", "--foreground", "--no-config-snapshots", "--ts-config", str(run.properties)),
        *("--model-store", str(model_store), "--log-config", str(LOG_CONFIG)),
    ]


def render_environment(plan: Plan, run: RunDir, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of TorchServe, which its workers inherit."""
    prefix = Path(plan.inputs.prefix)
    environment = {name: value for name, value in inherited.items() if is_inherited(name)}
    environment.update({name: str(setting.value) for name, setting in plan.environment.items()})
    environment.update(
        {
            # TorchServe's probe of the launcher runs the literal `python` (WorkerLifeCycle.java).
            "PATH": f"{prefix / 'bin'}{os.pathsep}{inherited.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": str(prefix),  # the launcher looks for libraries in its lib/
            "TMPDIR": str(run.temporary),
            "TEMP": str(run.temporary),
            "PYTHONUNBUFFERED": "1",
            "PYTHONUTF8": "1",  # TorchServe reads the workers' lines as UTF-8, whatever the locale
            "LC_ALL": "C.UTF-8",  # Java can open no file whose name is not of its locale
            MARK: str(run.path),
        }
    )
    return environment


def is_inherited(name: str) -> bool:
    """Whether a variable of the caller reaches TorchServe."""
    return name in _INHERITED


def launch(plan: Plan, run: RunDir, model_store: Path) -> subprocess.Popen[bytes]:
    """Start TorchServe; its own output goes to logs/console.log."""
    command = render_command(plan, run, model_store)
    classes = Path(plan.inputs.prefix) / CLASSES
    for needed in (Path(command[0]), Path(command[1]), classes, run.properties):
        if not needed.exists():
            raise ServerError(f"missing: {needed}; run: make setup && make plan")
    # TorchServe's class path begins with the working directory (ts/model_server.py).
    (run.path / classes.name).unlink(missing_ok=True)
    (run.path / classes.name).symlink_to(classes)
    with run.console_log.open("ab") as console:
        return subprocess.Popen(
            command,
            cwd=run.path,
            env=render_environment(plan, run, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=PRIVATE_UMASK,
            preexec_fn=lambda: confine(plan),
        )


def confine(plan: Plan) -> None:
    """Keep this process and what it starts on the CPUs the plan gives to the whole server, if any."""
    if plan.layout.server_cpus.value is not None:
        os.sched_setaffinity(0, plan.layout.server_cpus.value)


def check_machine(plan: Plan) -> None:
    """Raise when the plan is not for this machine as it is now."""
    if plan.inputs.topology != "live":
        raise ServerError(f"the plan is for the machine recorded in {plan.inputs.topology}; run: make plan")
    planned = {cpu for cpus in plan.layout.worker_cpus.value for cpu in cpus}
    missing = sorted(planned - os.sched_getaffinity(0))
    if missing:
        names = ", ".join(map(str, missing))
        raise ServerError(f"the plan uses CPU {names}, which this process may not use; run: make plan")
