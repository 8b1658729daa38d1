"""Tokenises texts for a BERT-style model with the tokenizer packed in the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One text as token ids, special tokens included, cut to what the model takes."""

    ids: tuple[int, ...]
    total: int
    """How many tokens the whole text has; more than len(ids) when it was cut."""

    def cut(self, length: int) -> Tokens:
        """At most `length` tokens, the closing special token kept."""
        if len(self.ids) <= length:
            return self
        return Tokens(ids=(*self.ids[: length - 1], self.ids[-1]), total=self.total)


class TextTokenizer:
    """A Hugging Face `tokenizer.json`, cutting at `max_tokens`."""

    def __init__(self, path: Path, *, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Token ids of each text, in order."""
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=True)
        return [
            Tokens(ids=tuple(one.ids), total=len(one.ids) + sum(_own(part) for part in one.overflowing))
            for one in encodings
        ]


def _own(part: Encoding) -> int:
    """Tokens of an overflowing part without its special tokens."""
    return len(part.ids) - sum(part.special_tokens_mask)
