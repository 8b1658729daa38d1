"""Reads texts and pairs of texts from requests, and tokenises them with the archive's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from handlers.request import Request
from handlers.shared.errors import BadRequest

FORM = (
    '{"text": "…"}, {"text": ["…", "…"]} or the text itself in UTF-8 (a text that looks like JSON with '
    "Content-Type: text/plain)"
)
PAIRS = f'{{"text": "…", "text_pair": "…"}}, or lists of both; {FORM}'
CHARACTERS_PER_TOKEN = 20
"""Read at most this much text for each token that can be used: four times what a word takes. Tokenising costs
up to 2.2 µs a character (words of 99 letters; measured), so 8 texts cost 0.2 s at most."""
Text = str | tuple[str, str]
"""One, or a pair that has one answer."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One text or pair as token ids, special tokens included, cut to what the model takes."""

    ids: tuple[int, ...]
    total: int
    """How many tokens the text that was read has; more than len(ids) when it was cut."""
    characters: int
    """Length of the whole text."""
    characters_read: int
    """How much of it was tokenised."""
    types: tuple[int, ...] = ()
    """Each token's type, 1 in the second text of a pair; only where the tokenizer was asked for them."""
    offsets: tuple[tuple[int, int] | None, ...] = ()
    """Where each token begins and ends in `text`, None for special ones; only where asked for."""
    text: str = ""
    """What was tokenised, where offsets were asked for."""
    skipped: int = 0
    """Characters of the whole text before it."""

    def describe_cut(self) -> dict[str, dict[str, int]]:
        """What an answer must say of a text that was cut; nothing when all of it was used."""
        if self.total == len(self.ids) and self.characters == self.characters_read:
            return {}
        tokens = {"tokens": self.total, "tokens_used": len(self.ids)}
        characters = {"characters": self.characters, "characters_read": self.characters_read}
        return {"truncated": {**tokens, **characters}}

    def cut(self, length: int, *, tail: int = 1) -> Tokens:
        """At most `length` tokens, the last `tail` of them kept, with the closing special token."""
        if len(self.ids) <= length:
            return self
        return self.pick([*range(length - tail), *range(len(self.ids) - tail, len(self.ids))])

    def pick(self, kept: Sequence[int]) -> Tokens:
        """Only the tokens at these places."""
        return replace(
            self,
            ids=tuple(self.ids[place] for place in kept),
            types=tuple(self.types[place] for place in kept if self.types),
            offsets=tuple(self.offsets[place] for place in kept if self.offsets),
        )


def read_texts(request: Request, *, pairs: bool, most: int, max_values: int) -> tuple[Sequence[Text], bool]:
    """1 to `most` texts, or pairs where the model takes them, and whether they came as a list."""
    wanted = PAIRS if pairs else FORM
    fields: list[Any] = [request]
    if request.is_json:
        text, pair = request.fields("text", optional=["text_pair"], wanted=wanted, max_values=max_values)
        fields = [text] if pair is None else [text, pair]
    if len(fields) > 1 and not pairs:
        raise BadRequest(400, f'this model takes single texts, and no "text_pair"; send {wanted}')
    values = [one.text(wanted=wanted) if isinstance(one, Request) else one for one in fields]
    lists = [value if isinstance(value, list) else [value] for value in values]
    many = isinstance(values[0], list)
    if any(isinstance(value, list) != many for value in values) or len({*map(len, lists)}) > 1:
        raise BadRequest(400, f'"text" and "text_pair" must be two texts, or lists as long; send {wanted}')
    if not 0 < len(lists[0]) <= most:
        raise BadRequest(400, f'"text" must hold 1 to {most} texts: got {len(lists[0])}')
    if not all(isinstance(text, str) and text.strip() for texts in lists for text in texts):
        raise BadRequest(400, 'each text must be a non-empty string; send {"text": "…"}')
    return (lists[0] if len(lists) == 1 else [*zip(*lists, strict=True)]), many


class TextTokenizer:
    """A Hugging Face `tokenizer.json`, cutting at `max_tokens`; a pair as transformers' `longest_first`.

    `truncation_side`, `right` or `left`, is the end that is cut off; with `split_special_tokens` a text that
    spells a special token is read as text. transformers keeps both in tokenizer_config.json.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_tokens: int,
        truncation_side: str,
        split_special_tokens: bool,
        token_types: bool = False,
        offsets: bool = False,
    ) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        # Its own would also make all that is cut off, of a pair each part with each: seconds of a core.
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = split_special_tokens
        self._max_tokens = max_tokens
        self._max_characters = CHARACTERS_PER_TOKEN * max_tokens
        self._from_end = truncation_side == "left"
        self._token_types, self._offsets = token_types, offsets

    def tokenize(self, texts: Sequence[Text]) -> list[Tokens]:
        """Token ids of each text or pair, in order; BadRequest where one is not valid Unicode."""
        whole = [text if isinstance(text, tuple) else (text,) for text in texts]
        read = [self._trim(parts) for parts in whole]
        try:
            "".join("".join(parts) for parts in read).encode()
        except UnicodeEncodeError as error:
            # JSON can hold half of a surrogate pair (\ud800), and the tokenizer raises for it.
            raise BadRequest(400, "the text holds characters that are not valid Unicode") from error
        encodings = self._tokenizer.encode_batch(
            [tuple(parts) if len(parts) > 1 else parts[0] for parts in read], add_special_tokens=True
        )
        return [self._make(*one) for one in zip(encodings, whole, read, strict=True)]

    def _trim(self, parts: Sequence[str]) -> list[str]:
        most = self._max_characters
        return [part[-most:] if self._from_end else part[:most] for part in parts]

    def _make(self, encoding: Encoding, whole: Sequence[str], read: Sequence[str]) -> Tokens:
        tokens = Tokens(
            ids=tuple(encoding.ids),
            total=len(encoding.ids),
            characters=sum(map(len, whole)),
            characters_read=sum(map(len, read)),
            types=tuple(encoding.type_ids) if self._token_types else (),
        )
        if self._offsets:
            marked = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
            offsets = tuple(None if special else offset for offset, special in marked)
            skipped = len(whole[0]) - len(read[0]) if self._from_end else 0
            tokens = replace(tokens, offsets=offsets, text=read[0], skipped=skipped)
        return tokens if tokens.total <= self._max_tokens else tokens.pick(self._choose_kept(encoding))

    def _choose_kept(self, encoding: Encoding) -> list[int]:
        """Places of the special tokens, and of as many of each text as there is room for."""
        marked = zip(encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
        texts = [None if special else text or 0 for text, special in marked]
        first, second, kept = (
            [place for place, text in enumerate(texts) if text == wanted] for wanted in (0, 1, None)
        )
        shares = share_room(len(first), len(second), self._max_tokens - len(kept))
        for places, share in zip((first, second), shares, strict=True):
            kept += places[len(places) - share :] if self._from_end else places[:share]
        return sorted(kept)


def share_room(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens are kept of two texts too long together: the longer one is cut until both are as long
    (transformers' `longest_first`)."""
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)
