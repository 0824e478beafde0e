"""Draft model qwen3-4b-kda-scan: 5 layers of width 2560, blocks of 16 slots.

Compiled by draftc 0.1.0 from layout.yaml: change that file and compile again rather than editing this one.
Shapes: B rows of a batch, Q slots of all blocks, C context rows of a call, P context rows of earlier calls.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from math import isqrt
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn, ones
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionLayer
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from .configuration_qwen3_4b_kda_scan import DraftConfig, Qwen3_4bKdaScanDraftConfig


class Band(NamedTuple):
    """Visibility as a band of diagonals, last query on last key: as many keys to the left and right; -1 for all."""

    left: int
    right: int


class View(NamedTuple):
    """What one layer may see, made for the backend that runs it.

    `mask` is a bool tensor `[B, 1, Q, K]` (True: may attend), a `BlockMask`, a `Band`, or None when nothing is hidden.
    `dropout` is the share of attention weights to drop, 0.0 outside training. `live` `[B, Q]` bool marks the queries
    that see something; None when all do. `plan` is the `ScanPlan` of this batch for KDA layers that read context.
    """

    mask: Tensor | BlockMask | Band | None
    backend: str
    dropout: float
    live: Tensor | None
    plan: Any = None


def convolve_rows(rows: Tensor, weight: Tensor) -> Tensor:
    """`short_convolution` by plain tensor operations, in any dtype: `[M, T, P], [P, K] -> [M, T, P]`."""
    if rows.shape[1] == 0:
        return rows
    padded = F.pad(rows.transpose(1, 2), (weight.shape[-1] - 1, 0))
    mixed = F.conv1d(padded, weight.to(rows.dtype).unsqueeze(1), groups=weight.shape[0])
    return F.silu(mixed).transpose(1, 2)


def constant_to_compilers(function: Callable[[], bool]) -> Callable[[], bool]:
    """Mark `function`: `torch.compile` calls it once and keeps its answer in the graph, and does not trace into it.

    The mark is that of `torch.compiler.assume_constant_result`, which would load the whole compiler of torch, over a
    second, wherever a bundle is imported.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


class MissingTritonWarning(UserWarning):
    """A draft was compiled for Triton kernels, and runs by plain tensor operations instead."""


@constant_to_compilers
def misses_triton() -> bool:
    """Whether the kernel files cannot be imported, which a `MissingTritonWarning` says."""
    try:
        from .triton_core import kda_blocks
    except ImportError as missing:
        warnings.warn(f"KDA runs by plain tensor operations: {missing}", MissingTritonWarning, stacklevel=4)
        return True
    return not callable(kda_blocks)


def convolve_triton(rows: Tensor, weight: Tensor) -> Tensor:
    """`short_convolution` by one kernel forward and one backward, in every phase; plain where Triton is missing."""
    if misses_triton():
        return convolve_rows(rows, weight)
    from .triton_layer import convolve_tiles

    return convolve_tiles(rows, weight)


class ViewError(ValueError):
    """A question about visibility that has no answer, or a view that a backend cannot read."""


def short_convolution(rows: Tensor, weight: Tensor, view: View) -> Tensor:
    """Causal depthwise convolution over time, then SiLU: `[M, T, P], [P, K] -> [M, T, P]`.

    y_t = silu(sum_i weight[:, i] * rows_{t-K+1+i}), rows before the first being zero: the last tap is the row itself.
    The backend that `view` names for the core brings its form of this: kernels, or plain tensor operations.
    Raises `ViewError` for a name that no backend has.
    """
    if view.backend == "kda_recurrent":
        return convolve_rows(rows, weight)
    if view.backend == "kda_block":
        return convolve_rows(rows, weight)
    if view.backend == "kda_triton":
        return convolve_triton(rows, weight)
    raise ViewError(f"KDA backend {view.backend!r} is none of this draft's kda_recurrent, kda_block, kda_triton")


class ShortConvolution(nn.Module):
    """`short_convolution` with its weight `[P, K]`: P channels, K taps, no bias. `[M, T, P] -> [M, T, P]`."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, taps) * 0.02)

    def forward(self, rows: Tensor, view: View) -> Tensor:
        """Convolve `rows [M, T, P]` over time and apply SiLU; `view` names the backend."""
        return short_convolution(rows, self.weight, view)

    def extra_repr(self) -> str:
        """Channels and taps, shown by `print(model)`."""
        return f"{self.weight.shape[0]}, taps={self.weight.shape[1]}"


def gate_rows(out: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`gated_norm` by plain tensor operations: `[M, T, h, d]`, twice, and `[d]`; at least float32 inside."""
    wide = torch.promote_types(out.dtype, torch.float32)
    normed = F.rms_norm(out.to(wide), weight.shape, weight.to(wide), eps)
    return (normed * torch.sigmoid(gate.to(wide))).to(out.dtype)


def gate_triton(out: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`gated_norm` by one kernel forward and one backward, in every phase; plain where Triton is missing."""
    if misses_triton():
        return gate_rows(out, gate, weight, eps)
    from .triton_layer import gate_tiles

    return gate_tiles(out, gate, weight, eps)


def gated_norm(out: Tensor, gate: Tensor, weight: Tensor, eps: float, view: View) -> Tensor:
    """`rms_norm(out) * weight * sigmoid(gate)` over the last axis of `out` and `gate [M, T, h, d]`; `weight [d]`.

    Computed in at least float32 and rounded once, to the dtype of `out`, by the backend that `view` names for the core.
    Raises `ViewError` for a name that no backend has.
    """
    if view.backend == "kda_recurrent":
        return gate_rows(out, gate, weight, eps)
    if view.backend == "kda_block":
        return gate_rows(out, gate, weight, eps)
    if view.backend == "kda_triton":
        return gate_triton(out, gate, weight, eps)
    raise ViewError(f"KDA backend {view.backend!r} is none of this draft's kda_recurrent, kda_block, kda_triton")


class GatedRMSNorm(nn.Module):
    """`gated_norm` with its weight `[size]`: RMSNorm over each head times the sigmoid of a gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, out: Tensor, gate: Tensor, view: View) -> Tensor:
        """Normalise `out [M, T, h, size]` and gate it by `gate`, the same shape; `view` names the backend."""
        return gated_norm(out, gate, self.weight, self.eps, view)

    def extra_repr(self) -> str:
        """Size and epsilon, shown by `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


def blank_state(context: Tensor, tail: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
    """What a recurrence starts from before `context [B, C, H]`: zeros `[B, tail, H]` and `[B, heads, dim, dim]`.

    The rows have the dtype of `context`, the state at least float32.
    """
    batch, _, width = context.shape
    wide = torch.promote_types(context.dtype, torch.float32)
    return context.new_zeros(batch, tail, width), context.new_zeros(batch, heads, dim, dim, dtype=wide)


class NoMemory:
    """Keeps nothing: training, a step without a cache, and layers that have nothing to keep."""

    def get_seq_length(self) -> int:
        """Rows kept so far: none."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows after reading `query_length` more, and the number of the first one."""
        return query_length, 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return `k` and `v`, each `[B, g, C+Q, d]`, as they are."""
        return k, v

    def recall(self, context: Tensor, tail: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
        """Return zeros for the rows before `context [B, C, H]` and for the state; see `blank_state`."""
        return blank_state(context, tail, heads, dim)

    def commit(self, states: Tensor, read: Tensor, anchors: Tensor, tail: int, rows: int) -> Tensor:
        """Return `states` as they are."""
        return states


def rows_before(rows: Tensor, anchors: Tensor, count: int) -> Tensor:
    """The `count` rows before every anchor: `[B, count+C, H], [B, N] -> [B*N, count, H]`.

    `rows` holds `count` rows from before the context, zeros where nothing was, then the context; `anchors` are row
    numbers into the context and are clamped to `[0, C]`.
    """
    first = anchors.clamp(0, rows.shape[1] - count)
    wanted = first.unsqueeze(-1) + torch.arange(count, device=rows.device)
    index = wanted.flatten(1).unsqueeze(-1).expand(-1, -1, rows.shape[-1])
    return rows.gather(1, index).reshape(anchors.numel(), count, rows.shape[-1])


class RecurrentMemory(CacheLayerMixin):
    """State of a recurrent layer after the verified rows, the last rows for its convolution, and a count of rows.

    Only context rows enter the state, so nothing has to be undone when a block is rejected: `crop` moves the counter
    and refuses to drop a verified row. Rows are counted as attention layers count them, block included.
    """

    is_croppable = True
    supports_early_init = False

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.state: Tensor | None = None
        self.tail: Tensor | None = None
        self.length = 0
        self.unverified = 0

    def recall(self, context: Tensor, tail: int, heads: int, dim: int) -> tuple[Tensor, Tensor]:
        """Return the `tail` rows `[B, tail, H]` before `context [B, C, H]`, and the state `[B, heads, dim, dim]`."""
        if self.state is None or self.tail is None:
            return blank_state(context, tail, heads, dim)
        return self.tail, self.state

    def commit(self, states: Tensor, read: Tensor, anchors: Tensor, tail: int, rows: int) -> Tensor:
        """Store `states [B, heads, dim, dim]`, those before `anchors [B, 1]`, and return them.

        `read [B, tail+C, H]` holds the recalled rows, then the context; the `tail` rows before each anchor are kept.
        Rows of a batch may have read less than C rows: what lies behind their anchor is padding. `rows` is C+Q.
        """
        self.state, self.tail = states, rows_before(read, anchors, tail)
        self.length += rows
        self.unverified += rows - (read.shape[1] - tail)
        return states

    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last `-tokens_to_remove` rows, all of them slots of a block; raises `ValueError` otherwise."""
        dropped = -tokens_to_remove
        if not 0 <= dropped <= self.unverified and self.length:
            raise ValueError(
                f"crop({tokens_to_remove}) on a recurrent state: only its {self.unverified} last rows can go"
            )
        self.length -= min(dropped, self.length)
        self.unverified -= min(dropped, self.unverified)

    def get_seq_length(self) -> int:
        """Rows read so far, block rows that were not cropped included."""
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows after reading `query_length` more, and the number of the first one."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """No limit: -1."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Give every row of the batch the memory of row `beam_idx`."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` of the batch."""
        if self.state is not None and self.tail is not None:
            self.state = self.state[indices.to(self.state.device)]
            self.tail = self.tail[indices.to(self.tail.device)]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch."""
        if self.state is not None and self.tail is not None:
            self.state = self.state.repeat_interleave(repeats, dim=0)
            self.tail = self.tail.repeat_interleave(repeats, dim=0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: shapes come with the first `commit`."""

    def update(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Refuse keys and values with `TypeError`: this layer keeps a state."""
        raise TypeError("a recurrent layer keeps a state: it has no keys and values to update")


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


WALK_ROWS = 16


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


TOKEN_BUCKET = 64


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


def log_decay(raw: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """Logarithm of the decay of every key channel, at most 0, from the raw gate `[..., h, d]`.

    With r = raw + dt_bias and a = exp(A_log), `A_log [h]`, `dt_bias [h*d]`: -a*softplus(r) without a bound, and
    lower_bound*sigmoid(a*r) with one, which is negative. All in the dtype of the arguments.
    """
    r = raw + dt_bias.unflatten(0, raw.shape[-2:])
    a = A_log.exp()[:, None]
    if lower_bound is None:
        return -a * F.softplus(r)
    return lower_bound * torch.sigmoid(a * r)


def rounded(parameter: Tensor, like: Tensor) -> Tensor:
    """`parameter` as activations like `like` would hold it, widened to at least float32.

    Mixed-precision training hands `A_log` and `dt_bias` over in the activation dtype, decoding keeps them in float32;
    rounding in every phase makes both see the same numbers.
    """
    return parameter.to(like.dtype).to(torch.promote_types(like.dtype, torch.float32))


def unit_rows(x: Tensor) -> Tensor:
    """`x / sqrt(sum(x²) + 1e-6)` over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def activated(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a recurrence runs on, heads before time: unit keys, values, log decay `[M, h, T, d]`; strength `[M, h, T]`.

    Takes the arguments of `kda`, `[M, T, h, d]` and `[M, T, h]`, and returns at least float32.
    """
    wide = torch.promote_types(decay.dtype, torch.float32)
    g = log_decay(decay.to(wide), rounded(A_log, decay), rounded(dt_bias, decay), lower_bound)
    k = unit_rows(k.to(wide))
    strength = torch.sigmoid(beta.to(wide))
    return k.transpose(1, 2), v.to(wide).transpose(1, 2), g.transpose(1, 2), strength.transpose(1, 2)


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


def picked_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows `[R, T]` of `x [B, h, C, ...]`, numbered over the flattened `[B*C]`: `[R, h, T, ...]`, zeros at -1."""
    flat = x.transpose(1, 2).flatten(0, 1)
    picked = flat[rows.clamp_min(0)]
    alive = (rows >= 0).view(*rows.shape, *[1] * (picked.dim() - 2))
    return torch.where(alive, picked, 0).transpose(1, 2)


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


def delta_step(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """One row enters `state [M, h, d, d]`: forget, then correct what the key recalls towards the value.

    `k`, `v` and `g` are `[M, h, d]`, `strength [M, h]`; S' = e^g S, then S' + k (strength (v - S'ᵀk))ᵀ.
    """
    state = state * g.exp().unsqueeze(-1)
    recalled = torch.einsum("mhk,mhkv->mhv", k, state)
    return state + torch.einsum("mhk,mhv->mhkv", k, strength.unsqueeze(-1) * (v - recalled))


def advance_recurrent(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """The state after rows `[M, h, T, d]` (`strength [M, h, T]`, all activated) entered `state [M, h, d, d]`."""
    for t in range(k.shape[2]):
        state = delta_step(state, k[:, :, t], v[:, :, t], g[:, :, t], strength[:, :, t])
    return state


def states_recurrent(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    plan: ScanPlan,
    lower_bound: float | None,
) -> Tensor:
    """`kda_states` one row at a time; at least float32 inside."""
    with torch.autocast(k.device.type, enabled=False):
        rows = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        return scan_states(plan, partial(advance_dense, advance_recurrent, rows), state.to(rows[0].dtype))


SEGMENT_ROWS = 32
Level = tuple[Tensor, Tensor]


def decays(g: Tensor) -> tuple[list[Level], Tensor, Tensor]:
    """The decays between rows, from the logarithm of the decay of each, `g [..., T, d]`, at most 0.

    For every doubling of n segments with halves of s rows: from the border to each row of the upper halves, and from
    each row of the lower halves to the border, `[..., n, s, d]` each. Then two logarithms over all rows, `[..., T, d]`:
    from the start to each row, itself included, and from each row, itself left out, to the end.
    """
    rows = g.shape[-2]
    levels: list[Level] = []
    before = F.pad(g, (0, 0, 0, (1 << (rows - 1).bit_length()) - rows)).unsqueeze(-2)
    after = torch.zeros_like(before)
    while before.shape[-3] > 1:
        (lower, upper), (left, right) = (x.unflatten(-3, (-1, 2)).unbind(-3) for x in (before, after))
        levels.append((upper.exp(), left.exp()))
        before = torch.cat([lower, upper + lower[..., -1:, :]], dim=-2)
        after = torch.cat([left + upper[..., -1:, :], right], dim=-2)
    return levels, before[..., 0, :rows, :], after[..., 0, :rows, :]


def doubled(matrix: Tensor, later: Tensor, earlier: Tensor) -> Tensor:
    """One doubling of `decayed_products`: `matrix [..., 2n, s, s]` of the halves -> `[..., n, 2s, 2s]`.

    `later` and `earlier`, `[..., n, s, d]`, are the decayed rows of the upper and of the lower halves.
    """
    lower, upper = matrix.unflatten(-3, (-1, 2)).unbind(-3)
    top = torch.cat([lower, torch.zeros_like(lower)], dim=-1)
    return torch.cat([top, torch.cat([later @ earlier.transpose(-1, -2), upper], dim=-1)], dim=-2)


def decayed_products(left: Tensor, k: Tensor, levels: list[Level]) -> Tensor:
    """Strict lower triangle of left_i·(k_j e^(G_i - G_j)); `left`, `k` `[..., T, d]`, `levels` of `decays`.

    Returns `[..., T, T]`.
    """
    rows = k.shape[-2]
    left, k = (F.pad(x, (0, 0, 0, (1 << len(levels)) - rows)) for x in (left, k))
    matrix = left.new_zeros(*left.shape[:-1], 1, 1)
    for level, (upper, lower) in enumerate(levels):
        later, earlier = (x.unflatten(-2, (-1, 2, 1 << level)) for x in (left, k))
        matrix = doubled(matrix, later[..., 1, :, :] * upper, earlier[..., 0, :, :] * lower)
    return matrix[..., 0, :rows, :rows]


def corrections(k: Tensor, wanted: Tensor, strength: Tensor, levels: list[Level]) -> Tensor:
    """U, what every row adds along its key, from activated rows `[M, h, T, d]` and `strength [M, h, T]`.

    `wanted`, `[M, h, T, d]`, is the value of each row less what its key recalls from the state before the block.
    """
    beta = strength.unsqueeze(-1)
    system = beta * decayed_products(k, k, levels)
    return torch.linalg.solve_triangular(system, beta * wanted, upper=False, unitriangular=True)


def remembered(rows: Tensor, before: Tensor, state: Tensor) -> Tensor:
    """(rows e^before) S: what `rows [M, h, T, d]` read of the `state [M, h, d, d]` from before the block."""
    return (rows * before.exp()) @ state


def advance_block(state: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor) -> Tensor:
    """The state after rows `[M, h, T, d]` (`strength [M, h, T]`, all activated) entered `state [M, h, d, d]`.

    Any T: `SEGMENT_ROWS` rows at a time.
    """
    for part in zip(*(x.split(SEGMENT_ROWS, dim=2) for x in (k, v, g, strength)), strict=True):
        keys, values, fall, weight = part
        levels, before, after = decays(fall)
        added = corrections(keys, values - remembered(keys, before, state), weight, levels)
        state = state * before[:, :, -1:].exp().transpose(2, 3) + (keys * after.exp()).transpose(2, 3) @ added
    return state


def states_block(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    plan: ScanPlan,
    lower_bound: float | None,
) -> Tensor:
    """`kda_states` in closed form, `SEGMENT_ROWS` rows at a time; at least float32 inside."""
    with torch.autocast(k.device.type, enabled=False):
        rows = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        return scan_states(plan, partial(advance_dense, advance_block, rows), state.to(rows[0].dtype))


def states_triton(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    plan: ScanPlan,
    lower_bound: float | None,
) -> Tensor:
    """`kda_states` by kernels that carry the state over tiles of 16 rows, float32 inside.

    By `states_block` where Triton is missing.
    """
    if misses_triton():
        return states_block(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    from .triton_states import kda_walked_states

    owned = state if plan.owners is None else state[plan.owners]
    return kda_walked_states(k, v, decay, beta, A_log, dt_bias, owned, plan.walk, lower_bound)


def kda_states(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    anchors: Tensor,
    view: View,
    lower_bound: float | None,
) -> Tensor:
    """The states of `kda` before every anchor, after context rows below it: `[B*N, h, d, d]`, at least float32.

    Args:
        k: `[B, C, h, d]`, as `kda` takes it.
        v: `[B, C, h, d]` likewise.
        decay: `[B, C, h, d]` likewise.
        beta: `[B, C, h]` likewise.
        A_log: `[h]` likewise.
        dt_bias: `[h*d]` likewise.
        state: `[B, h, d, d]` before the first row.
        anchors: `[B, N]`, row numbers into the context, in any order; clamped to `[0, C]`.
        view: names the backend and brings the plan of this batch; without one it is made here from `anchors`.
        lower_bound: as `kda` takes it.

    Returns:
        `[B*N, h, d, d]`, blocks of one row of the batch after each other.

    Raises:
        ViewError: no backend has the name in `view`.

    """
    plan = view.plan or plan_states(anchors.tolist(), k.shape[1], k.device)
    if view.backend == "kda_recurrent":
        return states_recurrent(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    if view.backend == "kda_block":
        return states_block(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    if view.backend == "kda_triton":
        return states_triton(k, v, decay, beta, A_log, dt_bias, state, plan, lower_bound)
    raise ViewError(f"KDA backend {view.backend!r} is none of this draft's kda_recurrent, kda_block, kda_triton")


class BlockSizeError(ValueError):
    """The rows of a draft are no whole number of blocks."""


def fold_blocks(rows: Tensor, block_size: int) -> Tensor:
    """`[B, N*b, H] -> [B*N, b, H]`: every block becomes a sequence of its own.

    Raises `BlockSizeError` when the number of rows is no multiple of `block_size`.
    """
    if rows.shape[1] % block_size:
        raise BlockSizeError(f"{rows.shape[1]} draft rows are no whole number of blocks of {block_size}")
    return rows.reshape(-1, block_size, rows.shape[-1])


def scaled_queries(q: Tensor, wide: torch.dtype) -> Tensor:
    """Unit queries times `d**-0.5`, heads before time, in dtype `wide`: `[M, T, h, d] -> [M, h, T, d]`."""
    return (unit_rows(q.to(wide)) * q.shape[-1] ** -0.5).transpose(1, 2)


def kda_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
    _view: View,
    lower_bound: float | None,
) -> Tensor:
    """`kda` by its recurrence, T steps over a state `[M, h, d, d]`; at least float32 inside."""
    with torch.autocast(q.device.type, enabled=False):
        keys, values, g, strength = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        queries = scaled_queries(q, g.dtype)
        blank = keys.new_zeros(*keys.shape[:2], keys.shape[-1], values.shape[-1])
        current = blank if state is None else state.to(g.dtype)
        out = []
        for t in range(keys.shape[2]):
            current = delta_step(current, keys[:, :, t], values[:, :, t], g[:, :, t], strength[:, :, t])
            out.append(torch.einsum("mhk,mhkv->mhv", queries[:, :, t], current))
        return torch.stack(out, dim=1).to(v.dtype)


def kda_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
    _view: View,
    lower_bound: float | None,
) -> Tensor:
    """`kda` in closed form, the whole of T at once; at least float32 inside."""
    with torch.autocast(q.device.type, enabled=False):
        keys, values, g, strength = activated(k, v, decay, beta, A_log, dt_bias, lower_bound)
        queries = scaled_queries(q, g.dtype)
        levels, before, _ = decays(g)
        start = None if state is None else state.to(g.dtype)
        wanted = values if start is None else values - remembered(keys, before, start)
        added = corrections(keys, wanted, strength, levels)
        seen = decayed_products(queries, keys, levels)
        out = seen @ added + (queries * keys).sum(-1, keepdim=True) * added
        if start is not None:
            out = out + remembered(queries, before, start)
        return out.transpose(1, 2).to(v.dtype)


def kda_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
    view: View,
    lower_bound: float | None,
) -> Tensor:
    """`kda` by one kernel forward and one backward, float32 inside; `kda_block` where Triton is missing."""
    if misses_triton():
        return kda_block(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    from .triton_core import kda_blocks

    return kda_blocks(q, k, v, decay, beta, A_log, dt_bias, state, lower_bound)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state: Tensor | None,
    view: View,
    lower_bound: float | None,
) -> Tensor:
    """Kimi delta attention (arXiv:2510.26692) over M independent sequences of T rows.

    Per row, with g = `log_decay(...)`, b = sigmoid(beta) and unit q and k: the state S forgets, S = diag(e^g) S,
    learns, S = S + k (b (v - Sᵀk))ᵀ, and answers Sᵀq / sqrt(d).

    Args:
        q: `[M, T, h, d]` after its convolution, not normalised.
        k: `[M, T, h, d]` likewise.
        v: `[M, T, h, d]` after its convolution.
        decay: `[M, T, h, d]`, the raw gate of every key channel, before `dt_bias`.
        beta: `[M, T, h]`, raw logits of the strength of every write.
        A_log: `[h]`, logarithm of the decay rate. Rounded through the dtype of `decay`, whatever its own.
        dt_bias: `[h*d]`, added to `decay`. Rounded likewise.
        state: `[M, h, d, d]` before the first row, keys before values; None for zero.
        view: names the backend.
        lower_bound: of the log decay, negative; None for the unbounded gate.

    Returns:
        `[M, T, h, d]` in the dtype of `v`. Inside, everything is at least float32.

    Raises:
        ViewError: no backend has the name in `view`.

    """
    if view.backend == "kda_recurrent":
        return kda_recurrent(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    if view.backend == "kda_block":
        return kda_block(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    if view.backend == "kda_triton":
        return kda_triton(q, k, v, decay, beta, A_log, dt_bias, state, view, lower_bound)
    raise ViewError(f"KDA backend {view.backend!r} is none of this draft's kda_recurrent, kda_block, kda_triton")


def silence(out: Tensor, view: View) -> Tensor:
    """Zero the rows of `out [B, Q, H]` that belong to queries that see nothing, a projection's bias included."""
    if view.live is None:
        return out
    return torch.where(view.live[..., None], out, 0)


class RMSNorm(nn.Module):
    """RMSNorm over the last axis (arXiv:1910.07467), as transformers' Qwen3 computes it.

    Statistics are taken in at least float32; the result is cast back to the dtype of the input before the weight
    multiplies it. `[..., size] -> [..., size]`.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(ones(size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise `hidden [..., size]`."""
        return self.weight * F.rms_norm(hidden, self.weight.shape, eps=self.eps)

    def extra_repr(self) -> str:
        """Size and epsilon, shown by `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


Rope = tuple[Tensor, Tensor]
Memory = NoMemory | RecurrentMemory | CacheLayerMixin


def turn_rows(x: Tensor, rope: Rope, turn_pairs: Callable[..., Tensor]) -> Tensor:
    """Turn the leading r channels of `x [B, h, T, d]` by the trailing T rows of the table; the rest pass.

    Computed in fp32 at least, whatever a mixed-precision policy made of `x` and the table; the dtype of `x` returns.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (table[:, None, -x.shape[-2] :].to(wide) for table in rope)
    width = cos.shape[-1]
    turned = turn_pairs(x[..., :width].to(wide), cos, sin).to(x.dtype)
    if width == x.shape[-1]:
        return turned
    return torch.cat([turned, x[..., width:]], dim=-1)


def turn_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + r/2) of `x [B, h, T, r]` by `cos`, `sin` `[B, 1, T, r]`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def rotate_half(q: Tensor, k: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by their positions, channels i and i + r/2 as a pair (GPT-NeoX, Llama, Qwen).

    `q` `[B, h, Q, d]` are the block's rows and take the trailing Q rows of the table, `k` `[B, g, C+Q, d]` takes all.
    `rope` is `(cos, sin)`, each `[B, C+Q, r]` with r <= d; the leading r channels turn. Dtypes stay what they were.
    """
    return turn_rows(q, rope, turn_half), turn_rows(k, rope, turn_half)


def dense_mask(view: View) -> Tensor | None:
    """The mask of `view` with a row of True for each query that sees nothing, bool `[B, 1, Q, K]`; None: all is seen.

    A softmax over nothing is not a number on some devices and versions, and its gradient poisons every key; such a
    query looks at everything instead, and `silence_heads` removes the result. Raises `ViewError` for any other kind of
    mask: numbers would be added to the scores.
    """
    if view.mask is None:
        return None
    if not isinstance(view.mask, Tensor):
        raise ViewError(f"{view.backend} reads a bool mask, not a {type(view.mask).__name__}")
    if view.mask.dtype != torch.bool:
        raise ViewError(f"{view.backend} reads a bool mask (True: may attend), not one of {view.mask.dtype}")
    return view.mask if view.live is None else view.mask | ~view.live[:, None, :, None]


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat the g heads of `x [B, g, K, d]` in place so that there are `heads`, g to each group of `heads // g`.

    A single head is not copied.
    """
    if x.shape[1] == 1:
        return x.expand(-1, heads, -1, -1)
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def silence_heads(out: Tensor, view: View) -> Tensor:
    """Zero the rows of `out [B, h, Q, d]` that belong to queries that see nothing."""
    if view.live is None:
        return out
    return torch.where(view.live[:, None, :, None], out, 0)


def attend_eager(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it; the softmax in fp32 at least. Needs a bool mask or none."""
    mask = dense_mask(view)
    scores = q @ share_heads(k, q.shape[1]).mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    weights = F.dropout(weights, view.dropout)
    return silence_heads(weights @ share_heads(v, q.shape[1]), view)


def attend_sdpa(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it. Needs a bool mask or none."""
    mask = dense_mask(view)
    if mask is None and k.shape[1] == 1:
        # One head of keys: the heads of a query are further queries of that head, which any fused kernel takes.
        folded = F.scaled_dot_product_attention(q.flatten(1, 2)[:, None], k, v, None, view.dropout, scale=scale)
        return silence_heads(folded[:, 0].unflatten(1, q.shape[1:3]), view)
    if mask is not None:
        # On CUDA no fused kernel takes a mask and grouped heads at once.
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    grouped = k.shape[1] != q.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, mask, view.dropout, scale=scale, enable_gqa=grouped)
    return silence_heads(out, view)


WIDEST_DEFAULT = 128  # channels of a float32 head that torch has tiles for on every card


def flex_options(dtype: torch.dtype, width: int) -> Any:
    """What torch is told about the kernel for heads of `width` channels.

    Left to itself, 2.11 takes a kernel made for decoding for fewer than 128 queries, which it lacks in float32; and for
    wide heads in float32 it takes tiles that need more shared memory than a multiprocessor has.
    """
    if dtype == torch.float32 and width > WIDEST_DEFAULT:
        return {"BACKEND": "TRITON", "fwd_BLOCK_M": 32, "fwd_BLOCK_N": 32, "fwd_num_stages": 1}
    return {"BACKEND": "TRITON"}


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float) -> Any:
    """Flex attention by torch's general kernel."""
    grouped = k.shape[1] != q.shape[1]
    return flex_attention(
        q, k, v, block_mask=mask, scale=scale, enable_gqa=grouped, kernel_options=flex_options(q.dtype, q.shape[-1])
    )


def plain_flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float) -> Tensor:
    """Flex attention without a kernel of its own: inside a compiled region, or in plain operations on CPU."""
    with warnings.catch_warnings():
        # It warns that all scores are held in memory, which is what a CPU run asks for.
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out: Tensor = flex(q, k, v, mask, scale)
        return out


FLEX_VARIANTS = 64  # windows, causal orders, head counts, with and without gradients, that one process may compile


@cache
def compiled_flex() -> Any:
    """Flex attention as one kernel, compiled when first called."""
    return torch.compile(flex, fullgraph=True)


def fused_flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask | None, scale: float) -> Tensor:
    """Flex attention as one kernel. Beyond the compiler's usual 8 variants it would raise."""
    with torch._dynamo.config.patch(recompile_limit=FLEX_VARIANTS):
        out: Tensor = compiled_flex()(q, k, v, mask, scale)
        return out


def attend_flex(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention as `attend` states it. Needs a `BlockMask` or none, and no dropout; else `ViewError`.

    A query that sees nothing needs no care: the kernel sums over no key and gives zeros.
    """
    if view.mask is not None and not isinstance(view.mask, BlockMask):
        raise ViewError(f"flex reads a BlockMask, not a {type(view.mask).__name__}")
    if view.dropout:
        raise ViewError(f"flex drops no attention weights; dropout is {view.dropout}")
    if torch.compiler.is_compiling():
        out: Tensor = flex(q, k, v, view.mask, scale)
        return out
    run = plain_flex if q.device.type == "cpu" else fused_flex
    return run(q, k, v, view.mask, scale)


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention (arXiv:1706.03762) of the backend that `view` names, over the keys that it lets each query see.

    `q` `[B, h, Q, d]`, `k` `[B, g, K, d]`, `v` `[B, g, K, w]` where g divides h: head i reads group i // (h/g).
    Scores are q·k times `scale`. Returns `[B, h, Q, w]` in the dtype of `q`; a query that sees nothing gives exact
    zeros. Raises `ViewError` when no backend has that name, or when it cannot read the view's mask.
    """
    if view.backend == "eager":
        return attend_eager(q, k, v, view, scale)
    if view.backend == "sdpa":
        return attend_sdpa(q, k, v, view, scale)
    if view.backend == "flex":
        return attend_flex(q, k, v, view, scale)
    raise ViewError(f"attention backend {view.backend!r} is none of this draft's eager, sdpa, flex")


Scaling = tuple[tuple[str, Any], ...]


class Turn(NamedTuple):
    """What a rope table depends on. Equal turns share one table.

    `style` is "half" (channels i and i + dim/2 are a pair) or "interleaved" (2i and 2i+1). `dim` is the even number of
    leading channels that the table covers; with scaling `proportional` it is the whole head, and the scaling's
    `partial_rotary_factor` says which share of its pairs turns. `scaling` is None or transformers' rope parameters
    without theta as pairs, lists as tuples: `(("factor", 2.0), ("rope_type", "linear"))`.
    """

    style: str
    dim: int
    theta: float
    scaling: Scaling | None = None
    max_position_embeddings: int = 0


class RecurrentAttention(nn.Module):
    """Kimi delta attention: 16 heads of 128 channels, convolution of 4, each block from the state before its anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(16))
        self.dt_bias = nn.Parameter(torch.zeros(2048))
        self.q_proj = nn.Linear(2560, 2048, bias=False)
        self.k_proj = nn.Linear(2560, 2048, bias=False)
        self.v_proj = nn.Linear(2560, 2048, bias=False)
        self.q_conv1d = ShortConvolution(2048, taps=4)
        self.k_conv1d = ShortConvolution(2048, taps=4)
        self.v_conv1d = ShortConvolution(2048, taps=4)
        self.f_a_proj = nn.Linear(2560, 128, bias=False)
        self.f_b_proj = nn.Linear(128, 2048, bias=False)
        self.b_proj = nn.Linear(2560, 16, bias=False)
        self.g_a_proj = nn.Linear(2560, 128, bias=False)
        self.g_b_proj = nn.Linear(128, 2048, bias=False)
        self.o_norm = GatedRMSNorm(128, eps=1e-06)
        self.o_proj = nn.Linear(2048, 2560, bias=False)

    def forward(
        self, block: Tensor, context: Tensor, anchors: Tensor, view: View, memory: NoMemory | RecurrentMemory
    ) -> Tensor:
        tail, state = memory.recall(context, 3, 16, 128)  # [B, 3, 2560]
        read = torch.cat([tail, context], dim=1)  # [B, C+3, 2560]
        k = self.k_conv1d(self.k_proj(read), view)[:, 3:].unflatten(-1, (16, 128))  # [B, C, 16, 128]
        v = self.v_conv1d(self.v_proj(read), view)[:, 3:].unflatten(-1, (16, 128))  # [B, C, 16, 128]
        decay = self.f_b_proj(self.f_a_proj(context)).unflatten(-1, (16, 128))  # [B, C, 16, 128]
        beta = self.b_proj(context)  # [B, C, 16]
        states = kda_states(k, v, decay, beta, self.A_log, self.dt_bias, state, anchors, view, -5.0)
        states = memory.commit(states, read, anchors, 3, context.shape[1] + block.shape[1])  # [BN, 16, 128, 128]
        rows = fold_blocks(block, 16)  # [BN, 16, 2560]
        before = torch.cat([rows_before(read, anchors, 3), rows], dim=1)  # [BN, 19, 2560]
        q = self.q_conv1d(self.q_proj(before), view)[:, 3:].unflatten(-1, (16, 128))  # [BN, 16, 16, 128]
        k = self.k_conv1d(self.k_proj(before), view)[:, 3:].unflatten(-1, (16, 128))  # [BN, 16, 16, 128]
        v = self.v_conv1d(self.v_proj(before), view)[:, 3:].unflatten(-1, (16, 128))  # [BN, 16, 16, 128]
        decay = self.f_b_proj(self.f_a_proj(rows)).unflatten(-1, (16, 128))  # [BN, 16, 16, 128]
        beta = self.b_proj(rows)  # [BN, 16, 16]
        out = kda(q, k, v, decay, beta, self.A_log, self.dt_bias, states, view, -5.0)  # [BN, 16, 16, 128]
        gate = self.g_b_proj(self.g_a_proj(rows))  # [BN, 16, 2048]
        out = self.o_norm(out, gate.unflatten(-1, (16, 128)), view).flatten(-2)  # [BN, 16, 2048]
        return silence(self.o_proj(out).view_as(block), view)  # [B, Q, 2560]


class ContextAttention(nn.Module):
    """Grouped-query attention: 32 query heads on 8 key-value heads of 128 channels, half rope."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2560, 4096, bias=False)
        self.k_proj = nn.Linear(2560, 1024, bias=False)
        self.v_proj = nn.Linear(2560, 1024, bias=False)
        self.o_proj = nn.Linear(4096, 2560, bias=False)
        self.q_norm = RMSNorm(128, eps=1e-06)
        self.k_norm = RMSNorm(128, eps=1e-06)

    def forward(self, block: Tensor, context: Tensor, rope: Rope, view: View, memory: Memory) -> Tensor:
        keyed = torch.cat([context, block], dim=1)  # [B, C+Q, 2560]
        q = self.q_proj(block).unflatten(-1, (32, 128)).transpose(1, 2)  # [B, 32, Q, 128]
        k = self.k_proj(keyed).unflatten(-1, (8, 128)).transpose(1, 2)  # [B, 8, C+Q, 128]
        v = self.v_proj(keyed).unflatten(-1, (8, 128)).transpose(1, 2)  # [B, 8, C+Q, 128]
        q = self.q_norm(q)  # [B, 32, Q, 128]
        k = self.k_norm(k)  # [B, 8, C+Q, 128]
        q, k = rotate_half(q, k, rope)  # [B, 32, Q, 128]
        k, v = memory.update(k, v)  # [B, 8, P+C+Q, 128]
        out = attend(q, k, v, view, scale=128**-0.5)  # [B, 32, Q, 128]
        out = out.transpose(1, 2).flatten(-2)  # [B, Q, 4096]
        return self.o_proj(out)  # [B, Q, 2560]


class GatedMLP(nn.Module):
    """Gated MLP of 9728 channels with silu."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(2560, 9728, bias=False)
        self.up_proj = nn.Linear(2560, 9728, bias=False)
        self.down_proj = nn.Linear(9728, 2560, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        gate = F.silu(self.gate_proj(hidden))  # [B, Q, 9728]
        return self.down_proj(gate * self.up_proj(hidden))  # [B, Q, 2560]


class RecurrentLayer(GradientCheckpointingLayer):
    """Decoder layer around the attention `recurrent`."""

    window = None
    is_causal = False
    turn = None
    memory = "state"

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = RecurrentAttention()
        self.mlp = GatedMLP()
        self.input_layernorm = RMSNorm(2560, eps=1e-06)
        self.post_attention_layernorm = RMSNorm(2560, eps=1e-06)

    def forward(
        self, block: Tensor, context: Tensor, anchors: Tensor, rope: Rope | None, view: View, memory: Memory
    ) -> Tensor:
        normed = self.input_layernorm(block)  # [B, Q, 2560]
        block = block + self.self_attn(normed, context, anchors, view, memory)  # [B, Q, 2560]
        return block + self.mlp(self.post_attention_layernorm(block))  # [B, Q, 2560]


class ContextLayer(GradientCheckpointingLayer):
    """Decoder layer around the attention `context`."""

    window = None
    is_causal = False
    turn = Turn(style="half", dim=128, theta=1000000.0, max_position_embeddings=40960)
    memory = "keys"

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = ContextAttention()
        self.mlp = GatedMLP()
        self.input_layernorm = RMSNorm(2560, eps=1e-06)
        self.post_attention_layernorm = RMSNorm(2560, eps=1e-06)

    def forward(
        self, block: Tensor, context: Tensor, anchors: Tensor, rope: Rope | None, view: View, memory: Memory
    ) -> Tensor:
        normed = self.input_layernorm(block)  # [B, Q, 2560]
        block = block + self.self_attn(normed, context, rope, view, memory)  # [B, Q, 2560]
        return block + self.mlp(self.post_attention_layernorm(block))  # [B, Q, 2560]


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


class DraftInputError(ValueError):
    """A call that does not fit the draft; the message has the shapes."""


class Unary(NamedTuple):
    """What a slot says of its token before any other token is known.

    `logits [.., V_draft]` are the draft's own; `scores [.., V']` those of the tokens that can be chosen, and
    `candidates` the target's ids of these: `[V']` alike for all rows, `[.., V']` row by row, None: column i is token i.
    """

    logits: Tensor
    scores: Tensor
    candidates: Tensor | None

    def at(self, step: int) -> "Unary":
        """Step `step` of `[B, D, ..]`, as `[B, ..]`."""
        own = self.candidates
        if own is not None and own.ndim > 1:
            own = own[:, step]
        return Unary(self.logits[:, step], self.scores[:, step], own)

    def tokens(self, choice: Tensor) -> Tensor:
        """The target's ids of the chosen columns `choice [..]`."""
        if self.candidates is None:
            return choice
        if self.candidates.ndim == 1:
            return self.candidates[choice]
        return self.candidates.gather(-1, choice[..., None]).squeeze(-1)


class HeadRows(NamedTuple):
    """What is left of N blocks a row once the heads have looked at the tokens before each slot.

    `hidden [B, N, T, H_out]` is what the output head reads, `features [B, N, T, r]` what the correction of the logits
    reads (None: there is none), `confidence [B, N, T]` a logit of acceptance (None: no such head). Rows are independent
    of each other from here on, so logits may be made for some of them at a time.
    """

    hidden: Tensor
    features: Tensor | None
    confidence: Tensor | None


class BlockScores(NamedTuple):
    """Scores of every predicted token of N blocks a row, with the tokens before them given.

    `logits [B, N, T, V_draft]` are those of `Unary`; `scores [B, N, T, V']` are corrected by the family's head and
    belong to `candidates`, as in `Unary`; `confidence [B, N, T]` is a logit of acceptance, or None.
    """

    logits: Tensor
    scores: Tensor
    candidates: Tensor | None
    confidence: Tensor | None


def greedy(scores: Tensor) -> Tensor:
    """The column of the highest score, `[.., V'] -> [..]`."""
    return scores.argmax(-1)


Choose = Callable[[Tensor], Tensor]


class Drafted(NamedTuple):
    """The proposal of a decoding step: `tokens [B, D]`, ids of the target, chosen by `scores [B, D, V']`.

    `candidates` are the ids of the columns of `scores`, as in `Unary`; `confidence [B, D]` is a logit of acceptance,
    or None.
    """

    tokens: Tensor
    scores: Tensor
    candidates: Tensor | None
    confidence: Tensor | None


class Drafting(nn.Module):
    """The part of a draft model behind its final norm. Here every slot speaks for itself.

    All families have the same two forms. `block_scores` is told the token before each predicted one and serves
    training; `draft_tokens` finds them one after the other and serves decoding; given the tokens that it drafted, the
    first gives the scores of the second. A family overrides `slots`, says by `features` and `step_features` what its
    correction of the logits reads, and by `correction_weight` what maps that to the vocabulary.

    `hidden` is always what the final norm returns (`hidden_states[-1]` of a forward), of the draft's width H.
    """

    config: DraftConfig
    lm_head: nn.Module
    output_proj: nn.Module | None
    owns_head: bool
    d2t: Tensor

    def add_heads(self) -> None:
        """Register the modules of the family's heads; DFlash has none."""

    @property
    def slots(self) -> SlotRule:
        """Which slot predicts which token."""
        return own_slots(self.config.block_size)

    @property
    def walks(self) -> bool:
        """Whether the scores of a slot depend on the token drafted before it."""
        return False

    @property
    def correction_weight(self) -> Tensor | None:
        """`[V_draft, r]`: logits gain `features @ correction_weight.T`; None where nothing is corrected."""
        return None

    def features(
        self,
        hidden: Tensor,
        previous: Tensor,
        embed: nn.Module | None,
    ) -> Tensor | None:
        """What the correction reads, `[B, N, T, r]`, of `hidden [B, N, T, H]` and `previous [B, N, T]`; None: nothing.

        T counts the steps of a block, in order. `embed` is the target's embedding, for families that read that of the
        previous tokens.
        """
        return None

    def step_features(
        self,
        step: int,
        hidden: Tensor,
        previous: Tensor,
        embed: nn.Module | None,
        state: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """`features` of one step, `[B, r]`, of `hidden [B, H]` and `previous [B]`, and the state for the next step."""
        return None, state

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """Logits of acceptance `[.., T]` of `hidden [.., T, H]` and `previous [.., T]`; None without such a head."""
        return None

    def outgoing(self, hidden: Tensor) -> Tensor:
        """What the output head reads, `[.., H] -> [.., H_out]`: target-wide unless the draft owns its head."""
        return hidden if self.output_proj is None else self.output_proj(hidden)

    def logits(self, hidden: Tensor, lm_head: nn.Module | None = None) -> Tensor:
        """Logits `[.., V_draft]` of `hidden [.., H_out]`, scaled and capped as the configuration says.

        `hidden` is the `last_hidden_state` of a forward. `lm_head` is the target's output head; a draft with a reduced
        vocabulary uses its own. Raises `DraftInputError` when there is neither.
        """
        head = self.lm_head if self.owns_head else lm_head
        if head is None:
            raise DraftInputError("this draft has no output head of its own: give the target's")
        logits = head(hidden)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def unary(self, hidden: Tensor, lm_head: nn.Module | None = None) -> Unary:
        """What `hidden [.., H_out]` says of the tokens by itself; see `Unary`."""
        logits = self.logits(hidden, lm_head)
        return Unary(logits, logits, self.token_ids() if self.owns_head else None)

    def token_ids(self) -> Tensor:
        """The target's id of every row of the draft's own output head, `[V_draft]`."""
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def corrected(self, unary: Unary, features: Tensor | None) -> Tensor:
        """`unary.scores [.., V']` with the correction that `features [.., r]` ask for."""
        weight = self.correction_weight
        if features is None or weight is None:
            return unary.scores
        return unary.scores + F.linear(features, weight)

    def block_rows(self, hidden: Tensor, previous: Tensor, embed: nn.Module | None = None) -> HeadRows:
        """Everything about `hidden [B, N·b, H]` that needs more than one slot, given `previous [B, N, T]`.

        `previous` are target ids of the tokens before the predicted ones, the anchor's first. Raises `DraftInputError`
        when the two do not fit, or when `embed`, the target's embedding, is needed and None.
        """
        if hidden.ndim != 3 or hidden.shape[1] % self.slots.size:
            raise DraftInputError(f"hidden {list(hidden.shape)} is not whole blocks of {self.slots.size} slots")
        rows = self.slots.predicting(hidden)
        if previous.shape != rows.shape[:3]:
            raise DraftInputError(f"previous {list(previous.shape)} must be {list(rows.shape[:3])}, a token a step")
        return HeadRows(self.outgoing(rows), self.features(rows, previous, embed), self.confidence(rows, previous))

    def block_scores(
        self, hidden: Tensor, previous: Tensor, lm_head: nn.Module | None = None, embed: nn.Module | None = None
    ) -> BlockScores:
        """Scores of every predicted token of `hidden [B, N·b, H]`, given the tokens `previous [B, N, T]` before them.

        `lm_head` and `embed` are the target's; see `block_rows` for what is raised. All logits are held at once:
        training makes them from `block_rows` by `unary` and `corrected`, some rows at a time.
        """
        rows = self.block_rows(hidden, previous, embed)
        unary = self.unary(rows.hidden, lm_head)
        return BlockScores(unary.logits, self.corrected(unary, rows.features), unary.candidates, rows.confidence)

    def draft_tokens(
        self,
        hidden: Tensor,
        anchor_tokens: Tensor,
        lm_head: nn.Module | None = None,
        embed: nn.Module | None = None,
        choose: Choose = greedy,
    ) -> Drafted:
        """Propose D tokens after `anchor_tokens [B]` from one block a row, `hidden [B, b, H]`.

        `choose` picks a column of scores, `[.., V'] -> [..]`, greedily unless given. `lm_head` and `embed` are the
        target's. Raises `DraftInputError` for another number of rows, or when a module is needed and None.
        """
        if hidden.ndim != 3 or hidden.shape[1] != self.slots.size:
            raise DraftInputError(f"hidden {list(hidden.shape)} must be one block of {self.slots.size} slots a row")
        rows = self.slots.drafting(hidden)
        unary = self.unary(self.outgoing(rows), lm_head)
        if self.walks:
            tokens, scores = self.walk(rows, unary, anchor_tokens, embed, choose)
        else:
            tokens, scores = unary.tokens(choose(unary.scores)), unary.scores
        previous = torch.cat([anchor_tokens[:, None], tokens[:, :-1]], dim=1)
        return Drafted(tokens, scores, unary.candidates, self.confidence(rows, previous))

    def walk(
        self, rows: Tensor, unary: Unary, anchor_tokens: Tensor, embed: nn.Module | None, choose: Choose
    ) -> tuple[Tensor, Tensor]:
        """Choose the tokens of `rows [B, D, H]` one after the other: tokens `[B, D]` and their scores `[B, D, V']`."""
        previous, state = anchor_tokens, None
        tokens, scores = [], []
        for step in range(rows.shape[1]):
            features, state = self.step_features(step, rows[:, step], previous, embed, state)
            scores.append(self.corrected(unary.at(step), features))
            previous = unary.at(step).tokens(choose(scores[-1]))
            tokens.append(previous)
        return torch.stack(tokens, dim=1), torch.stack(scores, dim=1)

    def target_embeddings(self, tokens: Tensor, embed: nn.Module | None) -> Tensor:
        """Target embeddings `[.., H_target]` of `tokens [..]`, scaled as the draft's input is.

        Raises `DraftInputError` when `embed`, the target's embedding, is None.
        """
        if embed is None:
            raise DraftInputError("the heads of this draft read embeddings of tokens: give the target's `embed`")
        found = embed(tokens)
        scale = self.config.input_embedding_scale
        return found if scale == 1.0 else found * scale


# They run heads of any width; others were chosen for the widths of one form.
ANY_WIDTH = ("eager", "sdpa")
# What a form multiplies by in another order than the layer does, by its name in the attention.
REGROUPED = "kv_b_proj"


def keeps_plain(attention: nn.Module, backend: str, chosen: str) -> str | None:
    """Why `attention` decodes in the form that it trains in, run by `backend` where `chosen` was; None: it need not.

    A form reads a weight where the plain one calls the layer around it: an adapter or a quantised layer in its place
    would be left out.
    """
    if backend not in (chosen, *ANY_WIDTH):
        return f"backend {backend} was forced, and the decoding form was made for {', '.join((chosen, *ANY_WIDTH))}"
    layer = getattr(attention, REGROUPED)
    if type(layer) is not nn.Linear or not layer.weight.is_floating_point():
        return (
            f"its {REGROUPED} is a {type(layer).__name__} of {layer.weight.dtype}, whose weight alone says too little"
        )
    return None


class DecodingForms(nn.Module):
    """The part of a draft model that gives its attentions the form of each phase.

    `decoding_forms` maps, for each device type, classes that train to those that decode. A forward settles the forms
    itself, except within a region that torch compiles, which runs them as it finds them: prepare first.
    """

    decoding_forms: ClassVar[Mapping[str, Mapping[type, type]]] = {}
    backends: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]]
    layers: nn.ModuleList

    def layer_backends(self, phase: str, device: str) -> tuple[str, ...]:
        """The backend of every layer in `phase` on `device`; a model adds overrides."""
        return self.backends[phase, device]

    def prepare_decoding(self, device: str | None = None) -> tuple[str, ...]:
        """Give every attention its decoding form on `device` (by default where the parameters lie).

        Returns why some keep the form that they train in, one line for each. `train()` undoes it.
        """
        place = device or next(self.parameters()).device.type
        return self.settle_forms("decoding", place, self.layer_backends("decoding", place))

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as every module does; with training come the forms that train."""
        if mode and hasattr(self, "layers"):
            self.settle_forms("training", "cpu", self.layer_backends("training", "cpu"))
        return super().train(mode)

    def settle_forms(self, phase: str, device: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Give every attention its form in `phase` on `device`, where the backends `names` run the layers.

        Returns why attentions that have a decoding form do not take it. Does nothing while torch compiles.
        """
        if not self.decoding_forms or torch.compiler.is_compiling():
            return ()
        plain = {form: kind for forms in self.decoding_forms.values() for kind, form in forms.items()}
        forms = self.decoding_forms.get(device, {}) if phase == "decoding" else {}
        chosen, reasons = self.backends.get((phase, device), names), []
        for index, (layer, name, best) in enumerate(zip(self.layers, names, chosen, strict=True)):
            attention: Any = layer.self_attn
            kind = plain.get(type(attention), type(attention))
            reason = keeps_plain(attention, name, best) if kind in forms else None
            if reason is not None:
                reasons.append(f"layer {index}: {reason}")
            wanted = forms.get(kind, kind) if reason is None else kind
            if type(attention) is not wanted:
                attention.__class__ = wanted
        return tuple(reasons)


# bfloat16 steps of these would move every later decay.
FP32_PARTS = ["A_log", "dt_bias"]
# transformers' words for attention, and ours.
ATTENTION_WORDS = {"flex_attention": "flex", "flash_attention_2": "flash", "flash_attention_3": "flash"}


def forced_names(wish: str, available: tuple[str, ...], source: str) -> tuple[str, ...]:
    """The backends that `wish`, names joined by commas, asks for; raise `ValueError` for one that is not there."""
    names = tuple(ATTENTION_WORDS.get(name.strip(), name.strip()) for name in wish.split(","))
    for name in names:
        if name not in available:
            raise ValueError(f"{source} asks for backend {name!r}; this draft has {', '.join(available)}")
    return names


def forced_over(chosen: str, forced: tuple[str, ...]) -> str:
    """The forced backend of the same operation as `chosen`, else `chosen`."""
    is_kda = chosen.startswith("kda_")
    return next((name for name in forced if name.startswith("kda_") == is_kda), chosen)


# Names of z-lab's, SpecForge's and earlier transformers' calls, and what they are called here.
CALL_NAMES = {
    "noise_embedding": "noise_embeds",
    "target_hidden": "context_hidden_states",
    "past_key_values": "cache",
    "anchor_positions": "anchors",
}
# Arguments of the same calls that say nothing a draft does not know: causality is a fact of each layer.
SILENT_NAMES = ("use_cache", "return_dict", "is_causal", "cache_position")


def named_inputs(given: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge arguments under other libraries' names into `given`; raise `TypeError` for an unknown or a doubled name."""
    merged = dict(given)
    for name, value in others.items():
        ours = CALL_NAMES.get(name)
        if ours is None and name not in SILENT_NAMES:
            raise TypeError(f"a draft takes no argument {name!r}; besides its own it knows {', '.join(CALL_NAMES)}")
        if ours is None or value is None:
            continue
        if merged[ours] is not None:
            raise TypeError(f"{ours} was given twice, once as {name}")
        merged[ours] = value
    return merged


class StatelessLayer(LinearAttentionLayer):
    """Entry in a cache for a layer that keeps nothing. It counts no rows; transformers expects no count of its base."""

    is_croppable = True

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing to drop."""

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Nothing to repeat."""

    def batch_select_indices(self, indices: Tensor) -> None:
        """Nothing to select."""


def fitted_layer(layer: object, kind: str) -> Any:
    """The cache layer that a draft layer of `kind` (`keys`, `state`, `none`) needs: `layer` itself where it fits.

    transformers makes a cache from `layer_types`, whose word for both recurrent kinds means a layer that would store
    unverified rows. Raises `TypeError` for a layer that has been written or cannot hold what `kind` keeps.
    """
    fits = {"keys": DynamicLayer, "state": RecurrentMemory, "none": StatelessLayer}[kind]
    if isinstance(layer, fits):
        return layer
    if kind == "keys":
        raise TypeError(f"{type(layer).__name__} cannot be cropped after a draft step: give a DynamicCache")
    return fits()


def memories(cache: Cache | None, kinds: Sequence[str]) -> tuple[Memory, ...]:
    """One memory per layer of the draft: those of `cache`, which is fitted to the draft on first sight.

    `kinds` says what each layer keeps: `keys`, a `state` or `none`. Sliding layers are told to keep what a later `crop`
    needs. Raises `ValueError` when the cache was made for another number of layers, `TypeError` for a static one.
    """
    if cache is None:
        return tuple(NoMemory() for _ in kinds)
    if not cache.layers:
        cache.layers.extend(DynamicLayer() for _ in kinds)
    if len(cache.layers) != len(kinds):
        raise ValueError(
            f"the cache has {len(cache.layers)} layers and the draft {len(kinds)}: make it from the draft's config"
        )
    fitted = [fitted_layer(layer, kind) for layer, kind in zip(cache.layers, kinds, strict=True)]
    cache.layers[:] = fitted
    cache.activate_past_recording()
    return tuple(NoMemory() if kind == "none" else layer for kind, layer in zip(kinds, fitted, strict=True))


def fitting(name: str, given: Tensor, like: Tensor) -> Tensor:
    """Return `given` when it has the rows of `like [B, T]` for each row of the batch or for one; else raise."""
    if given.ndim != 2 or given.shape[0] not in (1, like.shape[0]) or given.shape[1] != like.shape[1]:
        raise DraftInputError(f"{name} {list(given.shape)} must be {list(like.shape)}")
    return given


def nothing_to_do() -> None:
    """Leave parameters as they are: they have the form that transformers 5 reads."""


class RopeFacts:
    """What transformers' rope functions read of a configuration, for one head of `dim` turned channels."""

    def __init__(self, dim: int, theta: float, scaling: Scaling, longest: int) -> None:
        self.head_dim = dim
        self.hidden_size = dim
        self.num_attention_heads = 1
        self.max_position_embeddings = longest
        self.rope_parameters = {**dict(scaling), "rope_theta": theta}
        # An attribute, not a method: transformers calls it, and a bundle keeps only methods that its own code calls.
        self.standardize_rope_params = nothing_to_do


class RopeScalingError(ValueError):
    """A rope scaling that no function of transformers can compute."""


def init_frequencies(facts: RopeFacts, device: torch.device, length: Tensor | int | None) -> tuple[Tensor, float]:
    """Call transformers' function of the scaling's type; `length` is what it calls `seq_len`.

    Returns `[dim / 2]` fp32 on `device` and the factor on cos and sin. Raises `RopeScalingError` when the type is
    unknown or a key that it needs is missing.
    """
    kind = facts.rope_parameters.get("rope_type")
    if kind not in ROPE_INIT_FUNCTIONS:
        raise RopeScalingError(f"rope_type {kind!r} is none of {', '.join(sorted(ROPE_INIT_FUNCTIONS))}")
    if kind != "proportional" and facts.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise RopeScalingError(f"partial_rotary_factor belongs to proportional scaling; {kind} turns all its channels")
    try:
        return ROPE_INIT_FUNCTIONS[kind](facts, device, seq_len=length)
    except KeyError as key:
        raise RopeScalingError(f"rope scaling {kind} needs the key {key.args[0]}") from key


def scaled_frequencies(
    dim: int,
    theta: float,
    scaling: Scaling,
    max_position_embeddings: int,
    device: torch.device,
) -> tuple[Tensor, Tensor | None, float]:
    """Frequencies below the original length, those beyond it where they differ, and the factor on cos and sin.

    Returns `[dim / 2]` fp32; for longrope a second `[dim / 2]` from the long factors, otherwise None; a plain number.
    Raises `RopeScalingError` as `init_frequencies` does.
    """
    facts = RopeFacts(dim, theta, scaling, max_position_embeddings)
    frequencies, factor = init_frequencies(facts, device, None)
    if facts.rope_parameters["rope_type"] != "longrope":
        return frequencies, None, factor
    beyond = facts.rope_parameters["original_max_position_embeddings"] + 1
    return frequencies, init_frequencies(facts, device, beyond)[0], factor


def base_frequencies(turn: Turn, device: torch.device) -> tuple[Tensor, Tensor | None, float]:
    """`[dim / 2]` fp32 radians per position, longrope's second set or None, and the factor on cos and sin."""
    if turn.scaling is not None:
        return scaled_frequencies(turn.dim, turn.theta, turn.scaling, turn.max_position_embeddings, device)
    exponents = torch.arange(0, turn.dim, 2, device=device, dtype=torch.float32) / turn.dim
    return 1.0 / turn.theta**exponents, None, 1.0


frequency_memo: dict[tuple[object, torch.device], tuple[Tensor, Tensor | None, float]] = {}


def kept_frequencies(turn: Turn, device: torch.device) -> tuple[Tensor, Tensor | None, float]:
    """`base_frequencies` from the memo. A compiled region computes them: its graph must own what it reads."""
    if torch.compiler.is_compiling():
        return base_frequencies(turn, device)
    key = (turn, device)
    if key not in frequency_memo:
        with torch.inference_mode(False):
            frequencies = base_frequencies(turn, device)
        # Fake and functional tensors belong to one trace and must not outlive it.
        if type(frequencies[0]) is not Tensor:
            return frequencies
        frequency_memo[key] = frequencies
    return frequency_memo[key]


def frequencies_at_length(
    dim: int,
    theta: float,
    scaling: Scaling,
    max_position_embeddings: int,
    length: Tensor,
) -> Tensor:
    """Frequencies of dynamic scaling (NTK-aware) for a call that reaches `length` positions, a 0-d integer tensor.

    Below `max_position_embeddings` they are the unscaled ones. Returns `[dim / 2]` fp32 on the device of `length`.
    """
    facts = RopeFacts(dim, theta, scaling, max_position_embeddings)
    return init_frequencies(facts, length.device, length)[0]


def call_frequencies(turn: Turn, positions: Tensor) -> tuple[Tensor, float]:
    """`[dim / 2]` fp32 radians per position for this call, and the factor on cos and sin.

    `dynamic` and `longrope` depend on a length: the largest of `positions` plus one, over the whole batch, as in
    transformers. A call is judged by itself, where transformers' `dynamic` modules also remember their longest call;
    the two agree while the length of the calls does not shrink, as in one generation.
    """
    frequencies, beyond, factor = kept_frequencies(turn, positions.device)
    keys = dict(turn.scaling or ())
    if beyond is not None:
        length = positions.max() + 1
        return torch.where(length > keys["original_max_position_embeddings"], beyond, frequencies), factor
    if turn.scaling is not None and keys["rope_type"] == "dynamic":
        length = positions.max() + 1
        fields = turn.dim, turn.theta, turn.scaling, turn.max_position_embeddings
        return frequencies_at_length(*fields, length), factor
    return frequencies, factor


def rope_table(turn: Turn, positions: Tensor) -> Rope:
    """Cosines and sines of every row, times the scaling's attention factor.

    `positions` `[B, T]` are integers, context rows before block rows. Returns `(cos, sin)`, each `[B, T, turn.dim]`
    fp32; channels i and i + dim/2 hold the angle of pair i for both styles. Raises `RopeScalingError` when the scaling
    names no type that transformers knows, or lacks one of its keys.
    """
    frequencies, factor = call_frequencies(turn, positions)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * factor, angles.sin() * factor


class Queries(NamedTuple):
    """Rows that ask, one of each field per query; shapes broadcast against `Keys`.

    `block` is the number of the query's block (-2: dropped), `anchor` the position of its block's
    anchor, `position` its own (anchor + slot), `start` the first position of its document, None without packing.
    """

    block: Tensor
    anchor: Tensor
    position: Tensor
    start: Tensor | None


class Keys(NamedTuple):
    """Rows that are seen. `block` is -1 for a context row, the number of the block for a row of a block."""

    block: Tensor
    position: Tensor


def queries_like(query: Queries, change: Callable[[Tensor], Tensor]) -> Queries:
    """`query` with `change` applied to every field that is there."""
    start = None if query.start is None else change(query.start)
    return Queries(change(query.block), change(query.anchor), change(query.position), start)


def sees(query: Queries, key: Keys, window: int | None, is_causal: bool) -> Tensor:
    """Whether each query may see each key, bool, in the shape that the fields broadcast to.

    A context key is seen when it stands before the anchor (and not before the document), a key of a block when it is
    of the query's own block and, if `is_causal`, not later than the query. A window of W leaves the keys that are less
    than W positions away, the query's own included. A dropped block (block -2, anchor -1) sees nothing.
    """
    before = (key.block == -1) & (key.position < query.anchor)
    if query.start is not None:
        before = before & (key.position >= query.start)
    own = key.block == query.block
    if is_causal:
        own = own & (key.position <= query.position)
    if window is None:
        return before | own
    near = (key.position > query.position - window) & (key.position < query.position + window)
    return (before | own) & near


FAR = 2**31 - 1  # what the position that nobody sees becomes in 32 bits


def narrow(positions: Tensor) -> Tensor:
    """Positions in 32 bits, which kernels compare faster; those beyond become `FAR`."""
    return positions.clamp(max=FAR).int()


TILE = 128


class TileEnds(NamedTuple):
    """What the context rows of each tile of keys span, `[B, T]` each: a tile without any has first FAR and last -1.

    `first` and `last` are the ends of the positions that can be seen, `greatest` counts the others as FAR.
    """

    first: Tensor
    last: Tensor
    greatest: Tensor


def reach_context(query: Queries, ends: TileEnds, window: int | None) -> tuple[Tensor, Tensor]:
    """Whether each query sees some, and all, of the context rows of each tile: two `[B, Q, T]` bool."""
    first, last, greatest = (end[:, None] for end in ends)
    low = torch.zeros_like(query.anchor) if query.start is None else query.start
    if window is not None:
        low = torch.maximum(low, query.position - window + 1)
    low, high = low[..., None], query.anchor[..., None] - 1
    some = (low <= high) & (first <= high) & (last >= low)
    return some, (first >= low) & (greatest <= high)


def tile_ends(context: Tensor, tiles: int) -> TileEnds:
    """Ends of `context [B, C]`, 32-bit positions, in each of `tiles` tiles."""
    pad = (0, tiles * TILE - context.shape[1])
    known = torch.where(context == FAR, -1, context)
    return TileEnds(
        first=F.pad(context, pad, value=FAR).unflatten(1, (tiles, TILE)).amin(-1),
        last=F.pad(known, pad, value=-1).unflatten(1, (tiles, TILE)).amax(-1),
        greatest=F.pad(context, pad, value=-1).unflatten(1, (tiles, TILE)).amax(-1),
    )


def reach_block(
    query: Queries, starts: Tensor, rows: int, size: int, window: int | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Whether each query sees some, and all, of the block rows of each tile: two `[B, Q, T]` bool.

    Block rows stand behind `rows` context rows, `size` to a block; `starts [T]` are the first rows of the tiles.
    """
    number = torch.arange(query.position.shape[1], device=starts.device)
    slot = number % size
    base = rows + number - slot
    low = base if window is None else base + (slot - window + 1).clamp(min=0)
    reach = size - 1 if window is None else (slot + window - 1).clamp(max=size - 1)
    high = base + (slot if is_causal else reach)
    low, high, kept = low[:, None], high[:, None], (query.block >= 0)[..., None]
    end = starts + TILE - 1
    some = kept & (low <= end) & (high >= starts)
    every = kept & (low <= starts.clamp(min=rows)) & (high >= end)
    return some, every | (end < rows)


def ordered_tiles(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Counts `[B, 1, S]` and columns `[B, 1, S, T]`, int32, of `chosen [B, S, T]` bool: chosen columns first."""
    marks = chosen[:, None].int()
    columns = marks.argsort(dim=-1, descending=True, stable=True)
    return marks.sum(-1, dtype=torch.int32), columns.int()


def pair_predicate(query: Queries, key: Keys, window: int | None, is_causal: bool) -> Callable[..., Tensor]:
    """The predicate as flex attention asks it: of one batch row, head, query row and key row.

    `query` has fields of `[B, Q]`; `key.block` is `[K]` and `key.position` `[B, K]`.
    """
    block, anchor, position, start = query
    key_block, key_position = key

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        first = None if start is None else start[b, q]
        asks = Queries(block[b, q], anchor[b, q], position[b, q], first)
        return sees(asks, Keys(key_block[kv], key_position[b, kv]), window, is_causal)

    return visible


def tile_mask(query: Queries, key: Keys, rows: int, size: int, window: int | None, is_causal: bool) -> BlockMask:
    """The block mask of `sees` for queries in blocks of `size` and keys of `rows` context rows, then the same blocks.

    `query` has fields of `[B, Q]`; `key.block` is `[K]` and `key.position` `[B, K]`. The lists of tiles are those that
    `create_block_mask` finds; where positions of a tile are not consecutive a tile may be listed as partial in vain.
    """
    query = queries_like(query, narrow)
    key = Keys(narrow(key.block), narrow(key.position))
    queries, keys = query.position.shape[1], key.position.shape[1]
    tiles, strips = -(-keys // TILE), -(-queries // TILE)
    starts = torch.arange(tiles, device=key.position.device) * TILE
    some_context, all_context = reach_context(query, tile_ends(key.position[:, :rows], tiles), window)
    some_block, all_block = reach_block(query, starts, rows, size, window, is_causal)
    inside = starts + TILE <= keys
    pad = (0, 0, 0, strips * TILE - queries)
    some = F.pad(some_context | some_block, pad).unflatten(1, (strips, TILE)).any(2)
    full = F.pad(all_context & all_block & inside, pad).unflatten(1, (strips, TILE)).all(2)
    return BlockMask.from_kv_blocks(
        *ordered_tiles(some & ~full),
        *ordered_tiles(full),
        BLOCK_SIZE=TILE,
        mask_mod=pair_predicate(query, key, window, is_causal),
        seq_lengths=(queries, keys),
    )


MASK_FORMS = {"eager": "dense", "sdpa": "dense", "flex": "tiles", "flash": "band"}


class Visibility:
    """Who sees whom in one forward; `view` answers for one layer.

    `anchors` `[B, N]` are the positions of the blocks' anchors, -1 for a dropped block; `context` `[B, S]` the
    positions of all context rows, `NEVER` for padding; both int64. A block has `size` slots; its slot k stands at its
    anchor + k. `everything` promises what cannot be known without looking at data: one block that stands right behind
    the context, whose rows follow each other and are all real. `starts` `[B, N]` are the first positions of the blocks'
    documents when several are packed into a row.

    Raises `ViewError` when shapes do not fit or `everything` is promised for more than one block.
    """

    def __init__(
        self, anchors: Tensor, context: Tensor, size: int, everything: bool = False, starts: Tensor | None = None
    ) -> None:
        if anchors.ndim != 2 or context.ndim != 2 or anchors.shape[0] != context.shape[0]:
            raise ViewError(
                f"anchors {list(anchors.shape)} and context {list(context.shape)} must be [B, N] and [B, S]"
            )
        if starts is not None and starts.shape != anchors.shape:
            raise ViewError(f"starts {list(starts.shape)} must have the shape of anchors, {list(anchors.shape)}")
        if everything and (anchors.shape[1] != 1 or starts is not None):
            raise ViewError(f"{anchors.shape[1]} blocks, or documents, cannot promise that nothing is hidden")
        self.anchors = anchors
        self.context = context
        self.size = size
        self.everything = everything
        self.starts = starts
        self.live = None if everything else self.per_slot(anchors >= 0)
        self.masks: dict[tuple[str, int | None, bool, int], Tensor | BlockMask | Band] = {}

    def per_slot(self, blocks: Tensor) -> Tensor:
        """Repeat `blocks [B, N]` for every slot: `[B, N * size]`."""
        return blocks[..., None].expand(-1, -1, self.size).flatten(1)

    def queries(self) -> Queries:
        """The rows of all blocks, fields of `[B, Q]`; the block of a dropped one is -2."""
        slots = torch.arange(self.size, device=self.anchors.device)
        numbers = torch.arange(self.anchors.shape[1], device=self.anchors.device)
        return Queries(
            block=self.per_slot(torch.where(self.anchors >= 0, numbers, -2)),
            anchor=self.per_slot(self.anchors),
            position=(self.anchors[..., None] + slots).flatten(1),
            start=None if self.starts is None else self.per_slot(self.starts),
        )

    def keys(self, rows: int) -> Keys:
        """The last `rows` context rows, then the rows of all blocks: `block` `[K]`, `position` `[B, K]`."""
        numbers = torch.arange(self.anchors.shape[1] * self.size, device=self.anchors.device) // self.size
        kept = self.context[:, self.context.shape[1] - rows :]
        return Keys(
            block=torch.cat([numbers.new_full((rows,), -1), numbers]),
            position=torch.cat([kept, self.queries().position], dim=1),
        )

    def hides_nothing(self, window: int | None, is_causal: bool, rows: int) -> bool:
        """Whether every query is known to see every key, without looking at data."""
        ordered = is_causal and self.size > 1
        return self.everything and not ordered and (window is None or rows + self.size <= window)

    def dense(self, window: int | None, is_causal: bool, rows: int) -> Tensor:
        """The predicate as bool `[B, 1, Q, rows + Q]`, True where a query may attend."""
        query = queries_like(self.queries(), lambda field: field[..., None])
        key = self.keys(rows)
        return sees(query, Keys(key.block, key.position[:, None]), window, is_causal)[:, None]

    def tiles(self, window: int | None, is_causal: bool, rows: int) -> BlockMask:
        """The predicate as a block mask of flex attention over `Q` queries and `rows + Q` keys."""
        return tile_mask(self.queries(), self.keys(rows), rows, self.size, window, is_causal)

    def band(self, window: int | None, is_causal: bool) -> Band:
        """The predicate as a band; right only where `everything` holds, since positions then count rows."""
        left = -1 if window is None else window - 1
        ahead = -1 if window is None else min(window, self.size) - 1
        return Band(left, 0 if is_causal else ahead)

    def mask(self, form: str, window: int | None, is_causal: bool, rows: int) -> Tensor | BlockMask | Band:
        """The predicate in the `form` asked for (dense, tiles, band), made once per question."""
        question = (form, window, is_causal, rows)
        if question not in self.masks:
            if form == "band":
                self.masks[question] = self.band(window, is_causal)
            else:
                make = self.tiles if form == "tiles" else self.dense
                self.masks[question] = make(window, is_causal, rows)
        return self.masks[question]

    def view(self, window: int | None, is_causal: bool, rows: int, backend: str, dropout: float = 0.0) -> View:
        """What a layer with `window` and `is_causal` sees of the last `rows` context rows and of the blocks.

        A band cannot say which rows are padding, nor whose block a key is of: where such rows may be, `flash` is
        answered with a dense mask for `sdpa`. Backends of KDA read no mask. Raises `ViewError` for a window below 1,
        for more rows than there are, and for a backend that is not known.
        """
        if window is not None and window < 1:
            raise ViewError(f"a window of {window} positions lets a query see nothing, itself included")
        if not 0 <= rows <= self.context.shape[1]:
            raise ViewError(f"{rows} context rows were asked for; the context has {self.context.shape[1]}")
        if backend.startswith("kda_"):
            return View(None, backend, dropout, self.live)
        if backend not in MASK_FORMS:
            raise ViewError(f"attention backend {backend!r} is none of {', '.join(MASK_FORMS)}")
        if self.hides_nothing(window, is_causal, rows):
            return View(None, backend, dropout, None)
        if backend == "flash" and not self.everything:
            backend = "sdpa"
        return View(self.mask(MASK_FORMS[backend], window, is_causal, rows), backend, dropout, self.live)


class Rows(NamedTuple):
    """Where the rows of a call stand: `positions [B, C+Q]`, `anchors [B, N]` as rows of the context, who sees whom.

    `kept [B, C]` marks the context rows that are no padding; None when none is.
    """

    positions: Tensor
    anchors: Tensor
    visibility: Visibility
    kept: Tensor | None


def require_gaps(context: Tensor, starts: Tensor, gap: int) -> None:
    """Raise `DraftInputError` unless `gap` rows of zeros stand before each of `starts [B, N]` in `context [B, C, H]`.

    A layer that scans the context convolves over so many rows before each, which must be none of another document.
    """
    before = starts[..., None] - 1 - torch.arange(gap, device=starts.device)
    taken = context.any(-1).gather(1, before.clamp(min=0).flatten(1)).view_as(before)
    if bool((taken & (before >= 0)).any()):
        raise DraftInputError(
            f"a layer that scans the context convolves over {gap} rows: leave as many empty between two documents"
        )


NEVER = 2**63 - 1  # position of a row that nobody sees: no anchor is behind it


def block_positions(anchors: Tensor, length: int, block_size: int) -> Tensor:
    """Positions `[B, length + N·block_size]`: context from 0, then blocks from their `anchors [B, N]` (dropped: 0)."""
    context = torch.arange(length, device=anchors.device).expand(anchors.shape[0], -1)
    slots = anchors.clamp(min=0)[..., None] + torch.arange(block_size, device=anchors.device)
    return torch.cat([context, slots.flatten(1)], dim=1)


def training_rows(
    block: Tensor,
    context: Tensor,
    anchors: Tensor,
    size: int,
    attention_mask: Tensor | None,
    starts: Tensor | None = None,
) -> Rows:
    """Rows of a training batch: blocks of `size` slots anchored at rows `anchors [B, N]` of `context [B, C, H]`.

    Rows that `attention_mask [B, C]` leaves out are seen by no block; where several documents share a row, a block
    sees its own only, the rows from `starts [B, N]` on.
    """
    batch, queries = block.shape[:2]
    if anchors.ndim != 2 or anchors.shape[0] != batch or anchors.shape[1] * size != queries:
        raise DraftInputError(
            f"anchors {list(anchors.shape)} and noise_embeds {list(block.shape[:2])} do not fit: "
            f"each anchor takes a block of {size} slots"
        )
    every = torch.arange(context.shape[1], device=block.device).expand(batch, -1)
    kept = None if attention_mask is None else fitting("attention_mask", attention_mask, every).bool()
    seen = every if kept is None else torch.where(kept, every, NEVER)
    positions = block_positions(anchors, context.shape[1], size)
    return Rows(positions, anchors, Visibility(anchors, seen, size, everything=False, starts=starts), kept)


def decoding_rows(block: Tensor, context: Tensor, past: int, attention_mask: Tensor | None) -> Rows:
    """Rows of a decoding step: one block after `past` kept rows and those of `context [B, C, H]`.

    Padding in `attention_mask [B, past+C+Q]` takes no position, so a padded row of the batch sees what it would alone.
    The block stands behind the last real row of the context: rows of a batch that bring fewer new ones than others have
    padding behind them.
    """
    batch, size = block.shape[:2]
    new = context.shape[1]
    total = past + new
    every = torch.arange(total + size, device=block.device).expand(batch, -1)
    if attention_mask is None:
        anchors = torch.full_like(every[:, :1], new)
        visibility = Visibility(every[:, total : total + 1], every[:, :total], size, everything=True)
        return Rows(every[:, past:], anchors, visibility, None)
    real = fitting("attention_mask", attention_mask, every)[:, :total].bool().expand(batch, -1)
    counted = real.long().cumsum(-1) - 1
    first = real.long().sum(-1, keepdim=True)
    positions = torch.cat([counted[:, past:].clamp(min=0), first + every[:, :size]], dim=1)
    numbered = torch.where(real[:, past:], every[:, 1 : new + 1], 0)
    anchors = torch.cat([numbered, numbered.new_zeros(batch, 1)], dim=1).amax(-1, keepdim=True)
    visibility = Visibility(first, torch.where(real, counted, NEVER), size, everything=False)
    return Rows(positions, anchors, visibility, real[:, past:])


class DraftModel(Drafting, DecodingForms, PreTrainedModel):
    """A stack of draft layers between the target's embeddings and its output head.

    A subclass names its layers (`layer_classes`, one callable without arguments per layer) and, for each phase
    (`training`, `decoding`) and device type, the backend of each layer (`backends`). `available` names further backends
    that its operations can run. Overrides, strongest first: the environment's `DRAFTC_BACKEND` (read when the model is
    built), `attn_implementation`. A stack whose recurrent layers read context sets `plan_scan` to `plan_states`, and
    its layers share one plan per call; otherwise each makes its own. Attentions with a form of their own for decoding
    (`decoding_forms`) take it when a decoding call comes, and the other one back when training does.
    """

    config_class = DraftConfig
    config: Any
    layer_classes: ClassVar[tuple[Callable[[], nn.Module], ...]] = ()
    backends: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {}
    available: ClassVar[tuple[str, ...]] = ()
    plan_scan: ClassVar[Callable[..., tuple[Any, ...]] | None] = None

    main_input_name = "noise_embeds"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_flash_attn = True
    _keep_in_fp32_modules_strict = FP32_PARTS

    def __init__(self, config: DraftConfig) -> None:
        asked = config._attn_implementation
        super().__init__(config)
        # transformers writes its default here; None keeps an explicit choice apart from it.
        config._attn_implementation_internal = asked
        width, target_width = config.hidden_size, config.target_hidden_size
        self.owns_head = config.draft_vocab_size < config.vocab_size
        self.input_proj = nn.Linear(target_width, width, bias=False) if width != target_width else None
        self.fc = nn.Linear(config.context_width, width, bias=False)
        self.hidden_norm = RMSNorm(width, config.rms_norm_eps)
        self.layers = nn.ModuleList([make() for make in self.layer_classes])
        self.norm = RMSNorm(width, config.rms_norm_eps)
        projects = width != target_width and not self.owns_head
        self.output_proj = nn.Linear(width, target_width, bias=False) if projects else None
        if self.owns_head:
            self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.add_heads()
        self._no_split_modules = [type(layer).__name__ for layer in self.layers]
        facts: list[Any] = list(self.layers)
        self.memory_kinds: tuple[str, ...] = tuple(layer.memory for layer in facts)
        self.turns: tuple[Turn, ...] = tuple(dict.fromkeys(layer.turn for layer in facts if layer.turn is not None))
        self.turn_numbers = tuple(None if layer.turn is None else self.turns.index(layer.turn) for layer in facts)
        self.counting_layer = next((i for i, kind in enumerate(self.memory_kinds) if kind != "none"), None)
        self.environment_wish = os.environ.get("DRAFTC_BACKEND")
        self.layer_backends("training", "cpu")
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give `module` its first weights: norms one, biases zero, matrices normal, KDA's decay rates log U(1, 16).

        What was loaded stays, which `transformers.initialization` sees to. Maps of a reduced vocabulary start empty.
        """
        for name, parameter in module.named_parameters(recurse=False):
            if name == "A_log":
                init.copy_(parameter, torch.empty_like(parameter).uniform_(1, 16).log_())
            elif name in ("bias", "dt_bias"):
                init.zeros_(parameter)
            elif parameter.ndim == 1:
                init.ones_(parameter)
            else:
                init.normal_(parameter, std=self.config.initializer_range)
        for buffer in module.buffers(recurse=False):
            init.zeros_(buffer)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # transformers looks for its own dispatcher in the source; this model has another.
        return True

    def layer_backends(self, phase: str, device: str) -> tuple[str, ...]:
        """The backend of every layer in `phase` on `device`, overrides applied.

        Raises `ValueError` when an override names a backend that is not there.
        """
        chosen = self.backends.get((phase, device)) or self.backends[phase, "cpu"]
        named = [name for names in self.backends.values() for name in names]
        available = tuple(dict.fromkeys([*named, "eager", "sdpa", *self.available]))
        if self.environment_wish:
            forced = forced_names(self.environment_wish, available, "DRAFTC_BACKEND")
        elif self.config._attn_implementation:
            forced = forced_names(self.config._attn_implementation, available, "attn_implementation")
        else:
            return chosen
        return tuple(forced_over(name, forced) for name in chosen)

    def forward(
        self,
        noise_embeds: Tensor | None = None,
        context_hidden_states: Tensor | None = None,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        anchors: Tensor | None = None,
        starts: Tensor | None = None,
        **others: object,
    ) -> BaseModelOutput:
        """Run blocks against the target's context: many blocks to train on, or the next one to decode.

        Args:
            noise_embeds: `[B, Q, H_target]` target embeddings of the blocks: the anchor's token, then mask tokens.
            context_hidden_states: `[B, C, T·W]` the taps of the target side by side, rows not given before.
            position_ids: `[B, C+Q]` positions to rotate by, context first; by default they follow from the rest.
            attention_mask: `[B, P+C+Q]` while decoding, `[B, C]` while training; zero rows are padding.
            cache: what earlier steps left, P rows of context; None to decode without, and while training.
            anchors: `[B, N]` while training: the context row at which each block stands, -1 for a dropped one; a block
                sees the rows before its anchor. None while decoding: one block after the last row.
            starts: `[B, N]` the first context row of each block's document, where several are packed into one row;
                `document_gap` rows of zeros stand between two of them.
            others: the same things under the names of z-lab's and SpecForge's classes. `noise_embedding` comes scaled
                already, as z-lab's loop gives it; `noise_embeds` is scaled here by `input_embedding_scale`.

        Returns:
            `last_hidden_state` `[B, Q, H_target]` (`[B, Q, H]` when the draft owns its head), the final norm included;
            `hidden_states` holds what the norm returned, `[B, Q, H]`, which heads read.

        Raises:
            DraftInputError: shapes that do not fit each other or the draft, or a cache where none can be used.
            TypeError: an argument that no draft takes.

        """
        own = {"noise_embeds": noise_embeds, "context_hidden_states": context_hidden_states, "cache": cache}
        given = named_inputs({**own, "anchors": anchors}, others)
        anchors, cache = given["anchors"], given["cache"]
        block, context = self.enter(given["noise_embeds"], given["context_hidden_states"], "noise_embedding" in others)
        self.require_replayable(cache, anchors)
        layer_memories = memories(cache, self.memory_kinds)
        rows = self.place(block, context, anchors, starts, layer_memories, attention_mask)
        positions = rows.positions if position_ids is None else fitting("position_ids", position_ids, rows.positions)
        if rows.kept is not None and "state" in self.memory_kinds:
            context = context * rows.kept[..., None]
        tables = [rope_table(turn, positions) for turn in self.turns]
        phase, device = "decoding" if anchors is None else "training", context.device.type
        names = self.layer_backends(phase, device)
        self.settle_forms(phase, device, names)
        views = self.layer_views(rows, layer_memories, context, phase, names)
        for layer, number, view, memory in zip(self.layers, self.turn_numbers, views, layer_memories, strict=True):
            rope = None if number is None else tables[number]
            block = layer(block, context, rows.anchors, rope, view, memory)
        hidden = self.norm(block)
        return BaseModelOutput(last_hidden_state=self.outgoing(hidden), hidden_states=(hidden,))

    @property
    def document_gap(self) -> int:
        """Empty rows between documents of one row: as many as the convolutions of layers that scan reach back."""
        facts: list[Any] = list(self.layers)
        scanning = [layer.self_attn for layer in facts if layer.memory == "state"]
        return max((each.k_conv1d.weight.shape[1] - 1 for each in scanning), default=0)

    def place(
        self,
        block: Tensor,
        context: Tensor,
        anchors: Tensor | None,
        starts: Tensor | None,
        layer_memories: tuple[Memory, ...],
        attention_mask: Tensor | None,
    ) -> Rows:
        """Where the rows of this call stand, after those that the memories hold."""
        if starts is not None and "state" in self.memory_kinds:
            require_gaps(context, starts, self.document_gap)
        if anchors is not None:
            return training_rows(block, context, anchors, self.config.block_size, attention_mask, starts)
        past = 0 if self.counting_layer is None else layer_memories[self.counting_layer].get_seq_length()
        return decoding_rows(block, context, past, attention_mask)

    def enter(self, noise: Tensor | None, taps: Tensor | None, is_scaled: bool) -> tuple[Tensor, Tensor]:
        """Check both streams and bring them to the draft's width: `[B, Q, H]` and `[B, C, H]`."""
        if noise is None or taps is None:
            raise DraftInputError("a draft needs noise_embeds [B, Q, H_target] and context_hidden_states [B, C, T·W]")
        self.require_widths(noise, taps)
        if self.config.input_embedding_scale != 1.0 and not is_scaled:
            noise = noise * self.config.input_embedding_scale
        block = noise if self.input_proj is None else self.input_proj(noise)
        return block, self.hidden_norm(self.fc(taps))

    def require_widths(self, noise: Tensor, taps: Tensor) -> None:
        """Raise `DraftInputError` unless both streams are `[B, rows, width]` with the widths of the configuration."""
        config = self.config
        if noise.ndim != 3 or taps.ndim != 3 or noise.shape[0] != taps.shape[0]:
            raise DraftInputError(
                f"noise_embeds {list(noise.shape)} and context_hidden_states {list(taps.shape)} must be [B, T, W]"
            )
        if noise.shape[-1] != config.target_hidden_size:
            raise DraftInputError(
                f"noise_embeds is {noise.shape[-1]} wide; the target's embeddings are {config.target_hidden_size}"
            )
        if taps.shape[-1] != config.context_width:
            taps_read = len(config.target_layer_ids or ())
            raise DraftInputError(
                f"context_hidden_states is {taps.shape[-1]} wide; this draft reads {taps_read} taps of width "
                f"{config.context_width // max(taps_read, 1)} side by side: {config.context_width}"
            )

    def require_replayable(self, cache: Cache | None, anchors: Tensor | None) -> None:
        """Raise `DraftInputError` for a cache beside training blocks, or one that checkpointing would write twice."""
        if cache is not None and anchors is not None:
            raise DraftInputError("training blocks keep nothing: give anchors or a cache, not both")
        repeats = (
            self.training and torch.is_grad_enabled() and any(layer.gradient_checkpointing for layer in self.layers)
        )
        if cache is not None and repeats:
            raise DraftInputError("gradient checkpointing runs layers twice and would write the cache twice: give none")

    def layer_views(
        self, rows: Rows, layer_memories: tuple[Memory, ...], context: Tensor, phase: str, names: tuple[str, ...]
    ) -> list[View]:
        """What each layer may see, for the backend among `names` that runs it."""
        dropout = self.config.attention_dropout if self.training else 0.0
        plan = self.scan_plan(rows, context, phase)
        views: list[View] = []
        facts: list[Any] = list(self.layers)
        for layer, memory, name in zip(facts, layer_memories, names, strict=True):
            kept = memory.get_mask_sizes(context.shape[1])[0]
            view = rows.visibility.view(layer.window, layer.is_causal, kept, name, dropout)
            views.append(view._replace(plan=plan) if layer.memory == "state" else view)
        return views

    def scan_plan(self, rows: Rows, context: Tensor, phase: str) -> tuple[Any, ...] | None:
        """How to reach the states before all anchors; None where no layer asks.

        Anchors come to the host while training, and while decoding with padding.
        """
        if self.plan_scan is None:
            return None
        batch, length = context.shape[:2]
        is_even = phase == "decoding" and rows.kept is None
        anchors = [[length]] * batch if is_even else rows.anchors.tolist()
        starts = rows.visibility.starts
        return self.plan_scan(anchors, length, context.device, None, None if starts is None else starts.tolist())


class Qwen3_4bKdaScanDraftModel(DraftModel):
    """The whole draft: 5 layers of width 2560, blocks of 16 slots."""

    config_class = Qwen3_4bKdaScanDraftConfig
    _auto_class = "AutoModel"
    layer_classes = (RecurrentLayer, RecurrentLayer, ContextLayer, RecurrentLayer, RecurrentLayer)
    backends: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {
        ("training", "cpu"): ("kda_block", "kda_block", "sdpa", "kda_block", "kda_block"),
        ("training", "cuda"): ("kda_triton", "kda_triton", "flex", "kda_triton", "kda_triton"),
        ("decoding", "cpu"): ("kda_block", "kda_block", "sdpa", "kda_block", "kda_block"),
        ("decoding", "cuda"): ("kda_triton", "kda_triton", "sdpa", "kda_triton", "kda_triton"),
    }
    available = ("eager", "kda_recurrent")
    plan_scan = staticmethod(plan_states)
