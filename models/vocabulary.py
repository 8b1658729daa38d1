"""A stand-in for BERT-base-uncased's vocabulary where it cannot be downloaded: same size, same special ids.

Pieces are counted in the source text of the installed transformers package, which is English enough and
pinned. Token counts of English texts are close to the real vocabulary's, token ids are not: with random
weights that changes nothing, with trained weights it would be wrong, so it is never packed with those.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

from tokenizers import BertWordPieceTokenizer

SIZE = 30_522
"""Entries of BERT-base-uncased's vocabulary."""
SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
RESERVED = 999
"""Ids below are special or unused, as in BERT's own vocabulary."""
WORDS = 20_000
LONGEST_SUFFIX = 6
NOTE = "the tokenizer is a stand-in of BERT-base-uncased's size, not its vocabulary"


def make_tokenizer() -> BertWordPieceTokenizer:
    """An uncased WordPiece tokenizer over the stand-in vocabulary."""
    vocabulary = {piece: index for index, piece in enumerate(make_vocabulary(_count_words()))}
    return BertWordPieceTokenizer(vocabulary, lowercase=True)


def make_vocabulary(words: Counter[str]) -> list[str]:
    """SIZE different pieces: reserved ids, characters, frequent words, then frequent word endings."""
    pieces = [SPECIAL.get(index, f"[unused{index}]") for index in range(RESERVED)]
    characters = [chr(code) for code in (*range(33, 127), *range(161, 592)) if chr(code).lower() == chr(code)]
    pieces += characters + [f"##{character}" for character in characters]
    known = set(pieces)
    frequent = [word for word in _by_frequency(words) if word not in known][:WORDS]
    endings = [piece for piece in _by_frequency(_count_endings(words)) if piece not in known]
    pieces += frequent + endings
    if len(pieces) < SIZE:
        raise ValueError(f"the corpus gives {len(pieces)} pieces, {SIZE} are needed")
    return pieces[:SIZE]


def _count_words() -> Counter[str]:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    words: Counter[str] = Counter()
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        words.update(re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower()))
    return words


def _count_endings(words: Counter[str]) -> Counter[str]:
    endings: Counter[str] = Counter()
    for word, count in words.items():
        for length in range(2, min(LONGEST_SUFFIX, len(word) - 1) + 1):
            endings[f"##{word[-length:]}"] += count
    return endings


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))
