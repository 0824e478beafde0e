"""Domino: a recurrence over the drafted prefix corrects the logits of the slots behind it."""

from typing import Any

import torch
from torch import Tensor, nn

from draftc.runtime.config import DraftConfig
from draftc.runtime.draft import DraftModel
from draftc.runtime.heads.prefix import PrefixGRU
from draftc.runtime.heads.slots import SlotRule, domino_slots


class DominoConfig(DraftConfig):
    """A draft's configuration, and that of its correction."""

    gru_hidden_dim: int = 1
    emb_dim: int = 1
    pure_draft_prefix_len: int = 0
    shift_label: bool = False


class DominoDraft(DraftModel):
    """A Domino draft: logits gain `embed_proj [hidden; state]`, with the state of a GRU over the tokens so far.

    The state of step i has read the target embeddings of the anchor and of the i tokens after it. The first
    `pure_draft_prefix_len` steps are not corrected. `shift_label`: a slot predicts the next token, not its own; the
    last slot is then trained, and like that of the public code drafts nothing.
    """

    config_class = DominoConfig
    config: DominoConfig

    def add_heads(self) -> None:
        """Register the recurrence and the projection to the vocabulary by way of `emb_dim` channels."""
        config = self.config
        self.prefix_gru = PrefixGRU(config.target_hidden_size, config.gru_hidden_dim)
        self.embed_proj = nn.Sequential(
            nn.Linear(config.hidden_size + config.gru_hidden_dim, config.emb_dim, bias=False),
            nn.SiLU(),
            nn.Linear(config.emb_dim, config.vocab_size, bias=False),
        )

    @property
    def slots(self) -> SlotRule:
        """Which slot predicts which token."""
        return domino_slots(self.config.block_size, self.config.shift_label)

    @property
    def walks(self) -> bool:
        """A slot's scores depend on the tokens before it."""
        return True

    @property
    def correction_weight(self) -> Tensor:
        """`[V, E]`."""
        projection: Any = self.embed_proj[2]
        return projection.weight

    def features(self, hidden: Tensor, previous: Tensor, embed: nn.Module | None) -> Tensor:
        """What the correction reads, `[B, N, T, E]`, zero for the steps that are not corrected."""
        states = self.prefix_gru(self.target_embeddings(previous, embed))
        pure = self.config.pure_draft_prefix_len
        found = self.narrowed(hidden[..., pure:, :], states[..., pure:, :])
        return torch.cat([torch.zeros_like(found[..., :1, :]).expand(*found.shape[:-2], pure, -1), found], dim=-2)

    def step_features(
        self, step: int, hidden: Tensor, previous: Tensor, embed: nn.Module | None, state: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """The same of one step, `[B, E]`, None where it is not corrected, and the state `[B, G]` after `previous`."""
        state = self.prefix_gru.step(self.target_embeddings(previous, embed), state)
        if step < self.config.pure_draft_prefix_len:
            return None, state
        return self.narrowed(hidden, state), state

    def narrowed(self, hidden: Tensor, state: Tensor) -> Tensor:
        """`silu(embed_proj.0 [hidden; state])`, `[.., E]`, of `hidden [.., H]` and `state [.., G]`."""
        return self.embed_proj[1](self.embed_proj[0](torch.cat([hidden, state], dim=-1)))
