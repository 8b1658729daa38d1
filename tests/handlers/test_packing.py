"""Texts share rows, and each is answered as transformers itself answers it alone."""

from __future__ import annotations

import json
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForSequenceClassification

from handlers.shared.outputs import relative_error
from handlers.shared.packing import PLACE, PackedRows, pack_rows
from handlers.shared.shapes import Run
from handlers.shared.transformer import LogitsOnly, PackedLogits, answer_alone
from handlers.text_classifier import TextClassifier
from models.packing import Forms, describe_packing
from tests.handlers.context import FakeContext

ROWS = PackedRows(widths=(8, 16, 32, 64), row_tokens=32, rows_per_run=2)
SMALL = {
    "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "num_labels": 3, "max_position_embeddings": 130,
}  # fmt: skip


def make(kind: str, **changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **changes})
    return AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()


@settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(min_value=1, max_value=64), max_size=40))
def test_each_text_has_one_place_in_a_warmed_shape(needed):
    warmed = {(shape.batch_size, shape.length) for shape in ROWS.list_shapes()}
    runs = ROWS.plan_runs(needed)
    assert {(len(run.rows), run.length) for run in runs} <= warmed
    assert sorted(text for run in runs for text in run.samples) == list(range(len(needed)))
    for run in runs:
        for row in run.rows:
            assert sum(needed[text] for text in row) <= run.length
            assert len(row) <= run.length // PLACE


def test_full_rows_run_together_and_the_rest_shrinks():
    assert ROWS.plan_runs([20, 12, 30, 25, 9]) == [
        Run(rows=((2,), (3,)), length=32),
        Run(rows=((0, 1),), length=32),
        Run(rows=((4,),), length=16),
    ]


def test_rows_of_mixed_lengths_are_nearly_full():
    """Log-normal, as the load tests send them; what one of 16 in a row of its own would waste is 19 %."""
    chance, rows = (
        random.Random(0),
        PackedRows(widths=(16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512), row_tokens=128, rows_per_run=2),
    )
    tokens = computed = 0
    for _ in range(100):
        needed = [min(512, max(3, round(24 * chance.lognormvariate(0, 0.8)))) for _ in range(16)]
        tokens += sum(needed)
        computed += sum(len(run.rows) * run.length for run in rows.plan_runs(needed))
    assert tokens / computed > 0.95


@pytest.mark.parametrize("shape", ROWS.list_shapes(), ids=str)
def test_an_example_fills_each_row_with_others(shape):
    needed = [3, 12, 28, 60]
    run = ROWS.arrange(shape, needed)
    assert (len(run.rows), run.length) == (shape.batch_size, shape.length)
    for row in run.rows:
        assert shape.length - PLACE < sum(max(PLACE, needed[text]) for text in row) <= shape.length
        assert len(row) >= 2


def test_inputs_of_a_row():
    rows = [[(5, 6, 7), (8, 9, 9, 9)], [(4,)]]
    ids, positions, segments, starts = pack_rows(rows, width=8, padding_id=1, first_position=2)
    assert ids.tolist() == [[5, 6, 7, 8, 9, 9, 9, 1], [4, 1, 1, 1, 1, 1, 1, 1]]
    assert positions.tolist() == [[2, 3, 4, 2, 3, 4, 5, 2], [2] * 8]
    assert segments.tolist() == [[1, 1, 1, 2, 2, 2, 2, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    assert starts.tolist() == [0, 3, 8, 0]


def test_a_text_is_answered_alike_with_any_neighbours_and_alone():
    model = make("bert")
    packed, chance = PackedLogits(model), random.Random(1)
    text = [chance.randrange(1, 200) for _ in range(11)]
    alone = answer_alone(model, text)
    for seed in range(4):
        chance = random.Random(seed)
        others = [[chance.randrange(1, 200) for _ in range(chance.randrange(3, 30))] for _ in range(3)]
        inputs = pack_rows([[*others, text], [text, *others]], width=112, padding_id=0, first_position=0)
        with torch.no_grad():
            logits = packed(*inputs)
        expected = torch.cat([*(answer_alone(model, one) for one in others), alone])
        assert relative_error(logits[:4], expected, "softmax") < 1e-4
        assert relative_error(logits[4:5], alone, "softmax") < 1e-4


def describe(model):
    forms = Forms(
        model=model, packed=PackedLogits(model), padded=LogitsOnly(model), activation="softmax",
        alone=lambda ids: answer_alone(model, ids), padding_id=1, types=False,
    )  # fmt: skip
    return describe_packing(forms, vocabulary=200, longest=128)


@pytest.mark.parametrize(
    ("kind", "changes", "first_position"),
    [("bert", {}, 0), ("roberta", {}, 2), ("xlm-roberta", {}, 2), ("electra", {"embedding_size": 32}, 0)],
)
def test_families_that_are_exact_are_packed(kind, changes, first_position):
    assert describe(make(kind, **changes)) == {"first_position": first_position}


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("distilbert", {"dim": 32, "n_heads": 4, "hidden_dim": 64, "n_layers": 2}, "takes no position_ids"),
        ("deberta-v2", {"relative_attention": True}, "its parts do not take packed rows"),
        ("convbert", {"embedding_size": 32}, "texts in one row change each other's outputs"),
        ("gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "pad_token_id": 1}, "has no classifier"),
    ],
)
def test_what_cannot_be_packed_is_recognised(kind, changes, why):
    """ConvBERT takes all that packing gives, and its convolutions see the neighbours all the same."""
    plain = {} if kind in ("distilbert", "gpt2") else SMALL
    config = AutoConfig.for_model(kind, **{**plain, "vocab_size": 200, "num_labels": 3, **changes})
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    assert why in describe(model)["impossible"]


def load(tiny_text, monkeypatch, forward=None):
    if forward is not None:
        monkeypatch.setattr(PackedLogits, "forward", forward)
    handler = TextClassifier()
    handler.initialize(FakeContext(tiny_text))
    return handler


def leak(self, input_ids, positions, segments, starts):
    """A mask that shuts out the padding only."""
    return FORWARD(self, input_ids, positions, (segments > 0).long(), starts)


def shift(self, input_ids, positions, segments, starts):
    """Positions that go on through the row."""
    return FORWARD(self, input_ids, torch.arange(positions.shape[1]).expand_as(positions), segments, starts)


def swap(self, input_ids, positions, segments, starts):
    """Each text's answer pooled a token too late."""
    return FORWARD(self, input_ids, positions, segments, starts + 1)


FORWARD = PackedLogits.forward


@pytest.mark.parametrize("planted", [leak, shift, swap])
def test_a_planted_error_fails_the_load(tiny_text, monkeypatch, planted):
    with pytest.raises(RuntimeError, match="answers a sample beside others not as it answers it alone"):
        load(tiny_text, monkeypatch, planted)


def test_without_packing_the_answers_are_the_same(tiny_text, monkeypatch):
    bodies = [{"body": ("word " * count).encode()} for count in (1, 20, 5, 12, 3)]
    packed = load(tiny_text, monkeypatch).handle(bodies, FakeContext(tiny_text))
    monkeypatch.setenv("CPU_KIT_OPTIONS", json.dumps({"tiny_text": {"off": ["packing"]}}))
    alone = load(tiny_text, monkeypatch).handle(bodies, FakeContext(tiny_text))
    for one, other in zip(map(json.loads, packed), map(json.loads, alone), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
