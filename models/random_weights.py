"""Seeded random weights that behave like a trained network's, so that speed and precision can be validated.

A freshly initialised deep network gives every input one answer, and rounding changes it at random. Here the
batch norms take the statistics of synthetic images, residual branches are damped, and the last layer
tells families of synthetic inputs apart by their mean features, as a trained head would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from handlers.shared.images import decode_image
from handlers.shared.preprocessing import FastPreprocessing, ImageSize
from models.synthetic import FAMILIES, encode_member

SEED = 0
MEMBERS = 3
"""Inputs of each family from which the head learns; 6 took twice as long and made it no surer (measured)."""
ROWS = 8
"""Images of one run: with 16 the allocator gives memory back and fetches it anew, a quarter of the time."""
RESIDUAL_GAIN = 0.1
"""Scale of each residual branch. At 1 the network is chaotic: BF16's rounding changes 5 of 8 answers; at 0.1
none, as with trained weights (measured)."""
MEAN, DEVIATION = 118, 58
"""ImageNet's, over all channels, in 8-bit levels."""
MARGIN = 8.0
"""Logits between one family and the next on average; a trained ResNet-50 is about as sure of its answer."""
OTHER_BIAS = -4.0
"""Logit of classes that no family has."""


def make_random_classifier(build: Callable[[], torch.nn.Module], *, size: ImageSize) -> torch.nn.Module:
    """The eager model that `build` makes, in eval mode; the same bytes for the same torch build and seed."""
    torch.manual_seed(SEED)
    model = build()
    _damp_residual_branches(model)
    with torch.no_grad():
        _calibrate_batch_norms(model, _make_batch(size, member=0))
        batches = [_make_batch(size, member=member) for member in range(MEMBERS)]
        head = find_head(model)
        runs = [rows for batch in batches for rows in batch.split(ROWS)]
        features = capture_features(head, lambda: [model(rows) for rows in runs])
    fit_head(head, features, list(range(FAMILIES)) * MEMBERS)
    return model


def _make_batch(size: ImageSize, *, member: int) -> torch.Tensor:
    """One image of each family as the handler decodes it, float32 (FAMILIES, 3, crop, crop), normalised."""
    preprocessing = FastPreprocessing(size, mean=[MEAN / 255] * 3, std=[DEVIATION / 255] * 3)
    images = [decode_image(encode_member(family, member), preprocessing) for family in range(FAMILIES)]
    return preprocessing.pack(images).contiguous()


def _damp_residual_branches(model: torch.nn.Module) -> None:
    for block in model.modules():
        # The last batch norm of torchvision's Bottleneck is bn3, of its BasicBlock bn2.
        if hasattr(block, "downsample") and hasattr(block, "bn2"):
            torch.nn.init.constant_(getattr(block, "bn3", block.bn2).weight, RESIDUAL_GAIN)


def _calibrate_batch_norms(model: torch.nn.Module, images: torch.Tensor) -> None:
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    model.eval()
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    model(images)
    for norm in norms:
        norm.eval()
        norm.momentum = 0.1
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(_round(norm.running_mean))
        norm.running_var.copy_(_round(norm.running_var))


def find_head(model: torch.nn.Module) -> torch.nn.Linear:
    """The last linear layer, which tells the classes apart."""
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]


def capture_features(head: torch.nn.Linear, run: Callable[[], object]) -> torch.Tensor:
    """What the last layer is given while `run` runs, float32 (inputs, features)."""
    seen: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].detach()))
    try:
        run()
    finally:
        hook.remove()
    return torch.cat(seen)


def fit_head(head: torch.nn.Linear, features: torch.Tensor, families: Sequence[int]) -> None:
    """Set a linear layer to the nearest family mean; families sit on classes spread over its outputs.

    A layer with fewer outputs than there are families learns as many families as it can name.
    """
    labels = torch.tensor(families)
    count = min(int(labels.max()) + 1, head.out_features)
    means = torch.stack([features[labels == family].mean(dim=0) for family in range(count)])
    centre = means.mean(dim=0)
    directions = means - centre
    scale = MARGIN / float(directions.square().sum(dim=1).mean())
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(OTHER_BIAS)
        for family, direction in enumerate(directions):
            index = family * (head.out_features // count)
            head.weight[index] = _round(scale * direction)
            offset = scale * (direction @ centre + 0.5 * direction @ direction)
            head.bias[index] = -_round(offset)


def _round(values: torch.Tensor) -> torch.Tensor:
    """To BF16's three digits, so that the last bits of another CPU's sums do not change the archive."""
    return values.bfloat16().float()
