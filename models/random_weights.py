"""Seeded random weights for a torchvision classifier that behave like a trained network's.

A freshly initialised deep network lets its activations explode or vanish, so that every image gets one
answer and no precision can be judged. Here the batch norms take the statistics of a synthetic batch
and the last layer is scaled, so that answers differ between images as a trained network's do.
"""

from __future__ import annotations

import numpy as np
import torch
from torchvision.models import get_model

from models.canary import draw_image

SEED = 0
BATCH = 16
LOGIT_DEVIATION = 3.0
"""Standard deviation of the logits over classes; about that of an ImageNet-trained ResNet-50."""
RESIDUAL_GAIN = 0.1
"""Scale of each residual branch. At 1 the network is chaotic: BF16's rounding moves the logits by 47 % and
changes 5 of 8 answers; at 0.1 it is 2.5 % and none, as with trained weights (measured)."""


def make_random_classifier(architecture: str, classes: int, *, crop: int) -> torch.nn.Module:
    """The eager model in eval mode; the same bytes for the same torch build and seed."""
    torch.manual_seed(SEED)
    model = get_model(architecture, weights=None, num_classes=classes)
    images = _make_batch(crop)
    _damp_residual_branches(model)
    with torch.no_grad():
        _calibrate_batch_norms(model, images)
        _spread_logits(model.eval(), images)
    return model


def _make_batch(crop: int) -> torch.Tensor:
    """Synthetic pictures, float32 (BATCH, 3, crop, crop), roughly normalised."""
    pictures = [np.asarray(draw_image(crop, crop, seed=seed), dtype=np.float32) for seed in range(BATCH)]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).sub(118).div(58)


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
        norm.momentum = 0.1
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(_round(norm.running_mean))
        norm.running_var.copy_(_round(norm.running_var))


def _spread_logits(model: torch.nn.Module, images: torch.Tensor) -> None:
    last = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    logits = model(images)
    # Centred per class first: what all images share says nothing about any of them.
    spread = float((logits - logits.mean(dim=0)).std())
    last.weight.mul_(_round(torch.tensor(LOGIT_DEVIATION / spread)))
    last.bias.zero_()
    last.bias.sub_(_round(model(images).mean(dim=0)))


def _round(values: torch.Tensor) -> torch.Tensor:
    """To BF16's three digits, so that the last bits of another CPU's sums do not change the archive."""
    return values.bfloat16().float()
