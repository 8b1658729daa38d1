"""A load beside those that serve takes only what they leave."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from server.supervisor.nice import GENTLE, may_be_gentle, set_nice


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.skipif(not may_be_gentle(), reason="only root, or who has RLIMIT_NICE, can make it urgent again")
def test_a_process_is_made_gentle_and_urgent_again(sleeper):
    set_nice([sleeper], GENTLE)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == GENTLE
    set_nice([sleeper], 0)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 0


def test_who_has_ended_is_passed_over(sleeper):
    set_nice([2**22 - 1, sleeper], os.getpriority(os.PRIO_PROCESS, sleeper))
