"""The feed-forward part of a layer."""

import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN_ACTS = ("silu", "gelu", "gelu_pytorch_tanh")


class GatedMLP(nn.Module):
    """`down_proj(act(gate_proj x) * up_proj x)`, the GLU variants of arXiv:2002.05202, without biases.

    `hidden_act` is `silu` (SwiGLU), `gelu` or `gelu_pytorch_tanh`; another word raises `ValueError`.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, hidden_act: str) -> None:
        super().__init__()
        if hidden_act not in HIDDEN_ACTS:
            raise ValueError(f"hidden_act {hidden_act!r} is none of {', '.join(HIDDEN_ACTS)}")
        self.hidden_act = hidden_act
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `hidden [B, Q, H]` to `[B, Q, H]`."""
        if self.hidden_act == "silu":
            gate = F.silu(self.gate_proj(hidden))
        elif self.hidden_act == "gelu":
            gate = F.gelu(self.gate_proj(hidden))
        else:
            gate = F.gelu(self.gate_proj(hidden), approximate="tanh")
        return self.down_proj(gate * self.up_proj(hidden))
