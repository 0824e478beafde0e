"""Which slot of a block predicts which token: the one place that knows where the families differ."""

from typing import NamedTuple

from torch import Tensor


class SlotRule(NamedTuple):
    """What the slots of a block of `size` (b) predict, anchored at a position a whose token is known.

    Slot j predicts the token at a + j + `offset`: with offset 0 a slot is its own token, and slot 0 predicts nothing;
    with offset 1 it predicts the next. So a block takes T = size - first steps, and step i, which is its slot
    first + i, predicts the token at a + 1 + i from that at a + i, whatever the offset: labels, heads and decoding count
    in steps. The first `drafted` (D) of them are proposed while decoding, all T are trained.
    """

    size: int
    offset: int
    drafted: int

    @property
    def first(self) -> int:
        """The first slot that predicts something, which is step 0."""
        return 1 - self.offset

    @property
    def steps(self) -> int:
        """T, the tokens that a block predicts."""
        return self.size - self.first

    def predicting(self, hidden: Tensor) -> Tensor:
        """`[B, N·b, H] -> [B, N, T, H]`: the slots that predict, in order."""
        return hidden.unflatten(1, (-1, self.size))[:, :, self.first :]

    def drafting(self, hidden: Tensor) -> Tensor:
        """`[B, b, H] -> [B, D, H]`: the slots of a decoding step that propose a token."""
        return hidden[:, self.first : self.first + self.drafted]


def own_slots(size: int) -> SlotRule:
    """The rule of DFlash and DFlash2: every slot but the anchor's is its own token."""
    return SlotRule(size, 0, size - 1)


def domino_slots(size: int, shift_label: bool) -> SlotRule:
    """The rule of Domino. Shifted, the last slot is trained as well, and as in the public code drafts nothing."""
    return SlotRule(size, int(shift_label), size - 1)


def dspark_slots(size: int, sample_from_anchor: bool) -> SlotRule:
    """The rule of DSpark: from the anchor on, every slot drafts the next token; otherwise every other its own."""
    return SlotRule(size, int(sample_from_anchor), size if sample_from_anchor else size - 1)
