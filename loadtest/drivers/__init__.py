"""The programs that send the load; each brings raw rows back."""

from pathlib import Path

from loadtest.drivers.apache import run_apache
from loadtest.drivers.job import Job, Outcome
from loadtest.drivers.locust import Crew, start_locust
from loadtest.drivers.remote import offering


def drive(job: Job, folder: Path, crew: Crew, driver: str = "locust") -> Outcome:
    """Run the job that was written to `folder`; LoadTestError when the driver did not finish it."""
    if driver == "ab":
        return run_apache(job, folder)
    with offering(folder, crew):
        return start_locust(job, folder, crew).wait()
