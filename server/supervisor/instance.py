"""One TorchServe behind HAProxy: kept up by a process of its own, looked at every second."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from config.plan import Plan, Settings
from config.terminal import Report
from server.health import READY
from server.processes import PROC, Process, find_marked, read_process, send_signal, wait_until_gone
from server.rundir import RunDir
from server.state import read_failure
from server.supervisor.door import Serving
from server.supervisor.judgement import Judge
from server.supervisor.kept import Kept
from server.supervisor.record import READY as PHASE_READY
from server.supervisor.record import UNWELL, Part
from server.supervisor.sight import Sight, look_at

KILLED_WITHIN_S = 5.0
CHECKOUT = Path(__file__).resolve().parents[2]
GENTLE = 19
"""Nice value of an instance that a reload loads: without it, requests fail at 80 % of the capacity."""
UNLIMITED = 20
"""RLIMIT_NICE with which a process may go back to 0."""


def may_be_gentle() -> bool:
    """Whether what is made less urgent can be made urgent again: root's right, or a limit's."""
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= UNLIMITED


def set_nice(pids: Iterable[int], nice: int) -> None:
    """Of all their threads; and of the sessions they lead, where the kernel groups processes by these
    (sched(7), autogroup). Those that have ended are passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in (PROC / str(pid) / "task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid:
                (PROC / str(pid) / "autogroup").write_text(str(nice))


class Instance:
    """Its keeper (server/keeper.py) starts it, verifies it, looks after it and drains it at SIGTERM."""

    def __init__(
        self, name: str, run: RunDir, plan: Plan, store: Path, door: Settings, report: Report
    ) -> None:
        self.name = name
        self.door = door
        """What of it the door hands over at once (config/rules/door.py)."""
        self.run = run
        self.plan = plan
        self.seen = Sight()
        self.was_ready = False
        """Since the supervisor began: until then a failure is one of the start."""
        self.retired = False
        """Another one takes its place: it answers what it has, and is asked nothing more."""
        self.gentle = False
        """Its load shall take what those leave that serve."""
        self._doomed = ""
        """Why it is to be replaced, once the door has been told."""
        self._store = store
        self._report = report
        self._kept = Kept(name, self._launch, report)
        self._judge = Judge(memory_mib=int(plan.machine["memory_limit_mib"]))
        self._launched = plan.launched

    def _launch(self) -> subprocess.Popen[bytes]:
        """What it prints goes where ours does; in a session of its own: a Ctrl-C is ours to pass on."""
        self.run.health.unlink(missing_ok=True)
        self.run.looks.unlink(missing_ok=True)
        command = [sys.executable, "-m", "server", "keep"]
        places = ["--run-dir", str(self.run.path), "--model-store", str(self._store)]
        return subprocess.Popen(
            [*command, *places], cwd=CHECKOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def serving(self) -> Mapping[str, int]:
        """Model → workers that can be asked now."""
        return dict.fromkeys(self.seen.serving, 0) if self.retired or self._doomed else self.seen.serving

    def describe_serving(self, model: str) -> Serving:
        """For the door."""
        return Serving(
            workers=self.serving.get(model, 0),
            planned=int(self.plan.models[model].workers.value),
            maxconn=int(self.door[f"{model}.{self.name}.maxconn"].value),
            large_maxconn=int(self.door[f"{model}.{self.name}.large_maxconn"].value),
        )

    @property
    def ready(self) -> bool:
        """Whether every worker serves."""
        return self.seen.well

    def look(self, processes: Sequence[Process], now: float, *, others: bool) -> None:
        """See how it is and end workers that are ill; `act` does the rest.

        `processes` are its own, seen in this turn, which began at `now`; `others`: another instance serves
        its models.
        """
        code = self._kept.find_end()
        if self.retired:  # its end is asked for
            return
        if code is not None:
            self._forget()
            self._kept.note_end(self._explain_end(code))
        if self._kept.start_if_due() or not self._kept.process:
            return
        self.seen = look_at(self.run, processes, launched=self._launched)
        if self.gentle and may_be_gentle():
            ours = [self._kept.pid or 0, *(process.pid for process in processes)]
            set_nice(ours, 0 if self.seen.health else GENTLE)
            self.gentle = not self.seen.health
        if not self.seen.health:  # it is being started, and its keeper watches that
            return
        self.was_ready = self.was_ready or self.seen.health == READY
        verdict = self._judge.judge(self.seen, now, others=others)
        self._doomed = verdict.replace
        for pid, why in verdict.end_workers.items():
            self._end_worker(pid, why)

    def act(self) -> None:
        """End all of it at once and start it again, where `look` found that it must be.

        After the door knows: it then asks another instance what was not answered, and never this one, which
        for a moment has the fewest requests in hand.
        """
        why = self._doomed
        if why and not self.retired:
            self.kill()
            self._kept.note_end(why)

    def kill(self) -> None:
        """End all of it at once."""
        process = self._kept.process
        self._kill_server()
        if process:
            process.kill()
            process.wait()
        self._kill_server()  # the keeper may have been starting it
        self._forget()

    def ask_to_end(self) -> None:
        """Let it answer what it has, and end."""
        if self._kept.process:
            with contextlib.suppress(ProcessLookupError):
                self._kept.process.send_signal(signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether its keeper is gone, and with it all it started."""
        return self._kept.process is None or self._kept.process.poll() is not None

    def describe(self) -> Part:
        """For the record."""
        phase = self._kept.phase
        if self.seen.health:
            phase = PHASE_READY if self.seen.well else UNWELL
        return Part(
            phase=phase,
            pid=self._kept.pid,
            restarts=self._kept.restarts,
            causes=self._kept.causes,
            health=self.seen.health,
        )

    def forgive(self) -> None:
        """What was wrong so far is no reason: we did not look, and nobody else may have been able to."""
        self._judge.forget()

    def _forget(self) -> None:
        self.seen, self._doomed = Sight(), ""
        self._judge.forget()

    def _explain_end(self, code: int) -> str:
        failure = read_failure(self.run.failure)
        if failure:
            return failure.describe()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        return f"its keeper ended by itself ({how})"

    def _kill_server(self) -> None:
        """TorchServe first: that resets its connections."""
        processes = sorted(find_marked(self.run.path), key=lambda process: not process.is_java)
        for process in processes:
            send_signal(process, signal.SIGKILL)
        wait_until_gone(processes, KILLED_WITHIN_S)

    def _end_worker(self, pid: int, why: str) -> None:
        process = read_process(pid)
        if process and process.pid != os.getpid():
            self._report(f"{self.name}: {process.role} {pid} {why}: ended, TorchServe starts another one")
            send_signal(process, signal.SIGKILL)
