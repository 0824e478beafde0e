"""Which documents share a row, and how anything that belongs to a document or to a block is laid out in rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class PackingError(ValueError):
    """Documents that cannot be laid out in rows as asked."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Where blocks go: `taken [R, N]` numbers the blocks of the padded `[D·n]` that each row holds, -1 for none."""

    taken: Tensor

    def lay(self, values: Tensor, fill: int) -> Tensor:
        """`values [D, n, ...]`, one entry per block of the documents, as rows `[R, N, ...]`; `fill` where none is."""
        flat = values.flatten(0, 1)[self.taken.clamp(min=0)]
        is_taken = (self.taken >= 0).view(*self.taken.shape, *[1] * (flat.ndim - 2))
        return torch.where(is_taken, flat, fill)


@dataclass(frozen=True, slots=True)
class Packing:
    """D documents of `lengths [D]` in R rows of `width`: `rows` lists the documents of each, in order.

    Rows hold as many blocks as their documents need, rounded up to a multiple of `block_multiple`. `gap` rows are empty
    between two documents of a row.
    """

    lengths: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    width: int
    block_multiple: int = 1
    gap: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether some row holds more than one document."""
        return any(len(row) > 1 for row in self.rows)

    def filled(self, row: Sequence[int]) -> int:
        """How many context rows the documents of `row` take, with the gaps between them."""
        return sum(self.lengths[document] for document in row) + self.gap * (len(row) - 1)

    @property
    def offsets(self) -> Tensor:
        """The first context row of every document, `[D]` int64."""
        found = [0] * len(self.lengths)
        for row in self.rows:
            total = 0
            for document in row:
                found[document] = total
                total += self.lengths[document] + self.gap
        return torch.tensor(found)

    def source(self, stride: int) -> Tensor:
        """The rows of the padded documents, numbered over `[D·stride]`, that context rows hold: `[R, width]`, or -1."""
        found = torch.full((len(self.rows), self.width), -1)
        offsets = self.offsets.tolist()
        for number, row in enumerate(self.rows):
            for document in row:
                held = torch.arange(self.lengths[document])
                found[number, held + offsets[document]] = held + document * stride
        return found

    def positions(self) -> Tensor:
        """Positions of the context rows, `[R, width]`, from each document's start on; they go on through padding."""
        found = torch.arange(self.width).repeat(len(self.rows), 1)
        for number, row in enumerate(self.rows):
            for offset in self.offsets[list(row)].tolist():
                found[number, offset:] = torch.arange(self.width - offset)
        return found

    def blocks(self, counts: Sequence[int]) -> BlockRows:
        """The places of the blocks of all documents, `counts [D]` of them each."""
        most = max(counts)
        held = [[document * most + n for document in row for n in range(counts[document])] for row in self.rows]
        width = -(-max(map(len, held)) // self.block_multiple) * self.block_multiple
        return BlockRows(torch.tensor([[*row, *[-1] * (width - len(row))] for row in held]))


def one_per_row(lengths: Sequence[int], width: int | None = None, block_multiple: int = 1) -> Packing:
    """Every document in a row of its own, padded to the longest, or to `width`.

    Raises `PackingError` for a document that is longer than `width`.
    """
    found = max(lengths) if width is None else width
    require_width(lengths, found)
    return Packing(tuple(lengths), tuple((i,) for i in range(len(lengths))), found, block_multiple)


def first_fit(lengths: Sequence[int], width: int, block_multiple: int = 1, gap: int = 0) -> Packing:
    """Documents in as few rows of `width` as first fit, longest first, finds, `gap` empty rows between two of them.

    Raises `PackingError` for a document that is longer than `width`.
    """
    require_width(lengths, width)
    rows: list[list[int]] = []
    room: list[int] = []
    for document in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, left in enumerate(room) if left >= lengths[document]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(width)
        rows[row].append(document)
        room[row] -= lengths[document] + gap
    return Packing(tuple(lengths), tuple(map(tuple, rows)), width, block_multiple, gap)


def trimmed(packing: Packing) -> Packing:
    """`packing` with rows as wide as the fullest one."""
    return replace(packing, width=max(packing.filled(row) for row in packing.rows))


def require_width(lengths: Sequence[int], width: int) -> None:
    """Raise `PackingError` unless every document fits a row of `width`."""
    if max(lengths) > width:
        raise PackingError(f"a document of {max(lengths)} tokens does not fit a row of {width}")
