"""The draft's side of a round: read the verified rows, propose tokens, forget the block."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from draftc.runtime.generation.alignment import Alignment
from draftc.runtime.heads.scores import Choose, Drafted
from draftc.runtime.memory import DraftCache


class Verified(NamedTuple):
    """Taps `[B, C, W]` of rows that the draft has not read; the last `behind[r]` of row r are padding."""

    taps: Tensor
    behind: tuple[int, ...]

    def select(self, kept: Sequence[int]) -> "Verified":
        """The rows `kept` of the batch."""
        return Verified(self.taps[list(kept)], tuple(self.behind[row] for row in kept))


class Drafter:
    """A draft and its cache for a batch of prompts, `pads[r]` rows of padding on the left of row r.

    `embed` and `lm_head` are the target's.
    """

    def __init__(self, draft: Any, embed: nn.Module, lm_head: nn.Module, pads: Sequence[int]) -> None:
        self.draft = draft
        self.embed = embed
        self.lm_head = lm_head
        self.alignment = Alignment(pads)
        self.cache = DraftCache(config=draft.config)

    @property
    def width(self) -> int:
        """Tokens that a round proposes."""
        return self.draft.slots.drafted

    def propose(self, anchors: Tensor, verified: Verified, choose: Choose) -> Drafted:
        """Propose tokens after `anchors [B]`, the last known ones, having read the `verified` rows before them."""
        size, fresh = self.draft.config.block_size, verified.taps.shape[1]
        masks = anchors.new_full((anchors.shape[0], size - 1), self.draft.config.mask_token_id)
        output = self.draft(
            noise_embeds=embedded(self.embed, torch.cat([anchors[:, None], masks], dim=1)),
            context_hidden_states=verified.taps,
            attention_mask=self.alignment.mask(fresh, verified.behind, size, anchors.device),
            cache=self.cache,
        )
        self.alignment.settle(self.cache, fresh, verified.behind, size)
        return self.draft.draft_tokens(output.hidden_states[-1], anchors, self.lm_head, self.embed, choose)

    def select(self, kept: Sequence[int], device: torch.device) -> None:
        """Keep the rows `kept` of the batch only."""
        self.alignment.select(self.cache, kept, device)


def embedded(embed: nn.Module, tokens: Tensor) -> Tensor:
    """Embeddings `[B, Q, H_target]` of `tokens [B, Q]`, without the norm that some targets apply to their own."""
    norm = getattr(embed, "embed_norm", None)
    if norm is None:
        return embed(tokens)
    embed.embed_norm = nn.Identity()
    try:
        return embed(tokens)
    finally:
        embed.embed_norm = norm
