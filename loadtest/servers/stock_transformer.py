"""The handler of TorchServe's BERT example, packed into a baseline's archive; the kit does not import it.

What examples/Huggingface_Transformers/Transformer_handler_generalized.py of TorchServe 0.12 does for sequence
classification with its own setup_config.json: every text is padded or cut to 150 tokens, eager FP32, one
forward pass a batch. Only the answer's form is the kit's, so that answers can be compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast
from ts.torch_handler.base_handler import BaseHandler

MAX_LENGTH = 150


class TransformerHandler(BaseHandler):
    """Texts in, label and probabilities out."""

    def initialize(self, context: Any) -> None:
        folder = Path(context.system_properties["model_dir"])
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.labels = json.loads((folder / "definition.json").read_text(encoding="utf-8"))["labels"]
        # The example's AutoTokenizer makes the same of a folder that has a tokenizer_config.json too.
        file = str(folder / "tokenizer.json")
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, pad_token="[PAD]")
        self.initialized = True

    def preprocess(self, requests: list[dict[str, Any]]) -> Any:
        texts = []
        for request in requests:
            text = request.get("data") or request.get("body")
            if isinstance(text, dict):  # TorchServe parses JSON, the form in which the kit is asked
                text = text["text"]
            texts.append(text.decode("utf-8") if isinstance(text, (bytes, bytearray)) else text)
        padded = {"padding": "max_length", "truncation": True, "max_length": MAX_LENGTH}
        return self.tokenizer(texts, return_tensors="pt", **padded)

    def inference(self, inputs: Any) -> torch.Tensor:
        with torch.no_grad():
            return self.model(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits

    def postprocess(self, logits: torch.Tensor) -> list[dict[str, Any]]:
        rows = torch.softmax(logits, dim=1).tolist()
        answers = [dict(zip(self.labels, row, strict=True)) for row in rows]
        return [{"label": max(one, key=lambda name: one[name]), "probabilities": one} for one in answers]
