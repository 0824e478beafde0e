"""One example, and the checks that it must pass before a run starts with it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftc.runtime.blocks import anchor_candidates
from draftc.runtime.train.errors import Place, TrainingDataError


@dataclass(frozen=True, slots=True)
class Example:
    """A sequence: `input_ids [S]` int64, `loss_mask [S]` float32, and what was captured of the target, if it was.

    `taps [S, T·W]` are the tapped states side by side, `final [S, H_target]` the state before the output head.
    """

    input_ids: Tensor
    loss_mask: Tensor
    place: Place
    taps: Tensor | None = None
    final: Tensor | None = None

    def truncated(self, length: int) -> "Example":
        """The first `length` tokens."""
        taps = None if self.taps is None else self.taps[:length]
        final = None if self.final is None else self.final[:length]
        return Example(self.input_ids[:length], self.loss_mask[:length], self.place, taps, final)


class ExampleSource(Protocol):
    """Examples by number, each checked when it is read or before."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int) -> Example:
        """Example number `index`. Raises `TrainingDataError` for one that cannot be used."""


def require_tokens(example: Example, vocab_size: int) -> Example:
    """Return `example`; raise `TrainingDataError` unless its tokens can be embedded and a block can be anchored."""
    ids, mask = example.input_ids, example.loss_mask
    if ids.ndim != 1 or ids.shape != mask.shape:
        reason = f"input_ids {list(ids.shape)} and loss_mask {list(mask.shape)} must be two rows of one length"
        raise TrainingDataError(example.place, reason)
    if not torch.isfinite(mask).all():
        raise TrainingDataError(example.place, "loss_mask holds a value that is not finite")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        wrong = f"token ids go from {int(ids.min())} to {int(ids.max())}; the target's vocabulary has {vocab_size}"
        raise TrainingDataError(example.place, wrong)
    if not anchor_candidates(mask).any():
        raise TrainingDataError(example.place, f"no two supervised tokens in a row among {len(ids)}")
    return example


def require_states(example: Example, tap_width: int, final_width: int | None) -> Example:
    """Return `example`; raise `TrainingDataError` unless its states have these widths, a row a token, all finite.

    `final_width` None: nobody asks for the final states.
    """
    for name, states, width in (
        ("hidden_states", example.taps, tap_width),
        ("final states", example.final, final_width),
    ):
        if width is None:
            continue
        if states is None:
            raise TrainingDataError(example.place, f"there are no {name}, which this run needs")
        if list(states.shape) != [len(example.input_ids), width]:
            found = f"{name} are {list(states.shape)} and must be {[len(example.input_ids), width]}"
            raise TrainingDataError(example.place, found)
        if not torch.isfinite(states).all():
            raise TrainingDataError(example.place, f"{name} hold a value that is not finite")
    return example
