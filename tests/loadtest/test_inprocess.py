"""The in-process reference runs the archive's own handler as planned, and rejects what would be no limit."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from loadtest.errors import LoadTestError
from loadtest.payloads import make_payloads
from loadtest.rows import find_good
from loadtest.servers import inprocess
from loadtest.servers.base import Testbed
from loadtest.servers.inprocess import in_process_server, run_in_process
from loadtest.servers.kit import write_plan
from server.processes import find_marked
from server.rundir import RunDir
from tests.loadtest.making import make_load

PLAIN = ("BACKEND=eager", "PINNING=0", "ALLOCATOR=system", "OPENMP=gnu", "WORKERS=1")
PORT = 9640


def plan_tiny(archive, run_dir):
    arguments = [*PLAIN, f"MODEL_STORE={archive.parent}"]
    return write_plan(run_dir, port=PORT, models=[archive.stem], arguments=arguments)


def send(running, payloads, folder, **changes):
    load = make_load(**{"warm_up_s": 0.2, "duration_s": 1.5, "users": 1, **changes})
    return running.runner.run(load, payloads, folder)


def test_an_image_handler_answers_whole_batches_and_nothing_stays_behind(tiny_image_archive, tmp_path):
    said = []
    testbed = Testbed(store=tiny_image_archive.parent, folder=tmp_path, first_port=PORT, say=said.append)
    (photo,) = make_payloads("one-photo", model="tiny_image")
    broken = dataclasses.replace(photo, body=b"no image")
    server = in_process_server("limit", "tiny_image", PLAIN)
    with server.open(testbed) as running:
        batch = running.plan.models["tiny_image"].batch_size
        outcome = send(running, [photo], tmp_path / "job")
        mixed = send(running, [photo, broken], tmp_path / "mixed", in_order=True).rows
        with pytest.raises(LoadTestError, match="runs closed loops: got a rate"):
            send(running, [photo], tmp_path / "open", rate=5.0)
        assert (running.is_kit, running.url, running.token(), running.list_workers()) == (True, "", "", {})
        assert running.how.startswith("without a server: BACKEND=eager")
        running.halt()  # it ends none the less
    rows, sent, ended = outcome.rows, outcome.rows["sent"].to_numpy(), outcome.rows["ended"].to_numpy()
    assert find_good(rows).all()
    assert rows["due"].isna().all()
    assert len(rows) == batch * len(np.unique(sent)) > batch
    assert -0.2 <= sent.min() < 1.5 < ended.max()
    assert (sent[batch:] >= ended[:-batch]).all()
    assert (0 < outcome.model_share < 1, outcome.cpu_shares) == (True, ())
    assert {"label", "probability"} <= set(json.loads(outcome.answers[0])[0])
    assert (find_marked(running.run.path), said) == ([], ["  starting limit"])
    # What the handler rejects is an error and no figure.
    assert find_good(mixed).tolist() == [payload == 0 for payload in mixed["payload"]]
    assert (set(mixed["status"]), set(mixed["error"])) == ({200, 415}, {"", "Unsupported Media Type"})


def test_texts_are_sent_in_the_loads_order_and_answers_belong_to_them(tiny_text_archive, tmp_path):
    run = RunDir.at(tmp_path / "run")
    texts = make_payloads("texts", model="tiny_text")[:5]
    with run_in_process("limit", run, plan_tiny(tiny_text_archive, run.path), "tiny_text") as running:
        listed = send(running, texts, tmp_path / "listed", in_order=True)
        drawn = send(running, texts, tmp_path / "drawn").rows["payload"].tolist()
    assert listed.rows["payload"].tolist() == [number % 5 for number in range(len(listed.rows))]
    assert len({*drawn[:5]}) == len(drawn[:5]) > 0
    assert all(json.loads(listed.answers[one])["probabilities"] for one in listed.rows["answer"])


@pytest.fixture
def plan(tiny_image_archive, tmp_path):
    return plan_tiny(tiny_image_archive, tmp_path / "run")


def change_instance(plan, **changes):
    return dataclasses.replace(plan, instances={"a1": dataclasses.replace(plan.instances["a1"], **changes)})


def test_a_process_has_the_environment_and_the_settings_of_the_plan(plan, tmp_path):
    instance = plan.instances["a1"]
    worker = {**instance.worker_environment, "LD_PRELOAD": ("/lib/a.so", "/lib/b.so")}
    preloading = change_instance(plan, worker_environment=worker)
    environment = inprocess.render_worker_environment(preloading, RunDir.at(tmp_path / "run"))
    assert (environment["LD_PRELOAD"], environment["TS_IPEX_ENABLE"]) == ("/lib/a.so:/lib/b.so", "false")
    # One that cannot be loaded says why.
    options = json.dumps({"tiny_image": {"precision": "fp64"}})
    broken = change_instance(plan, environment={**instance.environment, "CPU_KIT_OPTIONS": options})
    started = run_in_process("limit", RunDir.at(tmp_path / "run"), broken, "tiny_image")
    with pytest.raises(LoadTestError, match=r"(?s)ended.*precision must be one of"), started:
        pass
    assert {**environment, **instance.environment} == environment
    threads = instance.cores_per_worker
    names = {"allocator": {"name": "system"}, "openmp": {"name": "gnu"}}
    told = {"precision": "fp32", "threads": {"intra_op": threads}, **names}
    inprocess.check_described(plan, "tiny_image", [told])
    others = {
        "precision": "bf16",
        "threads": {"intra_op": 99},
        "allocator": {"name": "x"},
        "openmp": {"name": "x"},
    }
    for field, value in others.items():
        with pytest.raises(LoadTestError, match="the in-process reference must have"):
            inprocess.check_described(plan, "tiny_image", [told, {**told, field: value}])
