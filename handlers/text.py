"""What handlers of texts share: tokens, rows of warmed lengths, packed or padded, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar

import torch

from handlers.definition import Definition
from handlers.kit_handler import KitHandler
from handlers.request import Request
from handlers.shared.options import BUCKETS, PACKING
from handlers.shared.packing import PackedRows, fill_rows, pack_rows
from handlers.shared.shapes import Layout, ShapeGrid, WholeBatch
from handlers.shared.texts import Text, TextTokenizer, Tokens, read_texts
from handlers.shared.transformer import answer_alone, read_model
from handlers.shared.work import Work, plan_token_work
from handlers.task import Inputs


class TextHandler(KitHandler):
    """Of a model of transformers that takes input_ids and attention_mask, and where `model.token_types` is
    true token types; a sample is one text's Tokens, or where `model.pairs` is true a pair's."""

    libraries = ("transformers", "tokenizers", "numpy")
    fuses = True
    # A third of TorchServe's own response time-out; tokens of BERT-base in INT8 in that time; 8 texts of 512
    # tokens as they are read, if each character were a comma.
    LIMITS: ClassVar[Mapping[str, int]] = {"batch_s": 40, "tokens_per_batch": 80_000, "json_values": 82_000}
    offsets: ClassVar[bool] = False
    """Whether `encode` needs to know where a token stands in the text."""

    def configure(self, definition: Definition, directory: Path) -> None:
        settings = definition.model
        self.token_lengths = tuple(sorted(settings["token_lengths"]))
        self.row_tokens = int(settings["row_tokens"])
        self.tokens_per_run = int(settings["tokens_per_run"])
        self.max_inputs = int(settings["max_texts_per_request"])
        self.padding_id = int(settings["padding_id"])
        self.pairs = bool(settings.get("pairs"))
        self.token_types = bool(settings.get("token_types"))
        self.tokenizer = TextTokenizer(
            directory / "tokenizer.json",
            max_tokens=self.token_lengths[-1],
            token_types=self.token_types,
            offsets=self.offsets,
            **settings["tokenizer"],
        )
        super().configure(definition, directory)

    def read_model(self, kind: str) -> torch.nn.Module:
        """transformers' `kind`, e.g. AutoModel, with the archive's weights."""
        model = read_model(kind, self.model_dir, attention=self.definition.model["attention"])
        return self.load_weights(model)

    @property
    def packing(self) -> Mapping[str, Any]:
        """What was found, and proven, when the archive was built: the `first_position` of a text in a row
        with others, or why that is `impossible`."""
        return dict(self.definition.model["packing"])

    @property
    def packed(self) -> bool:
        """Whether the model takes several texts in a row."""
        return "impossible" not in self.packing

    def choose_layout(self, off: AbstractSet[str]) -> Layout:
        if self.packed and not off & {PACKING, BUCKETS}:
            rows = self.tokens_per_run // self.row_tokens
            return PackedRows(widths=self.token_lengths, row_tokens=self.row_tokens, rows_per_run=rows)
        kind, tokens = WholeBatch if BUCKETS in off else ShapeGrid, self.tokens_per_run
        return kind(batch_sizes=self.batch_sizes, lengths=self.token_lengths, tokens_per_run=tokens)

    def describe_packing(self) -> dict[str, Any]:
        if isinstance(self.layout, PackedRows):
            return {"applicable": True, "on": True, "row_tokens": self.row_tokens}
        reason = self.packing.get("impossible", "switched off by the plan")
        return {"applicable": self.packed, "on": False, "reason": reason}

    def plan_work(self, seconds_each: float) -> Work:
        return plan_token_work(
            seconds_each,
            tokens_per_batch=self.limits["tokens_per_batch"],
            batch_s=self.limits["batch_s"],
            longest=self.token_lengths[-1],
            most_tokens=self.max_inputs * self.token_lengths[-1],
        )

    def decode(self, request: Request) -> Tokens | list[Tokens]:
        texts, many = self._read(request)
        tokens = self.tokenizer.tokenize(texts)
        return tokens if many else tokens[0]

    def _read(self, request: Request) -> tuple[Sequence[Text], bool]:
        most_values = self.limits["json_values"]
        return read_texts(request, pairs=self.pairs, most=self.max_inputs, max_values=most_values)

    def make_examples(self, count: int) -> list[Tokens]:
        (first, *_), _ = self._read(Request(content=self.example))
        words = " ".join([first] if isinstance(first, str) else first).split()
        words *= 1 + self.token_lengths[-1] // 8
        texts = [" ".join(words[shift:]) for shift in range(count)]
        samples = self.tokenizer.tokenize([(text, text) if self.pairs else text for text in texts])
        # Evenly over the lengths, each a little shorter than a row, so that neighbours or padding are beside.
        steps = [step * (len(self.token_lengths) - 1) // max(1, count - 1) for step in range(count)]
        lengths = [self.token_lengths[step] - self.token_lengths[0] * 3 // 8 for step in steps]
        lengths[0] = max(2, self.token_lengths[0] * 3 // 8)
        tails = [length // 2 if self.pairs else 1 for length in lengths]
        return [one.cut(length, tail=tail) for one, length, tail in zip(samples, lengths, tails, strict=True)]

    def measure(self, sample: Tokens) -> int:
        return len(sample.ids)

    def collate_rows(self, rows: Sequence[Sequence[Tokens]], *, length: int) -> Inputs:
        """As packing.pack_rows says, or token ids and attention mask, int64 (N, length) each; after them the
        token types, where the model takes them."""
        ids = [[sample.ids for sample in row] for row in rows]
        inputs: Inputs
        if self.packed:
            first_position = int(self.packing["first_position"])
            inputs = pack_rows(ids, width=length, padding_id=self.padding_id, first_position=first_position)
        else:
            own = [[[1] * len(text) for text in row] for row in ids]
            inputs = fill_rows(ids, width=length, value=self.padding_id), fill_rows(own, width=length)
        if self.token_types:
            types = [[sample.types for sample in row] for row in rows]
            inputs = (*inputs, fill_rows(types, width=length))
        return inputs

    def answer_alone(self, model: torch.nn.Module, sample: Tokens) -> torch.Tensor:
        """By transformers' own forward of the model within."""
        return answer_alone(model.model, sample.ids, sample.types)
