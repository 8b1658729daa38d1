"""The cause of a failed load is found in logs recorded from TorchServe 0.12."""

from __future__ import annotations

import json

import pytest

from server import logs
from server.logs import explain_death, find_start_failure, read_configuration, read_oom_kills
from server.state import Failure
from tests.server.fakes import RECORDED

PREFIX = "2026-01-01T00:00:00,000 [INFO ] W-9000-echo_1.0-stdout MODEL_LOG - "
STOPPED = (
    "2026-01-01T00:00:00,000 [DEBUG] W-9000-echo_1.0 org.pytorch.serve.wlm.WorkerThread - "
    "W-9000-echo_1.0 State change WORKER_STARTED -> WORKER_STOPPED"
)


@pytest.fixture
def find(run, monkeypatch):
    """The failure in logs that were recorded, or are like that."""
    run.logs.mkdir()

    def find(model_log: str, server_log: str | None = None, oom_kills: int = 0) -> Failure | None:
        if server_log is None:
            files = [RECORDED / f"{model_log}.{log}.log" for log in ("model_log", "ts_log")]
            model_log, server_log = (file.read_text(encoding="utf-8") for file in files)
        run.model_log.write_text(model_log)
        run.server_log.write_text(server_log)
        monkeypatch.setattr(logs, "read_oom_kills", lambda: 7 + oom_kills)
        return find_start_failure(run, 7)

    return find


def test_our_handlers_own_line_gives_step_cause_and_fix(find, run):
    log = str(run.model_log)
    assert find("json") == Failure(model="echo", step="freeze", cause="planted", fix="unplant it", log=log)


def test_a_traceback_gives_its_exception_not_torchserves_follow_up(find):
    failure = find("raise")
    assert (failure.model, failure.cause) == ("echo", "RuntimeError: planted failure")
    assert failure.lines[-1] == "RuntimeError: planted failure"
    assert '    raise RuntimeError("planted failure")' in failure.lines


@pytest.mark.parametrize(
    ("oom_kills", "cause"), [(0, "the process ended while"), (1, "killed: out of memory")]
)
def test_a_process_that_just_ends_is_told_from_one_that_the_kernel_killed(find, oom_kills, cause):
    assert find("exit", oom_kills=oom_kills).cause.startswith(cause)


def test_a_good_start_has_no_failure(find, run):
    assert find("raise")
    server_log, before = run.server_log.read_text(), run.model_log.read_text().split("Failed to load")[0]
    started = "\n".join(line for line in server_log.splitlines() if "-> WORKER_STARTED" in line)
    assert find(before, started) is None
    run.model_log.unlink()
    run.server_log.unlink()
    assert find_start_failure(run, 0) is None


def test_the_first_exception_of_a_chain_through_torchserves_own_handlers_is_the_cause(find):
    lines = [
        "Backend worker process died.",
        "Traceback (most recent call last):",
        "ModuleNotFoundError: No module named 'safetensors'",
        "During handling of the above exception, another exception occurred:",
        "Traceback (most recent call last):",
        "ModuleNotFoundError: No module named 'ts.torch_handler.image_classifier'",
    ]
    model_log = "\n".join(PREFIX + line for line in lines)
    assert find(model_log, STOPPED).cause == "ModuleNotFoundError: No module named 'safetensors'"


def test_a_time_out_is_taken_from_torchserves_log(find):
    server_log = (
        "2026-01-01T00:00:00,000 [ERROR] W-9000-echo_1.0 o.x.WorkerThread - Backend worker error\n"
        "org.pytorch.serve.wlm.WorkerInitializationException: Backend worker did not respond in given time\n"
        + STOPPED
    )
    assert find("", server_log).cause == "Backend worker did not respond in given time"


def test_an_archive_torchserve_cannot_open_is_named(find):
    server_log = (
        "2026 [WARN ] main org.pytorch.serve.ModelServer - Failed to load model: nope.mar\n"
        "org.pytorch.serve.archive.model.ModelNotFoundException: Model not found at: nope.mar\n"
    )
    failure = find("", server_log)
    assert (failure.model, failure.step) == ("nope", "open the archive")
    assert failure.cause.endswith("ModelNotFoundException: Model not found at: nope.mar")


@pytest.mark.parametrize(
    ("console", "cause"),
    [
        ("a\nInvalid configuration: bad port\n\tat y\n", "Invalid configuration: bad port"),
        ("Error occurred during initialization of VM\nx\n", "Error occurred during initialization of VM"),
        ("java not found, please make sure\n", "java not found, please make sure"),
        ("--model-store directory not found: /nope\n", "--model-store directory not found: /nope"),
        ("Model server started.\n", "it said nothing (killed? out of memory?)"),
        ("", "it said nothing (killed? out of memory?)"),
    ],
)  # fmt: skip
def test_torchserves_own_end_is_explained_by_what_it_printed(run, console, cause):
    run.logs.mkdir()
    run.console_log.write_text(console)
    assert explain_death(run).cause == f"TorchServe ended: {cause}"


def test_where_the_jvm_said_nothing_the_last_logged_error_does(run):
    run.logs.mkdir()
    run.server_log.write_text(
        "2025-01-01T00:00:00,000 [ERROR] main org.pytorch.serve.ModelServer - first\n"
        "2025-01-01T00:00:01,000 [ERROR] epoll-1 a.B - Address already in use - 8080\n\tat a\n"
        "2025-01-01T00:00:02,000 [INFO ] main org.pytorch.serve.ModelServer - closing\n"
    )
    run.console_log.write_text("Model server started.\n")
    assert explain_death(run).cause == "TorchServe ended: Address already in use - 8080"
    run.console_log.write_text("Error occurred during x\n")
    assert explain_death(run).cause == "TorchServe ended: Error occurred during x"


def test_oom_kills_are_read_from_vmstat(tmp_path):
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    assert read_oom_kills(tmp_path / "vmstat") == 3
    assert read_oom_kills(tmp_path / "none") == 0


DUMP = """\
2026-01-01T00:00:00,000 [INFO ] main org.pytorch.serve.servingsdk.impl.PluginsManager - Initializing plugins
2026-01-01T00:00:01,000 [INFO ] main org.pytorch.serve.ModelServer - 
Torchserve version: 0.12.0
Config file: /kit/run/config.properties
Maximum Response Size: 6553500
Allowed Urls: [(?-i)file:///kit/model-store/[^/]*\\.mar]
Model config: {"a":{"1.0":{"batchSize":8}}}
Model API enabled: false
2026-01-01T00:00:02,000 [INFO ] main org.pytorch.serve.ModelServer - Loading initial models: a.mar
"""  # noqa: W291 - TorchServe prints the blank


def test_the_configuration_is_read_from_the_log_of_the_start(tmp_path):
    log = tmp_path / "ts_log.log"
    assert read_configuration(log) == {}
    log.write_text(DUMP)
    assert read_configuration(log) == {
        "Torchserve version": "0.12.0",
        "Config file": "/kit/run/config.properties",
        "Maximum Response Size": "6553500",
        "Allowed Urls": r"[(?-i)file:///kit/model-store/[^/]*\.mar]",
        "Model config": '{"a":{"1.0":{"batchSize":8}}}',
        "Model API enabled": "false",
    }


def test_a_large_log_goes_on_anew_and_its_lines_are_kept_once(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LARGEST_LOG_BYTES", 10)
    log = tmp_path / "requests.log"
    logs.limit_log(log)  # there is none yet
    with log.open("a") as writer:
        for text in ("first line\n", "second line\n"):
            writer.write(text)
            writer.flush()
            logs.limit_log(log)
        writer.write("third\n")
    assert (log.read_text(), (tmp_path / "requests.log.1").read_text()) == ("third\n", "second line\n")


def test_entries_in_json_are_read_as_text(tmp_path):
    entry = {"time": "2026-11-28T10:00:00.000Z", "level": "INFO", "source": "W-9000-bert_1.0-stdout",
             "logger": "MODEL_LOG", "message": '{"cpu_kit": "loaded"}', "exception": ""}  # fmt: skip
    log = tmp_path / "model_log.log"
    log.write_text(json.dumps(entry) + "\nno entry\n")
    assert logs.read_log(log) == (
        '2026-11-28T10:00:00.000Z [INFO ] W-9000-bert_1.0-stdout MODEL_LOG - {"cpu_kit": "loaded"}\n'
        "no entry\n"
    )
