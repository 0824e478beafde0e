"""Per-step distances between what the draft says and what the data or the target say; all `[M, T]`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from draftc.runtime.objectives.steps import widened


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log q(label) of `logits [M, T, V]` and `labels [M, T]`."""
    return F.cross_entropy(widened(logits).flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


def acceptance(logits: Tensor, teacher: Tensor) -> Tensor:
    """The probability that rejection sampling accepts a draw of the draft: Σ min(p, q), which is 1 - TV.

    `logits` and `teacher` are `[M, T, V]`. Leviathan et al., arXiv 2211.17192, corollary 3.6.
    """
    return torch.minimum(widened(logits).softmax(-1), widened(teacher).softmax(-1)).sum(-1)


def total_difference(logits: Tensor, teacher: Tensor) -> Tensor:
    """Σ |q - p| over the vocabulary, twice the total variation."""
    return (widened(logits).softmax(-1) - widened(teacher).softmax(-1)).abs().sum(-1)


def divergence(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(p ‖ q) of the target's distribution p from the draft's q."""
    log_q, log_p = widened(logits).log_softmax(-1), widened(teacher).log_softmax(-1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
