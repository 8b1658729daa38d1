"""Tokenises texts for a BERT-style model with the tokenizer packed in the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from handlers.shared.errors import BadRequest

CHARACTERS_PER_TOKEN = 20
"""Read at most this much text for each token that can be used: four times what a word takes. Tokenising costs
up to 2.2 µs a character (words of 99 letters; measured), so 8 texts cost 0.2 s at most."""


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
    """A Hugging Face `tokenizer.json`, cutting at `max_tokens`.

    `truncation_side`, `right` or `left`, is the end that is cut off; with `split_special_tokens` a text that
    spells a special token is read as text. transformers keeps both in tokenizer_config.json.
    """

    def __init__(
        self, path: Path, *, max_tokens: int, truncation_side: str, split_special_tokens: bool
    ) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens, direction=truncation_side)
        self._tokenizer.encode_special_tokens = split_special_tokens
        self._from_end = truncation_side == "left"
        self._max_characters = CHARACTERS_PER_TOKEN * max_tokens

    def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Token ids of each text, in order; BadRequest where one is not valid Unicode."""
        most = self._max_characters
        read = [text[-most:] if self._from_end else text[:most] for text in texts]
        try:
            "".join(read).encode()
        except UnicodeEncodeError as error:
            # JSON can hold half of a surrogate pair (\ud800), and the tokenizer raises for it.
            raise BadRequest(400, "the text holds characters that are not valid Unicode") from error
        encodings = self._tokenizer.encode_batch(read, add_special_tokens=True)
        return [
            Tokens(
                ids=tuple(one.ids),
                total=len(one.ids) + sum(_own(part) for part in one.overflowing),
                characters=len(text),
                characters_read=len(used),
            )
            for one, text, used in zip(encodings, texts, read, strict=True)
        ]


def _own(part: Encoding) -> int:
    """Tokens of an overflowing part without its special tokens."""
    return len(part.ids) - sum(part.special_tokens_mask)
