"""What tests of agreement with outside implementations share."""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOAT64_TOLERANCE = 1e-10


def widen_norms(monkeypatch: pytest.MonkeyPatch, *classes: type[nn.Module]) -> None:
    """Let RMSNorm classes that round to float32 inside compute in the dtype of their input, by torch's own function."""

    def forward(self: nn.Module, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon)

    for norm in classes:
        monkeypatch.setattr(norm, "forward", forward)


def assert_equal(ours: Tensor, theirs: Tensor, tolerance: float = FLOAT64_TOLERANCE) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() <= tolerance * max(1.0, theirs.abs().max().item())


def assert_same_gradients(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert gradient.abs().max() > 0, name
        assert_equal(ours[name], gradient)


def block_mask(anchors: Tensor, rows: int, size: int) -> Tensor:
    """Full attention of training blocks, `[B, 1, N·b, S + N·b]`: rows before the own anchor and the own block."""
    batch, blocks = anchors.shape
    mask = torch.zeros(batch, 1, blocks * size, rows + blocks * size, dtype=torch.bool)
    for row in range(batch):
        for block in range(blocks):
            own = slice(block * size, (block + 1) * size)
            mask[row, 0, own, : int(anchors[row, block])] = True
            mask[row, 0, own, rows + own.start : rows + own.stop] = True
    return mask
