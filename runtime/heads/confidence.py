"""The confidence head of DSpark: how likely the target is to accept a drafted token."""

import torch
from torch import Tensor, nn


class ConfidenceHead(nn.Module):
    """A logit of acceptance from a slot's hidden state and, with a Markov head, the embedding of the token before it.

    `proj` is `[1, size]` with a bias, where `size` is H, or H + R.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)

    def forward(self, rows: Tensor) -> Tensor:
        """`rows [.., size] -> [..]`, in at least float32: the sigmoid of the result is the probability."""
        found = self.proj(rows).squeeze(-1)
        return found.to(torch.promote_types(found.dtype, torch.float32))
