"""From examples to batches: which anchors an example gets, and how examples become one `DraftBatch`."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from draftc.runtime.batch import Document, DraftBatch, batch_of
from draftc.runtime.blocks import BlockShape
from draftc.runtime.packing import Packing, first_fit, one_per_row, trimmed
from draftc.runtime.train.errors import Place
from draftc.runtime.train.examples import Example, ExampleSource
from draftc.runtime.train.taps import Features


@dataclass(frozen=True, slots=True)
class Drawn:
    """An example with the seed of its anchors."""

    example: Example
    seed: int


def anchor_seed(seed: int, epoch: int, index: int) -> int:
    """A seed for the anchors of example `index` in `epoch`: the same on every rank and after every restart."""
    digest = blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Draws(Dataset[Drawn]):
    """The examples of a run as a dataset of torch: in each epoch every example has other anchors."""

    def __init__(self, examples: ExampleSource, seed: int) -> None:
        self.examples = examples
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the anchors of `epoch` from now on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Drawn:
        return Drawn(self.examples[index], anchor_seed(self.seed, self.epoch, index))


@dataclass(frozen=True, slots=True)
class Fed:
    """What a step is fed: a batch, captured features (None: the target computes them), and where examples are from."""

    batch: DraftBatch
    features: Features | None
    places: tuple[Place, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Fed":
        """The same on `device`."""
        features = None if self.features is None else self.features.to(device, non_blocking)
        return Fed(self.batch.to(device, non_blocking), features, self.places)


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes batches. `pack_width` puts several documents into rows of at most so many tokens; None: one a row.

    `static_width` pads every row to that many tokens and its blocks to a multiple of `num_anchors`, so that few shapes
    occur; None: as wide as needed. `gap` rows stay empty between two documents of a row.
    """

    shape: BlockShape
    pack_width: int | None = None
    static_width: int | None = None
    gap: int = 0

    def __call__(self, drawn: Sequence[Drawn]) -> dict[str, Fed]:
        """The batch of `drawn`, under the one name `fed` that the trainer knows."""
        examples = [each.example for each in drawn]
        documents = [Document(each.example.input_ids, each.example.loss_mask, each.seed) for each in drawn]
        batch = batch_of(documents, self.shape, self.packing([len(example.input_ids) for example in examples]))
        return {"fed": Fed(batch, stacked(examples), tuple(example.place for example in examples))}

    def packing(self, lengths: list[int]) -> Packing:
        """How documents of `lengths` are laid out. Raises `PackingError` for one that fits no row."""
        multiple = 1 if self.static_width is None else self.shape.num_anchors
        if self.pack_width is None:
            return one_per_row(lengths, self.static_width, multiple)
        packed = first_fit(lengths, self.static_width or self.pack_width, multiple, self.gap)
        return packed if self.static_width is not None else trimmed(packed)


def stacked(examples: Sequence[Example]) -> Features | None:
    """The captured states of `examples` as `[D, S, ..]`, zeros behind the end; None when nothing was captured."""
    taps = padded([example.taps for example in examples])
    return None if taps is None else Features(taps, padded([example.final for example in examples]))


def padded(values: Sequence[Tensor | None]) -> Tensor | None:
    """`values [S, W]` side by side as `[D, S, W]`; None unless all are there."""
    found = [value for value in values if value is not None]
    return pad_sequence(found, batch_first=True) if len(found) == len(values) else None
