"""The pieces of a dense layer: what they refuse, and what they name."""

import pytest
import torch
import torch.nn.functional as F

from draftc.runtime.attention.gqa import GroupedQueryAttention
from draftc.runtime.mlp import GatedMLP


def test_heads_that_cannot_be_grouped() -> None:
    with pytest.raises(ValueError, match="6 query heads cannot share 4"):
        GroupedQueryAttention(32, 6, 4, 8, 1e-6, "half", True, False, False)


def test_a_rope_style_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="neox"):
        GroupedQueryAttention(32, 4, 2, 8, 1e-6, "neox", True, False, False)


def test_an_activation_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"'relu' is none of silu, gelu"):
        GatedMLP(32, 48, "relu")


@pytest.mark.parametrize(
    ("word", "act"),
    [("silu", F.silu), ("gelu", F.gelu), ("gelu_pytorch_tanh", lambda x: F.gelu(x, approximate="tanh"))],
)
def test_the_activation_gates(word: str, act: object) -> None:
    mlp = GatedMLP(8, 12, word).double()
    hidden = torch.randn(2, 3, 8, dtype=torch.float64)
    want = (act(hidden @ mlp.gate_proj.weight.T) * (hidden @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    assert torch.allclose(mlp(hidden), want, atol=1e-12)


def test_only_what_is_asked_for_has_parameters() -> None:
    plain = GroupedQueryAttention(32, 4, 2, 8, 1e-6, None, False, False, False)
    assert {name for name, _ in plain.named_parameters()} == {f"{part}_proj.weight" for part in "qkvo"}
