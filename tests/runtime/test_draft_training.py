"""Who influences whom in a training batch, bit for bit, and what a dropped block leaves behind: exactly nothing."""

import pytest
import torch
from torch import Tensor

from draftc.runtime.memory import NoMemory
from draftc.runtime.rope import rope_table
from draftc.runtime.visibility import Visibility
from tests.runtime.drafts import BOTH_WAYS, FULL, SLIDING, Dense, dense_draft, gradients, streams

KINDS = {
    "full": FULL,
    "sliding": SLIDING,
    "both-ways": BOTH_WAYS,
    "causal": Dense(is_causal=True),
    "no-rope": Dense(rope_style=None, gate=True),
}
ROWS, SIZE = 12, 4
ANCHORS = torch.tensor([[3, 7, 9]])


def attended(kind: Dense, block: Tensor, context: Tensor, backend: str, anchors: Tensor = ANCHORS) -> Tensor:
    """The attention of one layer of `kind`, alone: no norm, no residual, no second layer to mix rows."""
    layer = dense_draft(kind).layers[0]
    slots = (anchors[..., None].clamp(min=0) + torch.arange(SIZE)).flatten(1)
    positions = torch.cat([torch.arange(ROWS)[None], slots], dim=1)
    rope = None if layer.turn is None else rope_table(layer.turn, positions)
    visibility = Visibility(anchors, torch.arange(ROWS)[None], SIZE)
    view = visibility.view(layer.window, layer.is_causal, ROWS, backend)
    with torch.no_grad():
        return layer.self_attn(block, context, anchors, rope, view, NoMemory())


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    block = torch.randn(1, 3 * SIZE, 32, generator=generator, dtype=torch.float64)
    return block, torch.randn(1, ROWS, 32, generator=generator, dtype=torch.float64)


def may_see_row(kind: Dense, query: int, row: int) -> bool:
    """The rule of the design, written out once more: strictly before the anchor, and fewer than W positions behind."""
    anchor, slot = ANCHORS[0, query // SIZE].item(), query % SIZE
    return row < anchor and (kind.window is None or anchor + slot - row < kind.window)


def may_see_slot(kind: Dense, query: int, key: int) -> bool:
    if query // SIZE != key // SIZE:
        return False
    behind = query - key
    return not (kind.is_causal and behind < 0) and (kind.window is None or abs(behind) < kind.window)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_context_row_moves_exactly_the_queries_that_see_it(name: str, backend: str) -> None:
    kind = KINDS[name]
    block, context = inputs()
    before = attended(kind, block, context, backend)
    for row in range(ROWS):
        moved = context.clone()
        moved[:, row] += 1.0
        after = attended(kind, block, moved, backend)
        for query in range(3 * SIZE):
            same = torch.equal(before[:, query], after[:, query])
            assert same != may_see_row(kind, query, row), (row, query)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_slot_moves_exactly_the_queries_that_see_it(name: str, backend: str) -> None:
    kind = KINDS[name]
    block, context = inputs()
    before = attended(kind, block, context, backend)
    for key in range(3 * SIZE):
        moved = block.clone()
        moved[:, key] += 1.0
        after = attended(kind, moved, context, backend)
        for query in range(3 * SIZE):
            same = torch.equal(before[:, query], after[:, query])
            assert same != (query == key or may_see_slot(kind, query, key)), (key, query)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_attention_of_a_dropped_block_is_exactly_zero(bias: bool, backend: str) -> None:
    block, context = inputs()
    anchors = torch.tensor([[3, -1, 9]])
    for kind in (Dense(bias=bias), Dense(bias=bias, window=3, is_causal=True, gate=True)):
        out = attended(kind, block, context, backend, anchors)
        assert torch.equal(out[:, SIZE : 2 * SIZE], torch.zeros(1, SIZE, 32, dtype=torch.float64))
        assert (out[:, :SIZE] != 0).all()
        assert torch.equal(out[:, :SIZE], attended(kind, block, context, backend)[:, :SIZE])


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_dropped_block_gives_no_gradient_to_keys(backend: str) -> None:
    draft = dense_draft(Dense(bias=True), SLIDING, backend=backend)
    noise, taps = (tensor.requires_grad_() for tensor in streams(draft, ROWS, blocks=1))
    out = draft(noise, taps, anchors=torch.tensor([[-1]])).last_hidden_state
    found = gradients(out, draft, noise, taps)
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    moved = {name for name, gradient in found.items() if gradient.any()}
    assert not any(part in name for name in moved for part in ("self_attn", "fc", "hidden_norm"))
    assert "0" in moved
    assert "1" not in moved


@pytest.mark.parametrize("stack", [(FULL, FULL), (SLIDING, FULL, BOTH_WAYS)])
def test_dropped_blocks_leave_others_alone(stack: tuple[Dense, ...]) -> None:
    draft = dense_draft(*stack)
    noise, taps = streams(draft, ROWS, blocks=3)
    some = draft(noise, taps, anchors=torch.tensor([[3, 9, -1]])).last_hidden_state
    other = torch.cat([noise[:, : 2 * SIZE], torch.full_like(noise[:, 2 * SIZE :], 5.0)], dim=1)
    assert torch.equal(
        draft(other, taps, anchors=torch.tensor([[3, 9, -1]])).last_hidden_state[:, : 2 * SIZE], some[:, : 2 * SIZE]
    )
