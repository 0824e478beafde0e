"""Kimi delta attention of a draft layer that has read the context before its blocks."""

import torch
from torch import Tensor

from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.kda import kda, kda_states
from draftc.runtime.kda.math import fold_blocks
from draftc.runtime.kda.states import rows_before
from draftc.runtime.memory import NoMemory, RecurrentMemory
from draftc.runtime.rope import Rope
from draftc.runtime.visibility import View, silence


class ScanDeltaAttention(DeltaAttention):
    """`DeltaAttention` whose blocks start from the state after the context rows before their anchor.

    The same weights read the context, as it is, and the block, behind the layer's norm. A block's convolutions continue
    from the K-1 context rows before its anchor. While decoding, the memory keeps the state after all verified rows and
    the last K-1 of them; slots of a block never enter it.
    """

    def forward(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor,
        rope: Rope | None,  # noqa: ARG002 - one signature for every kind of attention
        view: View,
        memory: NoMemory | RecurrentMemory,
    ) -> Tensor:
        """Mix the rows within every block of `block [B, Q, H]`, after rows of `context [B, C, H]` below its anchor.

        `anchors [B, N]` are row numbers into `context`. Returns `[B, Q, H]`, exactly zero for the rows of dropped
        blocks. Raises `BlockSizeError` when Q is no multiple of the block size.
        """
        tail, state = memory.recall(context, self.tail, self.heads, self.head_dim)
        read = torch.cat([tail, context], dim=1)
        k = self.k_conv1d(self.k_proj(read), view)[:, self.tail :].unflatten(-1, (self.heads, self.head_dim))
        v = self.v_conv1d(self.v_proj(read), view)[:, self.tail :].unflatten(-1, (self.heads, self.head_dim))
        decay = self.f_b_proj(self.f_a_proj(context)).unflatten(-1, (self.heads, self.head_dim))
        beta = self.b_proj(context)
        states = kda_states(k, v, decay, beta, self.A_log, self.dt_bias, state, anchors, view, self.lower_bound)
        states = memory.commit(states, read, anchors, self.tail, context.shape[1] + block.shape[1])
        rows = fold_blocks(block, self.block_size)
        before = torch.cat([rows_before(read, anchors, self.tail), rows], dim=1)
        q = self.q_conv1d(self.q_proj(before), view)[:, self.tail :].unflatten(-1, (self.heads, self.head_dim))
        k = self.k_conv1d(self.k_proj(before), view)[:, self.tail :].unflatten(-1, (self.heads, self.head_dim))
        v = self.v_conv1d(self.v_proj(before), view)[:, self.tail :].unflatten(-1, (self.heads, self.head_dim))
        decay = self.f_b_proj(self.f_a_proj(rows)).unflatten(-1, (self.heads, self.head_dim))
        beta = self.b_proj(rows)
        out = kda(q, k, v, decay, beta, self.A_log, self.dt_bias, states, view, self.lower_bound)
        gate = self.g_proj(rows) if self.full_gate else self.g_b_proj(self.g_a_proj(rows))
        out = self.o_norm(out, gate.unflatten(-1, (self.heads, self.head_dim)), view).flatten(-2)
        return silence(self.o_proj(out).view_as(block), view)
