"""Trained models on the kit's whole path: a user's weights and data, build, gate, worker, right answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from handlers.definition import render_definition
from handlers.shared.steps import VALIDATED_ERROR_SLACK
from server.archives import check_answer
from tests.cpu import BF16, HAS_BF16, NARROW
from tests.models.trained import FLOOR, ROWS, Packed, measure_accuracy, pack
from tests.models.training import Trained
from tests.models.worker import Answer, Worker, WorkerError, ask_worker

PRECISIONS = ("fp32", *NARROW)


def ask_workers(directories: dict[str, Path], model: Trained, off: Sequence[str] = ()) -> dict[str, Worker]:
    """One worker for each precision, two at a time."""

    def ask(precision: str) -> Worker:
        directory, requests = directories[precision], model.requests
        return ask_worker(directory, precision=precision, requests=requests, rows=ROWS, off=off)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(directories, pool.map(ask, directories), strict=True))


@pytest.fixture(scope="module")
def packed(trained, tmp_path_factory) -> Packed:
    return pack(trained, tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def workers(trained, packed) -> dict[str, Worker]:
    return ask_workers(dict.fromkeys(PRECISIONS, packed.directory), trained)


def measure_agreement(worker: Worker, other: Worker) -> float:
    pairs = zip(worker.answers, other.answers, strict=True)
    return float(np.mean([one.label == two.label for one, two in pairs]))


def to_array(answers: Sequence[Answer], labels: Sequence[str]) -> np.ndarray:
    """Probabilities, float (inputs, classes)."""
    return np.array([[answer.probabilities[label] for label in labels] for answer in answers])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_workers_answer_right_on_inputs_the_model_has_never_seen(trained, workers, precision):
    accuracy = {name: round(measure_accuracy(worker, trained), 4) for name, worker in workers.items()}
    print(f"{trained.definition.name}: accuracy through the worker {accuracy}")
    assert accuracy[precision] >= FLOOR[trained.takes]
    assert accuracy["fp32"] - accuracy[precision] <= 0.01


def test_fp32_answers_as_the_users_own_model_does(trained, workers):
    own = trained.probabilities.numpy()
    served = to_array(workers["fp32"].answers, trained.labels)
    assert (served.argmax(axis=1) == own.argmax(axis=1)).mean() >= 0.99
    # Pictures are decoded and resized by other code than the user's, texts are not.
    assert np.abs(served - own).mean() <= (0.01 if trained.takes == "image" else 1e-4)


@pytest.mark.parametrize("trained", ["text"], indirect=True)
def test_texts_that_share_rows_are_answered_as_texts_alone(trained, packed, workers):
    alone = ask_workers(dict.fromkeys(PRECISIONS, packed.directory), trained, off=("packing",))
    for precision in PRECISIONS:
        shared, own = workers[precision], alone[precision]
        assert (shared.describe["packing"]["on"], own.describe["packing"]["on"]) == (True, False)
        assert shared.describe["packing_efficiency"]["share"] > own.describe["packing_efficiency"]["share"]
        # A rounding decides an answer now and then where a precision is narrow.
        assert measure_agreement(shared, own) >= (1.0 if precision == "fp32" else 0.98)
        assert abs(measure_accuracy(shared, trained) - measure_accuracy(own, trained)) <= 0.01
    one, other = (to_array(each["fp32"].answers, trained.labels) for each in (workers, alone))
    assert np.abs(one - other).max() <= 1e-5


@pytest.mark.parametrize("precision", NARROW)
def test_the_gates_figures_are_what_clients_see(trained, packed, workers, precision):
    figures = packed.definition.find_accuracy(f"ipex {precision}")
    narrow, fp32 = workers[precision], workers["fp32"]
    # The gate lays its inputs out in other runs, so that a few answers round elsewhere.
    few = 3 / len(trained.answers)
    assert figures["labelled_accuracy"] == pytest.approx(measure_accuracy(narrow, trained), abs=few)
    assert figures["labelled_accuracy_fp32"] == pytest.approx(measure_accuracy(fp32, trained), abs=few)
    assert figures["agreement"] == pytest.approx(measure_agreement(narrow, fp32), abs=few)
    assert narrow.describe["accuracy"] == figures


def test_the_gate_validated_by_the_users_data(trained, packed):
    definition = packed.definition
    assert {*definition.served} == {f"ipex {precision}" for precision in NARROW}
    for precision, figures in ((name, definition.find_accuracy(name)) for name in definition.served):
        assert (figures["samples"], figures["source"]) == (len(trained.answers), trained.evaluation.name)
        assert figures["calibration"] == (trained.calibration.name if precision == "ipex int8" else None)
        assert figures["labelled_loss_points"] <= 1
        low, high = figures["labelled_loss_interval_points"]
        assert low <= figures["labelled_loss_points"] <= high
        # No more than a few hundred inputs can show is claimed.
        assert figures["labelled_loss_shown"] == (high <= 1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_worker_computes_in_its_precision_with_the_archives_code(packed, workers, precision):
    worker = workers[precision]
    steps = {step["name"]: step["status"] for step in worker.describe["steps"]}
    graph = worker.describe["graph"]
    int8 = precision == "int8"
    assert worker.describe["precision"] == precision
    assert worker.describe["weights"].startswith("user (")
    assert Path(worker.code).is_relative_to(packed.directory)
    assert (worker.describe["recipe"] or {}).get("name") == ("histogram" if int8 else None)
    assert steps["quantize" if int8 else "ipex_optimize"] == "applied"
    assert (graph["operators"].get("ipex::LlgaFusionGroup", 0) > 0) == int8
    assert (graph["prepacked"] > 0) != int8


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_passes_the_gate_passes_the_servers_own_check(packed, workers, precision):
    # The smoke is nothing the model was trained for; its answer is what `make serve` waits for.
    assert check_answer(packed.definition, precision, workers[precision].smoke) is None


def test_a_loads_self_check_expects_the_error_that_the_gate_has_validated(packed, workers):
    # On made-up texts INT8 may be further off than a definition foresees, and lose no right answer for it.
    foreseen = packed.definition.precisions["int8"].self_check_relative_error
    seen, validated = (
        workers["int8"].describe["self_check"],
        workers["int8"].describe["accuracy"]["relative_error"],
    )
    print(f"foreseen {foreseen}, validated {validated}, at load {seen}")
    assert seen["tolerance"] == max(foreseen, VALIDATED_ERROR_SLACK * validated)
    assert seen["relative_error"] == pytest.approx(validated, rel=0.25)
    assert workers["bf16" if HAS_BF16 else "fp32"].describe["self_check"]["tolerance"] < foreseen


def spoil_calibration(model: Trained, folder: Path) -> Trained:
    """Black pictures: every scale is chosen for a network that sees nothing."""
    (folder / "black").mkdir()
    for number in range(16):
        Image.new("RGB", (40, 40 + number)).save(folder / "black" / f"{number}.png")
    return replace(model, calibration=folder / "black")


@pytest.fixture(scope="module")
def spoilt(digits, tmp_path_factory) -> Packed:
    """An archive whose INT8 cannot be right by any recipe."""
    folder = tmp_path_factory.mktemp("spoilt")
    return pack(spoil_calibration(digits, folder), folder)


@pytest.fixture(scope="module")
def spoilt_workers(digits, spoilt, tmp_path_factory) -> dict[str, Worker]:
    """INT8 too, forced: the gate's verdict is taken out, and the self-check, which would reject next."""
    forced = tmp_path_factory.mktemp("forced") / "unpacked"
    shutil.copytree(spoilt.directory, forced)
    definition = json.loads(render_definition(spoilt.definition))
    definition["variants"]["ipex int8"]["rejected"] = ""
    definition["precisions"]["int8"]["self_check_relative_error"] = 1e6
    (forced / "definition.json").write_text(json.dumps(definition), encoding="utf-8")
    directories = {**dict.fromkeys(PRECISIONS, spoilt.directory), "int8": forced}
    return ask_workers(directories, digits)


def test_int8_that_lost_its_accuracy_is_rejected_with_figures(spoilt):
    variant = spoilt.definition.variants["ipex int8"]
    figures, tried = variant.accuracy, variant.tried
    assert [one["recipe"] for one in tried] == ["histogram", "min-max"]
    assert all(one["reason"] and one["time_ratio"] for one in tried)
    assert figures["recipe"] in [one["recipe"] for one in tried]
    assert variant.rejected
    assert figures["labelled_accuracy_fp32"] >= FLOOR["image"]
    assert figures["labelled_accuracy"] <= figures["labelled_accuracy_fp32"] - 0.2


def test_a_rejected_precision_does_not_load_and_says_why(digits, spoilt):
    with pytest.raises(WorkerError) as caught:
        ask_worker(spoilt.directory, precision="int8", requests=digits.requests[:1], rows=ROWS)
    assert spoilt.definition.variants["ipex int8"].rejected in str(caught.value)


@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_the_other_precisions_stay_right(digits, spoilt_workers, precision):
    assert measure_accuracy(spoilt_workers[precision], digits) >= FLOOR["image"]


def test_what_was_rejected_would_really_answer_wrong(digits, spoilt, spoilt_workers):
    accuracy = measure_accuracy(spoilt_workers["int8"], digits)
    print(f"{digits.definition.name}: accuracy of the rejected INT8 {accuracy:.4f}")
    assert accuracy <= measure_accuracy(spoilt_workers["fp32"], digits) - 0.2
    # Sums of saturated values depend on the order and the batch.
    validated = spoilt.definition.find_accuracy("ipex int8")["labelled_accuracy"]
    assert accuracy == pytest.approx(validated, abs=0.05)
