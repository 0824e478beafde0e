"""Which slot of a block predicts which token: the one place that knows where the families differ."""

from typing import NamedTuple

import torch
from torch import Tensor


class SlotRule(NamedTuple):
    """What the slots of a block of `size` (b) predict, anchored at a position a whose token is known.

    Slot j predicts the token at a + j + `offset`: with offset 0 a slot is its own token, and slot 0 predicts nothing;
    with offset 1 it predicts the next. So step i of a block, which is its slot `first` + i, predicts the token at
    a + 1 + i and comes after that at a + i, whatever the offset. The first `drafted` (D) steps are proposed while
    decoding, all of them are trained.
    """

    size: int
    offset: int
    drafted: int

    @property
    def first(self) -> int:
        """The first slot that predicts something, which is step 0."""
        return 1 - self.offset

    def drafting(self, hidden: Tensor) -> Tensor:
        """`[B, b, H] -> [B, D, H]`: the slots of a decoding step that propose a token."""
        return hidden[:, self.first : self.first + self.drafted]

    def labels(self, tokens: Tensor) -> Tensor:
        """The token that each slot predicts, `[.., b]`, of the tokens from the anchor on, `[.., b+1]`.

        A slot that predicts nothing has its own.
        """
        return tokens[..., self.offset : self.offset + self.size]

    def previous(self, tokens: Tensor) -> Tensor:
        """The token before the one that each slot predicts, `[.., b]`, of the tokens from the anchor on, `[.., b+1]`.

        A slot that predicts nothing has the anchor's.
        """
        if self.offset:
            return tokens[..., : self.size]
        return torch.cat([tokens[..., :1], tokens[..., : self.size - 1]], dim=-1)


def own_slots(size: int) -> SlotRule:
    """The rule of DFlash and DFlash2: every slot but the anchor's is its own token."""
    return SlotRule(size, 0, size - 1)


def domino_slots(size: int, shift_label: bool) -> SlotRule:
    """The rule of Domino. Shifted, the last slot is trained as well, and as in the public code drafts nothing."""
    return SlotRule(size, int(shift_label), size - 1)


def dspark_slots(size: int, sample_from_anchor: bool) -> SlotRule:
    """The rule of DSpark: from the anchor on, every slot drafts the next token; otherwise every other its own."""
    return SlotRule(size, int(sample_from_anchor), size if sample_from_anchor else size - 1)
