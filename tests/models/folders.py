"""Tiny Hugging Face folders of many kinds, made by transformers in a fraction of a second each."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

WORDS = ["the", "and", "was", "good", "bad", "nice", "awful", "room", "staff", "clean", "dirty", "food"]
WORDS += ["cold", "no"]
CHARACTERS = [chr(code) for code in range(33, 127) if chr(code).lower() == chr(code)]
TEXTS = [
    "the staff was nice and the room clean",
    "Awful, COLD food; a dirty room!",
    "no",
    "good [SEP] bad <pad> nice </s> awful",
    " ".join(["good"] * 700 + ["awful"] * 700),  # its ends say different things
]
WITHOUT_TYPES = ["input_ids", "attention_mask"]
SIZES = {"num_attention_heads": 4, "num_hidden_layers": 2}


def list_pieces(specials: list[str]) -> dict[str, int]:
    pieces = [*specials, *CHARACTERS, *("##" + one for one in CHARACTERS), *WORDS]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def make_bert_tokenizer(folder: Path, **options) -> BertTokenizerFast:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(list_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])))
    options = {"do_lower_case": True, "model_max_length": 512, **options}
    return BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), **options)


def make_roberta_tokenizer(**options) -> PreTrainedTokenizerFast:
    pieces = list_pieces(["<s>", "<pad>", "</s>", "<unk>"])
    raw = Tokenizer(models.WordPiece(pieces, unk_token="<unk>", continuing_subword_prefix="##"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, pieces[token]) for token in ("<s>", "</s>")]
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=512, **names, **options)


def enliven(model: torch.nn.Module) -> torch.nn.Module:
    """Answers that differ from text to text."""
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("weight") and value.dim() == 2:
                value.copy_(
                    torch.randn(value.shape, generator=chance) * (0.5 if "embeddings" in name else 0.15)
                )
            if name.startswith(("classifier", "score")) and name.endswith("weight"):
                value.copy_(torch.randn(value.shape, generator=chance) * 0.3)
    return model.eval()


def save(folder: Path, model: torch.nn.Module, tokenizer, **save_options) -> Path:
    model.save_pretrained(folder, **save_options)
    tokenizer.save_pretrained(folder)
    return folder


def name_labels(labels: list[str]) -> dict:
    return {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}


def make_bert(folder: Path, labels: list[str] = ("negative", "positive"), tokenizer=None, **options) -> Path:
    tokenizer = tokenizer or make_bert_tokenizer(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 512, **SIZES}
    config = BertConfig(vocab_size=len(tokenizer), **sizes | options, **name_labels(list(labels)))
    return save(folder, enliven(BertForSequenceClassification(config)), tokenizer)


def make_roberta(folder: Path, **options) -> Path:
    """With RobertaConfig's own max_position_embeddings, 512: 510 tokens fit."""
    tokenizer = make_roberta_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, **SIZES}
    config = RobertaConfig(vocab_size=len(tokenizer), **sizes | options, **name_labels(["no", "yes"]))
    return save(folder, enliven(RobertaForSequenceClassification(config)), tokenizer)


def make_distilbert(folder: Path) -> Path:
    tokenizer = make_bert_tokenizer(folder, model_input_names=WITHOUT_TYPES)
    config = DistilBertConfig(
        vocab_size=len(tokenizer), dim=32, hidden_dim=64, n_heads=4, n_layers=2, **name_labels(["no", "yes"])
    )
    return save(folder, enliven(DistilBertForSequenceClassification(config)), tokenizer)


def make_gpt2(folder: Path, **options) -> Path:
    tokenizer = make_roberta_tokenizer(model_input_names=WITHOUT_TYPES)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=32, n_head=4, n_layer=2, n_positions=512,
        **{"pad_token_id": tokenizer.pad_token_id, **options}, **name_labels(["no", "yes"]),
    )  # fmt: skip
    return save(folder, enliven(GPT2ForSequenceClassification(config)), tokenizer)


def edit(file: Path, **fields) -> None:
    """Fields of a JSON file written anew; None takes one out."""
    raw = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
