"""Every form of visibility equals the rule of the design, written out pair by pair."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from draftc.runtime.visibility import NEVER, Band, View, ViewError, Visibility, silence

RULES = [(None, False), (None, True), (1, False), (3, False), (3, True), (6, True), (100, False)]


def rule(anchor: int, slot: int, key: tuple, window: int | None, is_causal: bool, start: int = 0) -> bool:
    """Design, section 5, read aloud. `key` is ("context", position) or ("block", is own, slot)."""
    if anchor < 0:
        return False
    if key[0] == "context":
        position = key[1]
        return start <= position < anchor and (window is None or anchor + slot - position < window)
    _, own, other = key
    return own and (not is_causal or other <= slot) and (window is None or abs(slot - other) < window)


def pair_by_pair(anchors, context, size, window, is_causal, starts=None) -> Tensor:
    """Bool `[B, 1, Q, K]` from the rule alone."""
    batch, blocks = anchors.shape
    rows = context.shape[1]
    mask = torch.zeros(batch, 1, blocks * size, rows + blocks * size, dtype=torch.bool)
    for b in range(batch):
        keys = [("context", position) for position in context[b].tolist()]
        for q in range(blocks * size):
            block = q // size
            own = [("block", other == block, slot) for other in range(blocks) for slot in range(size)]
            start = 0 if starts is None else int(starts[b, block])
            for k, key in enumerate(keys + own):
                mask[b, 0, q, k] = rule(int(anchors[b, block]), q % size, key, window, is_causal, start)
    return mask


def training(size: int = 4, documents: bool = False) -> Visibility:
    anchors = torch.tensor([[2, 7, -1, 11, 0], [5, -1, 9, 1, 12]])
    context = torch.arange(12).repeat(2, 1)
    context[1, 10:] = NEVER
    starts = torch.tensor([[0, 4, 0, 8, 0], [3, 0, 9, 0, 9]]) if documents else None
    return Visibility(anchors, context, size, starts=starts)


@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("documents", [False, True])
def test_dense_is_the_rule(window: int | None, is_causal: bool, documents: bool):
    asked = training(documents=documents)
    view = asked.view(window, is_causal, 12, "sdpa")
    expected = pair_by_pair(asked.anchors, asked.context, 4, window, is_causal, asked.starts)
    assert torch.equal(view.mask, expected)
    assert torch.equal(view.live, expected.any(-1)[:, 0])


@pytest.mark.parametrize(("window", "is_causal"), RULES)
def test_decoding_is_training_with_one_block_behind_the_context(window: int | None, is_causal: bool):
    rows, size = 9, 4
    context = torch.arange(rows)[None]
    decoding = Visibility(torch.tensor([[rows]]), context, size, everything=True)
    longer = torch.arange(rows + size)[None]
    trained = Visibility(torch.tensor([[rows]]), longer, size).view(window, is_causal, rows + size, "eager").mask
    seen = decoding.view(window, is_causal, rows, "eager")
    expected = torch.cat([trained[..., :rows], trained[..., rows + size :]], dim=-1)
    assert not trained[..., rows : rows + size].any()
    assert seen.live is None
    assert expected.all() if seen.mask is None else torch.equal(seen.mask, expected)


@pytest.mark.parametrize(("window", "is_causal", "rows", "hidden"), [
    (None, False, 9, False), (None, True, 9, True), (13, False, 9, False), (12, False, 9, True), (12, False, 8, False),
])  # fmt: skip
def test_no_mask_exactly_when_nothing_is_hidden(window: int | None, is_causal: bool, rows: int, hidden: bool):
    decoding = Visibility(torch.tensor([[9]]), torch.arange(9)[None], 4, everything=True)
    for backend in ("eager", "sdpa", "flex", "flash"):
        assert (decoding.view(window, is_causal, rows, backend).mask is not None) == hidden
    assert decoding.dense(window, is_causal, rows).all() == (not hidden)


def test_one_slot_in_causal_order_hides_nothing():
    decoding = Visibility(torch.tensor([[9]]), torch.arange(9)[None], 1, everything=True)
    assert decoding.view(None, True, 9, "sdpa").mask is None


@pytest.mark.parametrize("rows", [0, 2, 5])
def test_memories_that_keep_fewer_rows_see_the_last_ones(rows: int):
    decoding = Visibility(torch.tensor([[9]]), torch.arange(9)[None], 4, everything=True)
    whole = decoding.view(6, True, 9, "sdpa").mask
    assert torch.equal(decoding.view(6, True, rows, "sdpa").mask, whole[..., 9 - rows :])


def test_a_window_needs_no_more_rows_than_a_sliding_cache_keeps():
    window = 6
    decoding = Visibility(torch.tensor([[9]]), torch.arange(9)[None], 4, everything=True)
    assert not decoding.dense(window, False, 9)[..., : 9 - (window - 1)].any()
    assert decoding.dense(window, False, 9)[..., 9 - (window - 1)].any()


def test_left_padding_sees_what_the_row_sees_alone():
    real = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).bool()
    counted = torch.where(real, real.cumsum(-1) - 1, NEVER)
    padded = Visibility(torch.tensor([[4]]), counted, 3).view(3, True, 7, "sdpa")
    alone = Visibility(torch.tensor([[4]]), torch.arange(4)[None], 3).view(3, True, 4, "sdpa")
    assert not padded.mask[..., :3].any()
    assert torch.equal(padded.mask[..., 3:], alone.mask)


def tiles_of(mask: BlockMask) -> tuple[Tensor, ...]:
    lists = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
    return (*lists, mask.q_num_blocks, mask.q_indices, mask.full_q_num_blocks, mask.full_q_indices)


def long_batch(size: int, blocks: int, rows: int, padding: str, documents: bool) -> Visibility:
    torch.manual_seed(size * rows + blocks)
    context = torch.arange(rows).repeat(2, 1)
    if padding == "right":
        context[1, rows - rows // 3 :] = NEVER
    if padding == "left":
        context[1] = torch.where(torch.arange(rows) < rows // 3, NEVER, torch.arange(rows) - rows // 3)
    anchors = torch.randint(0, rows + 1, (2, blocks)).sort(-1).values
    anchors[1, -(blocks // 3) :] = -1
    starts = (anchors.clamp(min=0) // 150) * 150 if documents else None
    return Visibility(anchors, context, size, starts=starts)


@pytest.mark.parametrize(("window", "is_causal"), [(None, False), (None, True), (7, False), (200, True), (300, False)])
@pytest.mark.parametrize(("size", "blocks", "rows"), [(16, 24, 384), (16, 20, 300), (7, 40, 513), (200, 3, 400)])
@pytest.mark.parametrize(("padding", "documents"), [("none", False), ("right", False), ("left", True)])
def test_block_mask_has_the_tiles_that_torch_finds(size, blocks, rows, window, is_causal, padding, documents):
    asked = long_batch(size, blocks, rows, padding, documents)
    ours = asked.view(window, is_causal, rows, "flex").mask
    queries = blocks * size
    theirs = create_block_mask(ours.mask_mod, 2, None, queries, rows + queries, device="cpu")
    for mine, other in zip(tiles_of(ours), tiles_of(theirs), strict=True):
        assert torch.equal(mine, other)
    assert ours.shape == theirs.shape
    dense = create_mask(ours.mask_mod, 2, 1, queries, rows + queries, device="cpu")
    assert torch.equal(dense, asked.dense(window, is_causal, rows))


def test_block_mask_covers_positions_in_any_order():
    torch.manual_seed(0)
    context = torch.stack([torch.randperm(300), torch.randint(0, 300, (300,))])
    asked = Visibility(torch.randint(0, 300, (2, 20)), context, 16)
    ours = asked.view(40, False, 300, "flex").mask
    theirs = create_block_mask(ours.mask_mod, 2, None, 320, 620, device="cpu")
    listed = ours.to_dense().bool()
    assert torch.equal(listed & theirs.to_dense().bool(), theirs.to_dense().bool())
    assert torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    assert torch.equal(create_mask(ours.mask_mod, 2, 1, 320, 620, device="cpu"), asked.dense(40, False, 300))


@pytest.mark.parametrize("rows", [0, 5, 200])
def test_block_mask_of_a_decoding_step(rows: int):
    decoding = Visibility(torch.tensor([[rows]]), torch.arange(rows)[None], 16, everything=True)
    ours = decoding.view(9, False, rows, "flex").mask
    theirs = create_block_mask(ours.mask_mod, 1, None, 16, rows + 16, device="cpu")
    assert all(torch.equal(mine, other) for mine, other in zip(tiles_of(ours), tiles_of(theirs), strict=True))


@pytest.mark.parametrize(("window", "is_causal"), RULES)
@pytest.mark.parametrize("size", [1, 4])
def test_band_is_the_rule_where_it_is_given(window: int | None, is_causal: bool, size: int):
    rows = 9
    decoding = Visibility(torch.tensor([[rows]]), torch.arange(rows)[None], size, everything=True)
    band = decoding.view(window, is_causal, rows, "flash").mask or Band(-1, -1)
    offset = torch.arange(rows + size) - (torch.arange(size)[:, None] + rows)
    inside = torch.ones(size, rows + size, dtype=torch.bool)
    if band.left >= 0:
        inside &= offset >= -band.left
    if band.right >= 0:
        inside &= offset <= band.right
    assert torch.equal(inside, decoding.dense(window, is_causal, rows)[0, 0])


def test_bands_are_the_windows_that_flash_documents():
    decoding = Visibility(torch.tensor([[9]]), torch.arange(9)[None], 4, everything=True)
    assert decoding.view(6, True, 9, "flash").mask == (5, 0)
    assert decoding.view(6, False, 9, "flash").mask == (5, 3)
    assert decoding.view(3, False, 9, "flash").mask == (2, 2)
    assert decoding.view(None, True, 9, "flash").mask == (-1, 0)


def test_flash_is_answered_for_sdpa_where_no_band_can_say_it():
    view = training().view(3, True, 12, "flash")
    assert view.backend == "sdpa"
    assert torch.equal(view.mask, training().dense(3, True, 12))


def test_equal_questions_share_one_mask():
    asked = training()
    first = asked.view(3, True, 12, "sdpa")
    assert asked.view(3, True, 12, "eager", 0.1).mask is first.mask
    assert asked.view(3, True, 12, "eager", 0.1).dropout == 0.1
    assert asked.view(3, False, 12, "sdpa").mask is not first.mask
    assert asked.view(3, True, 12, "flex").mask is asked.view(3, True, 12, "flex").mask


def test_kda_layers_get_no_mask():
    view = training().view(None, True, 12, "kda_block")
    assert view.mask is None
    assert torch.equal(view.live, training().live)


def test_silence_removes_what_a_bias_adds():
    view = training().view(None, False, 12, "sdpa")
    out = torch.full((2, 20, 3), torch.nan)
    silenced = silence(out, view)
    assert torch.equal(silenced[~view.live], torch.zeros(8, 3))
    assert silenced[view.live].isnan().all()
    everything = View(None, "sdpa", 0.0, None)
    assert silence(out, everything) is out


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_compiles_in_one_graph(backend: str):
    torch._dynamo.reset()

    def whole(anchors: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        view = Visibility(anchors, context, 4).view(5, True, context.shape[1], backend)
        if backend == "flex":
            return view.mask.kv_num_blocks, view.mask.full_kv_indices
        return view.mask, view.live

    asked = training()
    compiled = torch.compile(whole, fullgraph=True, backend="eager")
    for mine, other in zip(compiled(asked.anchors, asked.context), whole(asked.anchors, asked.context), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: training().view(0, False, 12, "sdpa"), "window of 0"),
        (lambda: training().view(None, False, 13, "sdpa"), "13 context rows were asked for; the context has 12"),
        (lambda: training().view(None, False, 12, "paged"), "'paged' is none of eager, sdpa, flex, flash"),
        (lambda: Visibility(torch.zeros(2, 3), torch.zeros(1, 4), 4), r"anchors \[2, 3\] and context \[1, 4\]"),
        (lambda: Visibility(torch.zeros(1, 2), torch.zeros(1, 4), 4, everything=True), "2 blocks"),
        (lambda: Visibility(torch.zeros(1, 2), torch.zeros(1, 4), 4, starts=torch.zeros(1, 3)), "starts"),
    ],
)
def test_questions_without_an_answer_say_why(ask, words: str):
    with pytest.raises(ViewError, match=words):
        ask()
