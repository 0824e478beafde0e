"""What a decoder layer with plain residual sums computes; tracing it needs nothing of transformers' models."""

from torch import Tensor, nn

from draftc.runtime.memory import Memory
from draftc.runtime.norm import RMSNorm
from draftc.runtime.rope import Rope, Turn
from draftc.runtime.visibility import View


class PlainResidual(nn.Module):
    """Attention and feed-forward part, each behind a norm, each added to the stream.

    Only the block passes the norms; the context is the same for all layers and enters as it is.
    `window`, `is_causal`, `turn` (the rotary table its attention needs) and `memory` (what it keeps between decoding
    steps: `keys`, a `state` or `none`) are facts that the model reads; no forward does.
    """

    window: int | None = None
    is_causal: bool = False
    turn: Turn | None = None
    memory: str = "keys"

    def __init__(self, hidden_size: int, rms_norm_eps: float, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = RMSNorm(hidden_size, rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden_size, rms_norm_eps)

    def forward(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor,
        rope: Rope | None,
        view: View,
        memory: Memory,
    ) -> Tensor:
        """Update `block [B, Q, H]` from `context [B, C, H]`; `anchors [B, N]` are row numbers into `context`."""
        normed = self.input_layernorm(block)
        block = block + self.self_attn(normed, context, anchors, rope, view, memory)
        return block + self.mlp(self.post_attention_layernorm(block))
