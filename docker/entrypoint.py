"""The container's main program: plans inside it, starts the server as a child, passes signals and logs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import IO

from config.plan import read_plan
from docker.lines import Speaker
from docker.logs import Following
from docker.settings import Settings, SettingsError, read_settings
from server.launch import confine
from server.rundir import RunDir
from server.state import read_failure

USAGE_ERROR = 2
LOG_FILE_SIZE = "2 MB"
"""They are read as they are written, so little is kept: the writable folder may be memory."""


class Entrypoint:
    """One run of the container."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.child: subprocess.Popen[str] | None = None
        self.stopping = False
        self.last_error = ""

    def run(self, settings: Settings) -> int:
        """The exit code of the first part that fails, or the server's."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        run = RunDir.at(settings.run_dir)
        for file in (run.health, run.failure):  # of an earlier run in the same volume
            file.unlink(missing_ok=True)
        code = self._run_part("config", settings.plan_arguments(), dict(os.environ))
        if code or self.stopping:
            return code or 128 + signal.SIGTERM
        plan = read_plan(settings.run_dir)
        self.speaker.say("config", f"memory: {plan.layout.memory_nodes.reason}")
        confine(plan)  # what runs elsewhere is counted against a quota too
        environment = {**os.environ, "LOG_FILE_SIZE": LOG_FILE_SIZE}
        with Following(self.speaker, run):
            return self._run_part("server", settings.start_arguments(), environment)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.stopping = True
        if self.child and self.child.poll() is None:
            self.child.send_signal(number)

    def _run_part(self, module: str, arguments: Sequence[str], environment: dict[str, str]) -> int:
        command = [sys.executable, "-m", module, *arguments]
        self.child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        if self.stopping:  # the signal came while it was being started
            self.child.send_signal(signal.SIGTERM)
        readers = [
            threading.Thread(target=self._read, args=(module, stream, level), daemon=True)
            for stream, level in ((self.child.stdout, "info"), (self.child.stderr, "error"))
        ]
        for reader in readers:
            reader.start()
        code = self.child.wait()
        for reader in readers:
            reader.join()
        return code if code >= 0 else 128 - code

    def _read(self, source: str, stream: IO[str], level: str) -> None:
        for line in stream:
            if line.strip():
                self.speaker.say(source, line.rstrip(), level)
                if level == "error":
                    self.last_error = line.strip()


def read_cause(run: RunDir, last_error: str) -> dict[str, str]:
    """Why it ended: what `server` wrote down, else its last error."""
    failure = read_failure(run.failure)
    if failure is None:
        return {"cause": last_error} if last_error else {}
    return {"cause": failure.describe(), **({"cure": failure.cure} if failure.cure else {})}


def main() -> int:
    """0 stopped by a signal, 1 failed or not as asked for, 2 a value that cannot be used."""
    speaker = Speaker(stream=sys.stdout)
    try:
        settings = read_settings(os.environ)
    except SettingsError as problem:
        speaker.say("entrypoint", f"ended with status {USAGE_ERROR}", "error", cause=str(problem))
        return USAGE_ERROR
    entrypoint = Entrypoint(speaker)
    code = entrypoint.run(settings)
    if code == 0 or entrypoint.stopping:
        speaker.say("entrypoint", f"ended with status {code}")
    else:
        cause = read_cause(RunDir.at(settings.run_dir), entrypoint.last_error)
        speaker.say("entrypoint", f"ended with status {code}", "error", **cause)
    return code


if __name__ == "__main__":
    sys.exit(main())
