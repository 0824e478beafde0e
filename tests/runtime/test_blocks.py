"""Training blocks: anchors are candidates, drawn evenly and without repetition; slots hold what decoding will hold."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftc.runtime.blocks import DROPPED, NoAnchorError, ahead, noise_ids, sample_anchors

LOSS_MASK = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]])


def test_anchors_are_supervised_and_so_is_the_next_token() -> None:
    anchors = sample_anchors(LOSS_MASK, 9, torch.Generator().manual_seed(0))
    assert anchors.tolist() == [[1, 2, 5], [0, DROPPED, DROPPED]]


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=3), st.integers(1, 14))
def test_rows_are_ascending_distinct_candidates_then_padding(rows: list[list[bool]], most: int) -> None:
    mask = torch.tensor(rows).float()
    candidates = [{t for t in range(11) if row[t] and row[t + 1]} for row in rows]
    if not any(candidates):
        with pytest.raises(NoAnchorError):
            sample_anchors(mask, most)
        return
    anchors = sample_anchors(mask, most)
    assert anchors.shape == (len(rows), min(most, max(map(len, candidates))))
    for found, allowed in zip(anchors.tolist(), candidates, strict=True):
        kept = [anchor for anchor in found if anchor != DROPPED]
        assert kept == sorted(set(kept))
        assert set(kept) <= allowed
        assert len(kept) == min(len(allowed), anchors.shape[1])
        assert found[len(kept) :] == [DROPPED] * (len(found) - len(kept))


def test_every_candidate_is_drawn_as_often() -> None:
    mask = torch.ones(4000, 6)
    anchors = sample_anchors(mask, 2, torch.Generator().manual_seed(1))
    counts = torch.bincount(anchors.flatten(), minlength=6).float() / anchors.numel()
    assert torch.allclose(counts[:5], torch.full((5,), 0.2), atol=0.02)
    assert counts[5] == 0


@pytest.mark.parametrize("mask", [torch.zeros(2, 5), torch.tensor([[1, 0, 1, 0]]), torch.ones(1, 1), torch.ones(1, 0)])
def test_nothing_to_anchor(mask: torch.Tensor) -> None:
    with pytest.raises(NoAnchorError):
        sample_anchors(mask, 4)


def test_the_generator_decides() -> None:
    first, again, other = (sample_anchors(torch.ones(3, 40), 5, torch.Generator().manual_seed(s)) for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_slots_hold_the_anchor_token_then_masks() -> None:
    tokens = torch.arange(10).expand(2, -1) + torch.tensor([[0], [20]])
    ids = noise_ids(tokens, torch.tensor([[1, 5], [0, DROPPED]]), 3, 99)
    assert ids.tolist() == [[1, 99, 99, 5, 99, 99], [20, 99, 99, 99, 99, 99]]


def test_what_lies_ahead_ends_with_the_sequence() -> None:
    tokens = torch.arange(1, 7)[None]
    assert ahead(tokens, torch.tensor([[0, 4, DROPPED]]), 4).tolist() == [[[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]]
