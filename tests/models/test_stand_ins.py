"""Random weights and the stand-in vocabulary: the right size, decided by the seed."""

from __future__ import annotations

import torch
from torchvision.models import get_model

from handlers.shared.images import decode_image
from handlers.shared.preprocessing import FastPreprocessing, ImageSize
from models.random_weights import make_random_classifier
from models.synthetic import encode_member
from models.vocabulary import SIZE, make_tokenizer


def test_random_classifiers_answer_differently_and_survive_bf16():
    size = ImageSize(resize=72, crop=64)
    model = make_random_classifier(lambda: get_model("resnet18", num_classes=10), size=size)
    preprocessing = FastPreprocessing(size, mean=[118 / 255] * 3, std=[58 / 255] * 3)
    images = [decode_image(encode_member(family, 100), preprocessing) for family in range(8)]
    images = preprocessing.pack(images)
    with torch.no_grad():
        exact = model(images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = model(images).float()
    assert len(set(exact.argmax(1).tolist())) > 4
    assert (exact.argmax(1) == rounded.argmax(1)).all()


def test_the_stand_in_tokenizer_cuts_english_into_few_pieces():
    tokenizer = make_tokenizer()
    assert tokenizer.get_vocab_size() == SIZE
    encoded = tokenizer.encode("The staff were kind and the breakfast was excellent, Ünïcödé too.")
    assert encoded.tokens[0] == "[CLS]"
    assert encoded.tokens[-1] == "[SEP]"
    assert "[UNK]" not in encoded.tokens
    assert len(encoded.tokens) < 40
