"""Tokenises texts for a BERT-style model with the tokenizer packed in the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from handlers.shared.errors import RequestError

CHARACTERS_PER_TOKEN = 100
"""Read at most this much text for each token that can be used: 2 MB of words took 3 s and 600 MB."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One text as token ids, special tokens included, cut to what the model takes."""

    ids: tuple[int, ...]
    total: int
    """How many tokens the text that was read has; more than len(ids) when it was cut."""
    characters: int
    """Length of the whole text."""
    characters_read: int
    """How much of it was tokenised."""

    def describe_cut(self) -> dict[str, int]:
        """What an answer must say of a text that was cut; nothing when all of it was used."""
        if self.total == len(self.ids) and self.characters == self.characters_read:
            return {}
        return {
            "tokens": self.total,
            "tokens_used": len(self.ids),
            "characters": self.characters,
            "characters_read": self.characters_read,
        }

    def cut(self, length: int) -> Tokens:
        """At most `length` tokens, the closing special token kept."""
        if len(self.ids) <= length:
            return self
        return replace(self, ids=(*self.ids[: length - 1], self.ids[-1]))


class TextTokenizer:
    """A Hugging Face `tokenizer.json`, cutting at `max_tokens`."""

    def __init__(self, path: Path, *, max_tokens: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self._max_characters = CHARACTERS_PER_TOKEN * max_tokens

    def check(self, text: str) -> None:
        """RequestError for what is not valid Unicode: one such text would fail a whole batch of requests."""
        try:
            text[: self._max_characters].encode()
        except UnicodeEncodeError as error:
            # JSON can hold half of a surrogate pair (\ud800), which is no character.
            raise RequestError("the text holds characters that are not valid Unicode") from error

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Token ids of each text, in order."""
        read = [text[: self._max_characters] for text in texts]
        encodings = self._tokenizer.encode_batch(read, add_special_tokens=True)
        return [
            Tokens(
                ids=tuple(one.ids),
                total=len(one.ids) + sum(_own(part) for part in one.overflowing),
                characters=len(text),
                characters_read=len(cut),
            )
            for one, text, cut in zip(encodings, texts, read, strict=True)
        ]


def _own(part: Encoding) -> int:
    """Tokens of an overflowing part without its special tokens."""
    return len(part.ids) - sum(part.special_tokens_mask)
