"""What model.yaml may say to each shipped handler (`options`), and its defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator

Sides = PositiveInt | tuple[PositiveInt, PositiveInt]
"""Pixels of both sides, or of height and width."""
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
"""As transformers names them, and handlers/shared/outputs.py."""
Level = Annotated[float, Field(ge=0, le=1)]


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Size(_Options):
    """How an image is brought to the model's size."""

    resize: Sides
    """One number: the shorter side; two: both sides, whatever the image's shape."""
    crop: Sides | None = None
    """Of the middle; by default all of it."""

    @model_validator(mode="after")
    def _fit(self) -> Size:
        if self.crop is None and isinstance(self.resize, int):
            raise ValueError(
                f"there must be a crop beside resize: {self.resize}, the shorter side; or resize: "
                f"[{self.resize}, {self.resize}], which resizes both sides, whatever the image's shape"
            )
        least, sides = ([one] * 2 if isinstance(one, int) else one for one in (self.resize, self.crop or 1))
        if any(side > most for side, most in zip(sides, least, strict=True)):
            raise ValueError(f"crop must be at most resize, {self.resize}")
        return self


class ImageOptions(_Options):
    """Of image_classifier. What is not said of preprocessing is as `preset`'s weights.transforms() has it."""

    top_k: PositiveInt = 5
    """Labels in an answer."""
    preprocess: Literal["fast", "reference"] = "fast"
    """`reference`: torchvision's pixels bit for bit, 2 ms more an image."""
    preset: str = ""
    """A weights name of torchvision's whose preprocessing is taken; by default that of `weights`, else the
    architecture's default."""
    size: Size | None = None
    """resize and crop; by default the preset's, as the following."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """bilinear or bicubic."""
    antialias: bool | None = None
    """Of the resize."""
    mean: tuple[Level, Level, Level] | None = None
    """Of red, green, blue, in levels from 0 to 1."""
    std: tuple[Level, Level, Level] | None = None
    """As `mean`."""
    problem_type: ProblemType | None = None
    """By default one class of several; with one output, yes or no."""

    @field_validator("std")
    @classmethod
    def _divide(cls, std: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if std and min(std) == 0:
            raise ValueError("must be above 0")
        return std


class TextOptions(_Options):
    """Of all handlers of text."""

    token_lengths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (
        *(16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
    )
    """Widths of rows, ascending; longer texts are cut. Each step is at most half as wide again."""
    row_tokens: PositiveInt = 128
    """Texts are packed into rows of this width. 2 × 128 reached 60.5 mixed texts/s (BERT-base, INT8, one
    core), 1 × 256 59.3, 1 × 512 52.6."""
    tokens_per_run: PositiveInt = 256
    """Rows × width of one run. With 256 tokens a core reaches 98 % of its best rate (BERT-base, BF16 and
    INT8), and each shape costs load time."""
    max_texts_per_request: PositiveInt = 8
    """More is a 400. 8 such requests in a batch, all of 512 tokens, take a minute of a core in FP32
    (BERT-base)."""
    attention: Literal["eager", "sdpa"] = "eager"
    """transformers' implementation; `eager` is the pattern that IPEX fuses (ipex::mha_scores_calc)."""

    @model_validator(mode="after")
    def _fit(self) -> TextOptions:
        lengths, row = self.token_lengths, self.row_tokens
        if list(lengths) != sorted(set(lengths)):
            raise ValueError(f"token_lengths must ascend: got {list(lengths)}")
        if row not in lengths or row > self.tokens_per_run:
            raise ValueError(
                f"row_tokens must be one of token_lengths, {list(lengths)}, and at most tokens_per_run, "
                f"{self.tokens_per_run}: got {row}"
            )
        return self


class SequenceOptions(TextOptions):
    """Of text_classifier."""

    pairs: bool | None = None
    """Whether requests hold text and text_pair; by default as the folder's config has it."""


class EmbeddingOptions(TextOptions):
    """Of text_embeddings; by default as the folder's sentence-transformers files have it."""

    pooling: Literal["mean", "cls"] | None = None
    """Of the tokens' vectors."""
    normalize: bool | None = None
    """To length 1."""


OPTIONS: dict[str, type[_Options]] = {
    "image_classifier": ImageOptions,
    "text_classifier": SequenceOptions,
    "text_embeddings": EmbeddingOptions,
    "token_classifier": TextOptions,
}
"""Shipped handler → what its section may hold."""
