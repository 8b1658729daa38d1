"""Serves a BERT-style sequence classifier: text in, the label and every class's probability out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

import numpy as np
import torch

from handlers.request import Request
from handlers.shared.classifier import Classifier
from handlers.shared.definition import Definition
from handlers.shared.errors import BadRequest
from handlers.shared.options import BUCKETS, PACKING
from handlers.shared.outputs import NONE, SIGMOID, YES
from handlers.shared.packing import PackedRows, pack_rows
from handlers.shared.shapes import Layout, ShapeGrid, WholeBatch
from handlers.shared.texts import TextTokenizer, Tokens
from handlers.shared.transformer import answer_alone, build_sequence_classifier
from handlers.shared.work import Work, plan_token_work

FORM = (
    '{"text": "…"}, {"text": ["…", "…"]} or the text itself in UTF-8 (a text that looks like JSON with '
    "Content-Type: text/plain)"
)


class CpuTextClassifier(Classifier):
    """Any sequence classifier of transformers that takes input_ids and attention_mask."""

    convolutional = False
    libraries = ("transformers", "tokenizers", "numpy")
    # A third of TorchServe's own response time-out; tokens of BERT-base in INT8 in that time; 8 texts of 512
    # tokens as they are read, if each character were a comma.
    LIMITS: ClassVar[Mapping[str, int]] = {"batch_s": 40, "tokens_per_batch": 80_000, "json_values": 82_000}

    def configure(self, definition: Definition) -> None:
        self.token_lengths = tuple(sorted(definition.model["token_lengths"]))
        self.row_tokens = int(definition.model["row_tokens"])
        self.tokens_per_run = int(definition.model["tokens_per_run"])
        self.max_inputs = int(definition.model["max_texts_per_request"])
        self.padding_id = int(definition.model["padding_id"])
        self.tokenizer = TextTokenizer(
            definition.directory / "tokenizer.json",
            max_tokens=self.token_lengths[-1],
            **definition.model["tokenizer"],
        )
        super().configure(definition)

    @property
    def packed(self) -> bool:
        """Whether the model takes several texts in a row: found, and proven, when the archive was built."""
        return "impossible" not in self.definition.model["packing"]

    def choose_layout(self, off: AbstractSet[str]) -> Layout:
        if self.packed and not off & {PACKING, BUCKETS}:
            return PackedRows(
                widths=self.token_lengths,
                row_tokens=self.row_tokens,
                rows_per_run=self.tokens_per_run // self.row_tokens,
            )
        kind = WholeBatch if BUCKETS in off else ShapeGrid
        return kind(
            batch_sizes=self.batch_sizes,
            lengths=self.token_lengths,
            tokens_per_run=self.tokens_per_run,
        )

    def describe_packing(self) -> dict[str, Any]:
        if isinstance(self.layout, PackedRows):
            return {"applicable": True, "on": True, "row_tokens": self.row_tokens}
        off = {"applicable": True, "on": False, "reason": "switched off by the plan"}
        why = self.definition.model["packing"].get("impossible")
        return {"applicable": False, "on": False, "reason": why} if why else off

    def load_model(self) -> torch.nn.Module:
        attention = self.definition.model["attention"]
        return build_sequence_classifier(self.definition, attention=attention, packed=self.packed)

    def plan_work(self, seconds_each: float) -> Work:
        return plan_token_work(
            seconds_each,
            tokens_per_batch=self.limits["tokens_per_batch"],
            batch_s=self.limits["batch_s"],
            longest=self.token_lengths[-1],
            most_tokens=self.max_inputs * self.token_lengths[-1],
        )

    def decode(self, request: Request) -> Tokens | list[Tokens]:
        text = self._read_text(request)
        texts = text if isinstance(text, list) else [text]
        if not texts or len(texts) > self.max_inputs:
            raise BadRequest(400, f'"text" must hold 1 to {self.max_inputs} texts: got {len(texts)}')
        if not all(isinstance(one, str) and one.strip() for one in texts):
            raise BadRequest(400, 'each text must be a non-empty string; send {"text": "…"}')
        tokens = self.tokenizer.tokenize(texts)
        return tokens if isinstance(text, list) else tokens[0]

    def _read_text(self, request: Request) -> Any:
        """A string, or what stands in its place: a list, or what is none."""
        if not request.is_json:
            return request.text(wanted=FORM)
        value = request.field("text", wanted=FORM, max_values=self.limits["json_values"])
        return value.text(wanted=FORM) if isinstance(value, Request) else value

    def make_examples(self, count: int) -> list[Tokens]:
        words = self._read_text(Request(content=self.example)).split() * (1 + self.token_lengths[-1] // 8)
        samples = self.tokenizer.tokenize([" ".join(words[shift:]) for shift in range(count)])
        # Evenly over the lengths, each a little shorter than a row, so that neighbours or padding are beside.
        steps = [step * (len(self.token_lengths) - 1) // max(1, count - 1) for step in range(count)]
        lengths = [self.token_lengths[step] - self.token_lengths[0] * 3 // 8 for step in steps]
        lengths[0] = max(2, self.token_lengths[0] * 3 // 8)
        return [sample.cut(length) for sample, length in zip(samples, lengths, strict=True)]

    def measure(self, sample: Tokens) -> int:
        return len(sample.ids)

    def collate_rows(self, rows: Sequence[Sequence[Tokens]], *, length: int) -> tuple[torch.Tensor, ...]:
        """As packing.pack_rows says, or token ids and attention mask, int64 (N, length) each."""
        if self.packed:
            texts = [[sample.ids for sample in row] for row in rows]
            first_position = int(self.definition.model["packing"]["first_position"])
            return pack_rows(texts, width=length, padding_id=self.padding_id, first_position=first_position)
        ids = np.full((len(rows), length), self.padding_id, dtype=np.int64)
        mask = np.zeros((len(rows), length), dtype=np.int64)
        for number, (sample,) in enumerate(rows):
            ids[number, : len(sample.ids)] = sample.ids
            mask[number, : len(sample.ids)] = 1
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def answer_alone(self, model: torch.nn.Module, sample: Tokens) -> torch.Tensor:
        return answer_alone(model.model, sample.ids)

    def encode(self, output: torch.Tensor, sample: Tokens) -> dict[str, Any]:
        answer = self._name(dict(zip(self.labels, self.score(output).tolist(), strict=True)))
        cut = sample.describe_cut()
        return {**answer, "truncated": cut} if cut else answer

    def _name(self, scores: dict[str, float]) -> dict[str, Any]:
        if self.activation == NONE:
            return {"scores": scores}
        if self.activation == SIGMOID:
            return {"labels": [one for one, p in scores.items() if p >= YES], "probabilities": scores}
        return {"label": max(scores, key=scores.__getitem__), "probabilities": scores}
