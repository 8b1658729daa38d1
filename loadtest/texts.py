"""English-like texts with given numbers of tokens, counted with the tokenizer that an archive holds."""

from __future__ import annotations

import math
import random
import statistics
import zipfile
from collections.abc import Callable
from pathlib import Path

from loadtest.errors import LoadTestError

MEDIAN_TOKENS = 24
SIGMA = 0.8
LEAST_TOKENS = 3
"""A first and a last special token, and one piece of text."""
MOST_TOKENS = 512
"""What BERT takes."""
TRIES = 100

WORDS = tuple(
    """
    the a of and to in is was that it for on with as at by this from they were which but had not have
    one all their when there her his been more two out into than other some time only new could these
    people film story room hotel service music book year day night city house food water work place
    good great small old long young bright quiet slow strange warm friendly careful empty famous
    went came made found took gave said thought felt knew began left asked showed watched waited opened
    very really almost never always again however although perhaps quickly together because through
    restaurant performance afternoon conversation beautiful disappointing breakfast neighbourhood
    extraordinary unfortunately photographer atmosphere television university unforgettable
    """.split()  # noqa: SIM905 - a list a line would hide the words
)

CountTokens = Callable[[str], int]


def read_token_counter(archive: Path) -> CountTokens:
    """Counts a text's tokens as the archive's model sees them, special tokens included."""
    from tokenizers import Tokenizer

    try:
        with zipfile.ZipFile(archive) as packed:
            tokenizer = Tokenizer.from_str(packed.read("tokenizer.json").decode("utf-8"))
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise LoadTestError(f"{archive}: no tokenizer.json to count tokens with: {problem}") from problem
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


def draw_lengths(count: int, *, seed: int, median: int = MEDIAN_TOKENS, sigma: float = SIGMA) -> list[int]:
    """Log-normal numbers of tokens in random order, within what a model takes.

    One draw from each of `count` equally likely slices: the mix is the same in every small part of a run.
    """
    chance, normal = random.Random(seed), statistics.NormalDist()
    shares = [(slice_ + chance.uniform(0.001, 0.999)) / count for slice_ in range(count)]
    lengths = [round(median * math.exp(sigma * normal.inv_cdf(share))) for share in shares]
    chance.shuffle(lengths)
    return [min(max(length, LEAST_TOKENS), MOST_TOKENS) for length in lengths]


def write_text(tokens: int, count_tokens: CountTokens, *, chance: random.Random) -> str:
    """A text with exactly so many tokens."""
    for _ in range(TRIES):
        words = _grow(tokens, count_tokens, chance)
        if count_tokens(" ".join(words)) == tokens:
            return " ".join(words)
    raise LoadTestError(
        f"no text of exactly {tokens} tokens found in {TRIES} tries; the tokenizer has few whole words"
    )


def _grow(tokens: int, count_tokens: CountTokens, chance: random.Random) -> list[str]:
    """Add as many words as tokens are missing, take off what is too much, until nothing is missing."""
    words: list[str] = [chance.choice(WORDS)]
    while (missing := tokens - count_tokens(" ".join(words))) > 0:
        words += chance.choices(WORDS, k=max(1, missing // 2))
    while len(words) > 1 and count_tokens(" ".join(words)) > tokens:
        words.pop()
    return words


def write_mixed_texts(count: int, count_tokens: CountTokens, *, seed: int) -> list[str]:
    """Texts of log-normal length."""
    chance = random.Random(seed)
    return [write_text(length, count_tokens, chance=chance) for length in draw_lengths(count, seed=seed)]


def write_equal_texts(count: int, tokens: int, count_tokens: CountTokens, *, seed: int) -> list[str]:
    """Different texts of one length."""
    chance = random.Random(seed)
    return [write_text(tokens, count_tokens, chance=chance) for _ in range(count)]
