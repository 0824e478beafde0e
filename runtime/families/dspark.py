"""DSpark: a Markov head on the token before each slot, and a confidence in every drafted token."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from draftc.runtime.config import DraftConfig
from draftc.runtime.draft import DraftModel
from draftc.runtime.heads.confidence import ConfidenceHead
from draftc.runtime.heads.markov import MarkovHead
from draftc.runtime.heads.slots import SlotRule, dspark_slots


class DsparkConfig(DraftConfig):
    """A draft's configuration, and that of its heads; `markov_rank` 0: no Markov head."""

    sample_from_anchor: bool = True
    markov_rank: int = 0
    markov_head_type: str | None = None
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False


class DsparkDraft(DraftModel):
    """A DSpark draft. `markov_class` is the kind of its Markov head, read where `markov_rank` is positive.

    `sample_from_anchor`: a slot predicts the next token, the anchor's slot included, so a step drafts `block_size`
    tokens; otherwise a slot predicts its own token and a step drafts one fewer. Training and decoding agree on it.
    """

    config_class = DsparkConfig
    config: DsparkConfig
    markov_class: ClassVar[type[MarkovHead]] = MarkovHead

    def add_heads(self) -> None:
        """Register the heads that the configuration asks for."""
        config = self.config
        rank, width = config.markov_rank, config.hidden_size
        vocabularies = (config.vocab_size, config.draft_vocab_size)
        self.markov_head = self.markov_class(*vocabularies, rank, width) if rank else None
        size = width + (rank if config.confidence_head_with_markov else 0)
        self.confidence_head = ConfidenceHead(size) if config.enable_confidence_head else None

    @property
    def slots(self) -> SlotRule:
        """Which slot predicts which token."""
        return dspark_slots(self.config.block_size, self.config.sample_from_anchor)

    @property
    def walks(self) -> bool:
        """Whether there is a Markov head."""
        return self.markov_head is not None

    @property
    def correction_weight(self) -> Tensor | None:
        """`[V_draft, R]`, None without a Markov head."""
        return None if self.markov_head is None else self.markov_head.markov_w2.weight

    def features(self, hidden: Tensor, previous: Tensor, embed: nn.Module | None) -> Tensor | None:  # noqa: ARG002
        """What the correction reads, `[B, N, T, R]`, of `hidden [B, N, T, H]` and `previous [B, N, T]`."""
        return None if self.markov_head is None else self.markov_head.features(hidden, previous)

    def step_features(
        self,
        step: int,  # noqa: ARG002 - the state knows which step it is
        hidden: Tensor,
        previous: Tensor,
        embed: nn.Module | None,  # noqa: ARG002
        state: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The same of one step, `[B, R]`, and the state after it."""
        if self.markov_head is None:
            return None, state
        return self.markov_head.step_features(hidden, previous, state)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """Logits of acceptance `[.., T]` of `hidden [.., T, H]` and `previous [.., T]`; None without the head."""
        if self.confidence_head is None:
            return None
        if self.markov_head is None or not self.config.confidence_head_with_markov:
            return self.confidence_head(hidden)
        return self.confidence_head(torch.cat([hidden, self.markov_head.embedded(previous)], dim=-1))
