"""The state before every anchor, exactly, in about 2·sqrt(N) passes over the context instead of N.

Sorted distinct anchors cut the context into m segments, and g = isqrt(m) neighbours make a group. Level 1 walks the
groups: each is read whole, from the state that the one before left. Level 2 reads the segments within all groups at the
same time, one place after the other, from the states that level 1 found; the last place of a group is known already.
Kernels that loop over rows by themselves need no levels: they go through the tiles of a `Walk` once.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

TOKEN_BUCKET = 64
WALK_ROWS = 16


class Launch(NamedTuple):
    """One stretch of context for each of R running states, read at the same time. Some may be empty.

    `rows [R, T]` numbers the rows of each in the flattened context `[B*C]`, -1 where a stretch has ended. The same
    without gaps for kernels of variable length: `tokens` are the row numbers one after the other, `starts` where each
    sequence begins (`starts_host` is its copy on the host), `continued` says whose it is. Sequences without an
    owner fill up to a power of two, tokens to a multiple of 64, so that few distinct shapes exist.
    """

    rows: Tensor
    tokens: Tensor
    starts: Tensor
    starts_host: Tensor
    continued: Tensor


class Walk(NamedTuple):
    """The context as tiles of up to 16 rows, for kernels that carry a state from tile to tile; tiles end at anchors.

    `tiles [D, P, 2]` are the first row of the flattened context and the number of rows, in order, `lengths [D]` how
    many of them a document has. `stops [B*N]` picks the state of every anchor out of the `D*(P+1)` before the tiles of
    a document and after its last.
    """

    tiles: Tensor
    lengths: Tensor
    stops: Tensor


class ScanPlan(NamedTuple):
    """How to find the states before the anchors of one batch; the same for all layers.

    `groups` are the launches of level 1 for B states, `places` those of level 2 for B times as many states as groups.
    `entries [B*N]` picks the state of every anchor out of those that the launches leave, in the order of `scan_states`.
    Where several documents share a row, each is read for itself: B then counts documents, and `owners` are their rows.
    `walk` is another way to the same states.
    """

    groups: tuple[Launch, ...]
    places: tuple[Launch, ...]
    entries: Tensor
    walk: Walk
    owners: Tensor | None = None


def bucketed(lengths: Sequence[int]) -> list[int]:
    """`lengths` of sequences, none 0, and those of dummies that fill up to a power of two of them and 64 rows.

    Dummies have one row, the last has what is missing to a multiple of 64. Where rows are missing and there is no
    dummy, the number of sequences doubles.
    """
    count = 1 << (len(lengths) - 1).bit_length()
    if count == len(lengths) and sum(lengths) % TOKEN_BUCKET:
        count *= 2
    dummies = [1] * (count - len(lengths))
    if dummies:
        dummies[-1] += -(sum(lengths) + len(dummies)) % TOKEN_BUCKET
    return [*lengths, *dummies]


def plan_launch(spans: Sequence[tuple[int, int]], device: torch.device) -> Launch:
    """The launch that reads `spans`, half-open ranges of rows in the flattened context, one per running state."""
    ranges = [torch.arange(*span) for span in spans]
    owners = [owner for owner, (start, stop) in enumerate(spans) if stop > start]
    lengths = bucketed([len(ranges[owner]) for owner in owners]) if owners else []
    tokens = torch.cat([ranges[owner] for owner in owners]) if owners else torch.arange(0)
    fill = tokens.new_zeros(sum(lengths) - len(tokens))
    starts = torch.tensor([0, *accumulate(lengths)])
    return Launch(
        rows=pad_sequence(ranges, batch_first=True, padding_value=-1).to(device),
        tokens=torch.cat([tokens, fill]).to(device),
        starts=starts.to(device),
        starts_host=starts,
        continued=torch.tensor(owners, dtype=torch.long).to(device),
    )


def plan_states(
    anchors: Sequence[Sequence[int]],
    context_rows: int,
    device: torch.device,
    group_size: int | None = None,
    starts: Sequence[Sequence[int]] | None = None,
) -> ScanPlan:
    """Plan the states before `anchors [B, N]` on the host, for a context of `context_rows` rows.

    Anchors count the rows before them, are clamped to `[0, context_rows]` and may repeat in any order. `group_size` is
    the number of segments of a group; the square root of their largest number, rounded down, needs the fewest launches.
    `starts [B, N]` are the first rows of the documents that anchors belong to, where rows hold several of them.
    """
    clamped = [[min(max(anchor, 0), context_rows) for anchor in line] for line in anchors]
    places = documents_of(clamped, starts)
    found: dict[tuple[int, int], set[int]] = {}
    for row, first, cut in chain.from_iterable(places):
        found.setdefault((row, first), set()).add(cut)
    documents = sorted(found)
    cuts = [sorted(found[document]) for document in documents]
    most = max(map(len, cuts))
    size = group_size or max(1, isqrt(most))
    groups = -(-most // size)
    spans = [
        segments(first, cut, groups * size, row * context_rows)
        for (row, first), cut in zip(documents, cuts, strict=True)
    ]
    level_one = [[(line[g * size][0], line[g * size + size - 1][1]) for line in spans] for g in range(groups)]
    level_two = [[line[g * size + place] for line in spans for g in range(groups)] for place in range(size - 1)]
    kept = groups + 1 + groups * (size - 1)
    numbers = {document: number for number, document in enumerate(documents)}
    asked = [(numbers[row, first], cut) for row, first, cut in chain.from_iterable(places)]
    segment = [{cut: place for place, cut in enumerate(line)} for line in cuts]
    entries = [number * kept + entry_of(segment[number][cut], groups, size) for number, cut in asked]
    owners = None if starts is None else torch.tensor([row for row, _ in documents], device=device)
    tiled = [tiles_between(first, cut, row * context_rows) for (row, first), cut in zip(documents, cuts, strict=True)]
    return ScanPlan(
        groups=tuple(plan_launch(each, device) for each in level_one),
        places=tuple(plan_launch(each, device) for each in level_two),
        entries=torch.tensor(entries, dtype=torch.long, device=device),
        walk=plan_walk(tiled, asked, device),
        owners=owners,
    )


def tiles_between(first: int, cuts: Sequence[int], offset: int) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Tiles from row `first` to the last of the sorted `cuts`, and how many of them lie before each cut.

    A tile is its first row, `offset` added, and its number of rows; none crosses a cut.
    """
    tiles: list[tuple[int, int]] = []
    before = {first: 0}
    for start, stop in pairwise([first, *cuts]):
        tiles += [(offset + at, min(WALK_ROWS, stop - at)) for at in range(start, stop, WALK_ROWS)]
        before[stop] = len(tiles)
    return tiles, before


def plan_walk(
    documents: Sequence[tuple[list[tuple[int, int]], dict[int, int]]],
    asked: Sequence[tuple[int, int]],
    device: torch.device,
) -> Walk:
    """The walk over `documents`, results of `tiles_between`, to states that are `asked`: document and cut of each."""
    lengths = [len(tiles) for tiles, _ in documents]
    most = max(1, *lengths)
    padded = [[*tiles, *[(0, 0)] * (most - len(tiles))] for tiles, _ in documents]
    stops = [number * (most + 1) + documents[number][1][cut] for number, cut in asked]
    return Walk(
        tiles=torch.tensor(padded, dtype=torch.long, device=device),
        lengths=torch.tensor(lengths, dtype=torch.long, device=device),
        stops=torch.tensor(stops, dtype=torch.long, device=device),
    )


def documents_of(
    anchors: Sequence[Sequence[int]], starts: Sequence[Sequence[int]] | None
) -> list[list[tuple[int, int, int]]]:
    """Of each of `anchors [B, N]`: its row of the batch, the first row of its document (0 without `starts`), itself."""
    firsts = [[0] * len(line) for line in anchors] if starts is None else starts
    return [
        [(row, first, max(anchor, first)) for first, anchor in zip(*pair, strict=True)]
        for row, pair in enumerate(zip(firsts, anchors, strict=True))
    ]


def segments(first: int, cuts: Sequence[int], count: int, offset: int) -> list[tuple[int, int]]:
    """`count` ranges of rows from `first` and between the sorted `cuts`, empty ones after; `offset` is added to all."""
    ends = [first, *cuts, *[cuts[-1]] * (count - len(cuts))]
    return [(offset + start, offset + stop) for start, stop in pairwise(ends)]


def entry_of(segment: int, groups: int, size: int) -> int:
    """Where `scan_states` keeps the state after `segment` among the states of one row of the batch."""
    group, place = divmod(segment, size)
    return group + 1 if place == size - 1 else groups + 1 + group * (size - 1) + place


def scan_states(plan: ScanPlan, advance: Callable[[Launch, Tensor], Tensor], state: Tensor) -> Tensor:
    """The states before all anchors, `[B*N, h, d, d]`, from `state [B, h, d, d]` before the first row.

    `advance(launch, states [R, h, d, d])` returns the states after the rows of `launch`.
    """
    state = state if plan.owners is None else state[plan.owners]
    found = [state]
    for launch in plan.groups:
        found.append(advance(launch, found[-1]))
    running = torch.stack(found[:-1], dim=1).flatten(0, 1)
    inner = []
    for launch in plan.places:
        running = advance(launch, running)
        inner.append(running.unflatten(0, (state.shape[0], -1)))
    kept = torch.stack(found, dim=1)
    if inner:
        kept = torch.cat([kept, torch.stack(inner, dim=2).flatten(1, 2)], dim=1)
    return kept.flatten(0, 1)[plan.entries]


def advance_dense(
    step: Callable[..., Tensor], activated_rows: tuple[Tensor, ...], launch: Launch, states: Tensor
) -> Tensor:
    """The states after the rows of `launch`, by `step(states, k, v, g, strength)` on one padded batch.

    `activated_rows` are k, v, g `[B, h, C, d]` and strength `[B, h, C]`. Rows past the end of a stretch are zero: a
    zero key writes nothing, a zero log decay forgets nothing.
    """
    if launch.rows.shape[1] == 0:
        return states
    return step(states, *(picked_rows(x, launch.rows) for x in activated_rows))


def picked_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows `[R, T]` of `x [B, h, C, ...]`, numbered over the flattened `[B*C]`: `[R, h, T, ...]`, zeros at -1."""
    flat = x.transpose(1, 2).flatten(0, 1)
    picked = flat[rows.clamp_min(0)]
    alive = (rows >= 0).view(*rows.shape, *[1] * (picked.dim() - 2))
    return torch.where(alive, picked, 0).transpose(1, 2)


def rows_before(rows: Tensor, anchors: Tensor, count: int) -> Tensor:
    """The `count` rows before every anchor: `[B, count+C, H], [B, N] -> [B*N, count, H]`.

    `rows` holds `count` rows from before the context, zeros where nothing was, then the context; `anchors` are row
    numbers into the context and are clamped to `[0, C]`.
    """
    first = anchors.clamp(0, rows.shape[1] - count)
    wanted = first.unsqueeze(-1) + torch.arange(count, device=rows.device)
    index = wanted.flatten(1).unsqueeze(-1).expand(-1, -1, rows.shape[-1])
    return rows.gather(1, index).reshape(anchors.numel(), count, rows.shape[-1])
