"""Recurrent layers: states before anchors, their plan, the running state while decoding, and what blocks may know."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.attention.kda_scan import ScanDeltaAttention
from draftc.runtime.kda import kda_states
from draftc.runtime.kda.math import BlockSizeError, activated
from draftc.runtime.kda.recurrent import advance_recurrent
from draftc.runtime.kda.states import (
    WALK_ROWS,
    ScanPlan,
    bucketed,
    plan_launch,
    plan_states,
    rows_before,
    scan_states,
)
from draftc.runtime.memory import NoMemory, RecurrentMemory
from draftc.runtime.visibility import View
from tests.runtime.kda_inputs import Hard, kda_inputs

B, SIZE, H, HEADS, DIM = 2, 4, 12, 2, 4
CPU = torch.device("cpu")
BACKENDS = ["kda_recurrent", "kda_block"]


def through(backend: str, plan: ScanPlan | None = None, live: Tensor | None = None) -> View:
    return View(None, backend, 0.0, live, plan)


def layer(kind: type[DeltaAttention] = ScanDeltaAttention, taps: int = 4, bound: float | None = -5.0) -> DeltaAttention:
    torch.manual_seed(0)
    made = kind(H, HEADS, DIM, taps, bound, True, 1e-6, SIZE).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return made


def rows(count: int, seed: int = 1, batch: int = B) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, count, H, dtype=torch.float64, generator=generator)


def one_by_one(inputs: list[Tensor], anchors: Tensor, bound: float | None) -> Tensor:
    """The state before every anchor, each by its own walk from the first row."""
    k, v, decay, beta, rate, bias, state = inputs
    parts = activated(k, v, decay, beta, rate, bias, bound)
    found = []
    for row, line in enumerate(anchors.tolist()):
        for anchor in line:
            own = slice(row, row + 1)
            found.append(advance_recurrent(state[own], *(x[own, :, : max(anchor, 0)] for x in parts)))
    return torch.cat(found)


ANCHORS = [
    pytest.param([[5, 5, 5, 5], [0, 0, 0, 0]], id="duplicates"),
    pytest.param([[0, 1, 2, 3], [70, 69, 68, 0]], id="ends-in-any-order"),
    pytest.param([[-1, 40, -1, 3], [70, 12, 999, 1]], id="dropped-and-clamped"),
    pytest.param([[0, 0, 0, 0], [0, 0, 0, 0]], id="nothing-before"),
    pytest.param([[3, 30, 31, 64], [33, 65, 2, 33]], id="mixed"),
]


@pytest.mark.parametrize("anchors", ANCHORS)
@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scan_is_a_walk_per_anchor_values_and_gradients(anchors, bound, backend) -> None:
    inputs = kda_inputs(70, Hard(), True, batch=B)[1:]
    anchors = torch.tensor(anchors)
    found = []
    for states in (
        kda_states(*inputs, anchors, through(backend), bound),
        one_by_one(inputs, anchors.clamp(0, 70), bound),
    ):
        loss = (states * torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)).sum()
        found.append((states, *torch.autograd.grad(loss, inputs, allow_unused=True)))
    for got, want in zip(*found, strict=True):
        got, want = (torch.zeros(1) if x is None else x for x in (got, want))
        assert (got - want).abs().max() <= 1e-11 * max(1, want.abs().max())


@pytest.mark.parametrize("group_size", [None, 1, 2, 3, 9, 20])
def test_any_group_size_gives_the_same_states(group_size) -> None:
    inputs = [x.detach() for x in kda_inputs(70, Hard(), True, batch=B)[1:]]
    anchors = torch.tensor([[9, 3, 44, 70, 0, 3, 61, 5, 17], [1, 2, 3, 4, 5, 6, 7, 8, 8]])
    plan = plan_states(anchors.tolist(), 70, CPU, group_size)
    got = kda_states(*inputs, anchors, through("kda_block", plan), -5.0)
    torch.testing.assert_close(got, one_by_one(inputs, anchors, -5.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_64_anchors_take_8_launches_and_7(first) -> None:
    plan = plan_states([range(first, first + 64)], 100, CPU)
    assert len(plan.groups) == 8
    assert len(plan.places) == 7
    assert all(launch.rows.shape[0] == 8 for launch in plan.places)


def test_one_block_behind_the_context_takes_one_launch() -> None:
    plan = plan_states([[9], [9]], 9, CPU)
    assert len(plan.groups) == 1
    assert plan.places == ()
    assert plan.groups[0].rows.tolist() == [list(range(9)), list(range(9, 18))]


def test_a_plan_reads_every_row_before_the_last_anchor_at_most_twice() -> None:
    plan = plan_states([[4, 9, 30, 31], [12, 2, 2, 40]], 50, CPU)
    for level in (plan.groups, plan.places):
        read = torch.cat([launch.rows[launch.rows >= 0] for launch in level])
        assert len(read) == len(read.unique())
    first = torch.cat([launch.rows[launch.rows >= 0] for launch in plan.groups])
    assert sorted(first.tolist()) == [*range(31), *range(50, 90)]


@pytest.mark.parametrize(
    ("lengths", "want"),
    [
        ([64], [64]),
        ([5], [5, 59]),
        ([5, 6], [5, 6, 1, 52]),
        ([5, 6, 7], [5, 6, 7, 46]),
        ([64, 32, 32], [64, 32, 32, 64]),
        ([63, 1], [63, 1]),
    ],
)
def test_sequences_fill_up_to_few_shapes(lengths, want) -> None:
    assert bucketed(lengths) == want


def test_packed_and_padded_forms_of_a_launch_hold_the_same_rows() -> None:
    launch = plan_launch([(3, 8), (4, 4), (10, 12)], CPU)
    assert launch.continued.tolist() == [0, 2]
    starts = launch.starts_host.tolist()
    assert len(launch.tokens) == starts[-1] == 64
    assert len(starts) - 1 == 4
    for place, owner in enumerate(launch.continued.tolist()):
        packed = launch.tokens[starts[place] : starts[place + 1]].tolist()
        assert packed == [row for row in launch.rows[owner].tolist() if row >= 0]


def test_the_scan_walks_what_it_is_given() -> None:
    plan = plan_states([[2, 5, 3, 0]], 6, CPU)
    count = lambda launch, states: states + (launch.rows >= 0).sum(-1).view(-1, 1, 1, 1)  # noqa: E731
    states = scan_states(plan, count, torch.zeros(1, 1, 1, 1))
    assert states.flatten().tolist() == [2, 5, 3, 0]


@st.composite
def asked_states(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], int]:
    """Anchors `[B, N]` and the first rows of their documents, in contexts of some number of rows."""
    rows, count, batch = draw(st.integers(0, 90)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    borders = draw(st.lists(st.integers(0, rows), max_size=3).map(lambda drawn: sorted({0, *drawn})))
    anchors = [[draw(st.integers(0, rows)) for _ in range(count)] for _ in range(batch)]
    starts = [[max(border for border in borders if border <= anchor) for anchor in line] for line in anchors]
    return anchors, starts, rows


@given(asked_states())
def test_a_walk_reads_each_document_up_to_its_last_anchor_once_and_stops_at_every_anchor(asked) -> None:
    anchors, starts, rows = asked
    walk = plan_states(anchors, rows, CPU, starts=starts).walk
    documents, most, _ = walk.tiles.shape
    seen: list[list[int]] = []
    for tiles, length in zip(walk.tiles.tolist(), walk.lengths.tolist(), strict=True):
        assert all(1 <= count <= WALK_ROWS for _, count in tiles[:length])
        assert all(count == 0 for _, count in tiles[length:])
        seen.append([row for first, count in tiles for row in range(first, first + count)])
    flat = [row for line in seen for row in line]
    assert len(flat) == len(set(flat))
    places = [(b, n) for b in range(len(anchors)) for n in range(len(anchors[0]))]
    for (b, n), stop in zip(places, walk.stops.tolist(), strict=True):
        document, tile = divmod(stop, most + 1)
        read = sum(count for _, count in walk.tiles[document, :tile].tolist())
        wanted = range(b * rows + starts[b][n], b * rows + anchors[b][n])
        assert seen[document][:read] == list(wanted)
    assert documents == len({(b, starts[b][n]) for b, n in places})


def test_rows_before_an_anchor_are_those_before_it() -> None:
    read = torch.arange(1, 9.0).view(1, 8, 1)
    got = rows_before(read, torch.tensor([[0, 2, 5, -1, 99]]), 3)
    assert got.squeeze(-1).tolist() == [[1, 2, 3], [3, 4, 5], [6, 7, 8], [1, 2, 3], [6, 7, 8]]
    assert rows_before(read, torch.tensor([[0, 2]]), 0).shape == (2, 0, 1)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("bound", [-5.0, None])
def test_a_running_state_gives_what_one_call_gives(taps, bound) -> None:
    attention = layer(taps=taps, bound=bound)
    context, memory = rows(13), RecurrentMemory()
    view = through("kda_block")
    done = 0
    for step, count in enumerate([1, 0, 5, 2, 3, 2]):
        block = rows(SIZE, seed=10 + step)
        fresh = context[:, done : done + count]
        done += count
        got = attention(block, fresh, torch.full((B, 1), count), None, view, memory)
        memory.crop(-SIZE)
        want = attention(block, context[:, :done], torch.full((B, 1), done), None, view, NoMemory())
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
        assert memory.get_seq_length() == done
        assert memory.tail.shape == (B, taps - 1, H)
        assert memory.state.dtype == torch.float64


def test_training_blocks_are_decoding_steps() -> None:
    attention = layer()
    context, blocks = rows(11), rows(3 * SIZE, seed=4)
    anchors = torch.tensor([[6, 0, 11], [3, 3, 8]])
    together = attention(blocks, context, anchors, None, through("kda_block"), NoMemory())
    for row in range(B):
        for n, anchor in enumerate(anchors[row].tolist()):
            own = blocks[row : row + 1, n * SIZE : (n + 1) * SIZE]
            before = context[row : row + 1, :anchor]
            alone = attention(own, before, torch.tensor([[anchor]]), None, through("kda_block"), NoMemory())
            got = together[row : row + 1, n * SIZE : (n + 1) * SIZE]
            torch.testing.assert_close(got, alone, rtol=1e-11, atol=1e-11)


def test_a_draft_without_any_context_runs_from_nothing() -> None:
    scan, reset = layer(), layer(DeltaAttention)
    block, nothing = rows(SIZE), rows(0)
    anchors = torch.zeros(B, 1, dtype=torch.long)
    got = scan(block, nothing, anchors, None, through("kda_block"), RecurrentMemory())
    want = reset(block, nothing, anchors, None, through("kda_block"), NoMemory())
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reset_block_is_deaf_to_everything_else_to_the_bit(backend) -> None:
    attention = layer(DeltaAttention)
    blocks, anchors = rows(3 * SIZE), torch.zeros(B, 3, dtype=torch.long)
    before = attention(blocks, rows(5), anchors, None, through(backend), NoMemory())
    blocks[:, SIZE : 2 * SIZE] += 20
    after = attention(blocks, rows(9, seed=8) * 7, anchors, None, through(backend), NoMemory())
    assert torch.equal(before[:, :SIZE], after[:, :SIZE])
    assert torch.equal(before[:, 2 * SIZE :], after[:, 2 * SIZE :])
    assert not torch.equal(before[:, SIZE : 2 * SIZE], after[:, SIZE : 2 * SIZE])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scanned_block_knows_no_row_from_its_anchor_on_and_no_other_block(backend) -> None:
    attention = layer()
    blocks, context, anchors = rows(2 * SIZE), rows(9), torch.tensor([[4, 9], [4, 9]])
    run = lambda: attention(blocks, context, anchors, None, through(backend), NoMemory())  # noqa: E731
    before = run()
    context[:, 4:] += 5
    blocks[:, SIZE:] -= 3
    torch.testing.assert_close(run()[:, :SIZE], before[:, :SIZE], rtol=1e-13, atol=1e-13)
    context[:, 3] += 1e-3
    assert (run()[:, :SIZE] - before[:, :SIZE]).abs().max() > 1e-6


def test_padding_before_the_first_row_changes_nothing() -> None:
    attention = layer()
    block, context = rows(SIZE), rows(7)
    padded = torch.cat([torch.zeros(B, 5, H, dtype=torch.float64), context], dim=1)
    want = attention(block, context, torch.full((B, 1), 7), None, through("kda_block"), NoMemory())
    got = attention(block, padded, torch.full((B, 1), 12), None, through("kda_block"), NoMemory())
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [DeltaAttention, ScanDeltaAttention])
def test_dropped_blocks_yield_zero(kind) -> None:
    attention = layer(kind)
    live = torch.tensor([[True] * SIZE + [False] * SIZE] * B)
    anchors = torch.tensor([[4, -1]] * B)
    out = attention(rows(2 * SIZE), rows(6), anchors, None, through("kda_block", live=live), NoMemory())
    assert torch.equal(out[:, SIZE:], torch.zeros(B, SIZE, H, dtype=out.dtype))
    assert out[:, :SIZE].abs().min() > 0


@pytest.mark.parametrize("kind", [DeltaAttention, ScanDeltaAttention])
def test_rows_that_are_no_whole_blocks_are_refused(kind) -> None:
    with pytest.raises(BlockSizeError, match="6 draft rows are no whole number of blocks of 4"):
        layer(kind)(rows(6), rows(6), torch.zeros(B, 1, dtype=torch.long), None, through("kda_block"), NoMemory())


@pytest.mark.parametrize(
    ("bound", "taps", "message"), [(0.0, 4, "not negative"), (2.0, 4, "not negative"), (None, 0, "less than one tap")]
)
def test_layers_that_cannot_be_built_are_refused(bound, taps, message) -> None:
    with pytest.raises(ValueError, match=message):
        layer(taps=taps, bound=bound)


@pytest.mark.parametrize("full_gate", [False, True])
def test_parameters_have_the_public_names_shapes_and_first_values(full_gate) -> None:
    made = ScanDeltaAttention(H, HEADS, DIM, 3, None, full_gate, 1e-6, SIZE)
    width = HEADS * DIM
    gate = (
        {"g_proj.weight": (width, H)} if full_gate else {"g_a_proj.weight": (DIM, H), "g_b_proj.weight": (width, DIM)}
    )
    assert {name: tuple(value.shape) for name, value in made.state_dict().items()} == {
        **{f"{letter}_proj.weight": (width, H) for letter in "qkv"},
        **{f"{letter}_conv1d.weight": (width, 3) for letter in "qkv"},
        "A_log": (HEADS,),
        "dt_bias": (width,),
        "f_a_proj.weight": (DIM, H),
        "f_b_proj.weight": (width, DIM),
        "b_proj.weight": (HEADS, H),
        **gate,
        "o_norm.weight": (DIM,),
        "o_proj.weight": (H, width),
    }
    assert made.A_log.exp().min() >= 1
    assert made.A_log.exp().max() <= 16
    assert torch.equal(made.dt_bias, torch.zeros(width))
    assert torch.equal(made.o_norm.weight, torch.ones(DIM))
    assert not made.q_conv1d.weight.eq(0).any()


@pytest.mark.parametrize("kind", [DeltaAttention, ScanDeltaAttention])
@pytest.mark.parametrize("taps", [1, 4])
def test_a_layer_is_one_graph(kind, taps) -> None:
    attention = layer(kind, taps=taps)
    anchors = torch.tensor([[4, 0], [9, 5]])
    arguments = (rows(2 * SIZE), rows(9), anchors, None, through("kda_block", plan_states(anchors.tolist(), 9, CPU)))
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*arguments, NoMemory()), attention(*arguments, NoMemory()))
