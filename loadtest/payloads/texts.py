"""Texts that read like opinions, of so many words or of so many tokens by an archive's own tokenizer."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from loadtest.errors import LoadTestError

MEDIAN_TOKENS, SIGMA = 24, 0.8
LEAST_TOKENS = 3
"""A first and a last special token, and one piece of text."""
MOST_TOKENS = 512
"""What BERT takes."""
TRIES = 100
TOKENIZER = "tokenizer.json"

SUBJECTS = (
    "the room", "our waiter", "this film", "the second chapter", "the battery", "my new phone",
    "the late train", "the garden", "breakfast", "all their music", "a famous old city", "that story",
)  # fmt: skip
VERBS = ("was", "felt", "turned out", "seemed", "remained", "had been", "looked", "became")
JUDGEMENTS = (
    "far better than we had hoped", "a little too loud for me", "worth every single penny",
    "rather slow on busy days", "hard to recommend to anyone", "surprisingly quiet and clean",
    "exactly what the poster promised", "broken again", "beautiful", "unfortunately disappointing",
)  # fmt: skip
JOINERS = ("and", "but", "although", "because", "while", "so", "even though", "and then")

CountTokens = Callable[[str], int]


def write_words(chance: random.Random) -> Iterator[str]:
    """The words of opinions without end, from anywhere in the first one on."""
    for part in itertools.cycle((SUBJECTS, VERBS, JUDGEMENTS, JOINERS)):
        yield from chance.choice(part).split()


def write_sentence(words: int, chance: random.Random) -> str:
    """Of so many words."""
    text = " ".join(itertools.islice(write_words(chance), words))
    return f"{text[:1].upper()}{text[1:]}."


def holds_tokenizer(archive: Path) -> bool:
    """Whether its model reads texts."""
    with zipfile.ZipFile(archive) as packed:
        return TOKENIZER in packed.namelist()


def read_token_counter(archive: Path) -> CountTokens:
    """Counts a text's tokens as the archive's model sees them, special tokens included."""
    from tokenizers import Tokenizer

    try:
        with zipfile.ZipFile(archive) as packed:
            tokenizer = Tokenizer.from_str(packed.read(TOKENIZER).decode("utf-8"))
    except (OSError, KeyError, zipfile.BadZipFile) as problem:
        raise LoadTestError(f"{archive}: no {TOKENIZER} to count tokens with: {problem}") from problem
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


def write_exactly(tokens: int, count_tokens: CountTokens, chance: random.Random) -> str:
    """A text with exactly so many tokens."""
    for _ in range(TRIES):
        text = _write_about(tokens, count_tokens, chance)
        if count_tokens(text) == tokens:
            return text
    raise LoadTestError(
        f"no text of exactly {tokens} tokens found in {TRIES} tries; the tokenizer has few whole words"
    )


def _write_about(tokens: int, count_tokens: CountTokens, chance: random.Random) -> str:
    """Add as many words as tokens are missing, take off what is too much, until nothing is missing."""
    more = itertools.islice(write_words(chance), chance.randrange(8), None)
    words = [next(more)]
    while (missing := tokens - count_tokens(" ".join(words))) > 0:
        words += itertools.islice(more, max(1, missing // 2))
    while len(words) > 1 and count_tokens(" ".join(words)) > tokens:
        words.pop()
    return " ".join(words)
