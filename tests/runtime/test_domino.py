"""Domino's correction against its formulas in numpy, for every prefix and both conventions of slots."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from draftc.runtime.heads.prefix import PrefixGRU
from draftc.spec.layout import Domino
from tests.runtime.headed import headed, hidden_states, tables

STATES, NARROW = 6, 5
# Of 4 slots, p = 3 leaves nothing to correct when they are not shifted: the language refuses it.
MATRIX = [(0, False), (1, False), (2, False), (0, True), (1, True), (2, True), (3, True)]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru_states(embeddings: np.ndarray, w_in: np.ndarray, w_state: np.ndarray) -> np.ndarray:
    """The state after each row of `embeddings [T, I]`, thirds of the weights being reset, update, candidate."""
    h, found = np.zeros(STATES), []
    for x in embeddings:
        (wr, wz, wn), (ur, uz, un) = np.split(w_in, 3), np.split(w_state, 3)
        r, z = sigmoid(wr @ x + ur @ h), sigmoid(wz @ x + uz @ h)
        n = np.tanh(wn @ x + r * (un @ h))
        h = (1 - z) * n + z * h
        found.append(h)
    return np.stack(found)


def slot_logits(block: np.ndarray, tokens: np.ndarray, weights: dict[str, np.ndarray], p: int, shift: bool):
    """Logits `[b, V]` of one block as the public formulas index slots: `block [b, H]`, `tokens [b]` from the anchor on.

    Unshifted, the recurrence reads the first b-1 tokens, and slot j >= 1 + p uses the state after b_{j-1}; shifted, it
    reads all, and slot j >= p uses the state after b_j.
    """
    read = weights["embed"][tokens]
    states = gru_states(
        read if shift else read[:-1], weights["prefix_gru.weight_ih_l0"], weights["prefix_gru.weight_hh_l0"]
    )
    start = p if shift else 1 + p
    logits = block @ weights["lm_head"].T
    for slot in range(start, len(block)):
        row = np.concatenate([block[slot], states[slot if shift else slot - 1]])
        inner = weights["embed_proj.0.weight"] @ row
        logits[slot] += weights["embed_proj.2.weight"] @ (inner * sigmoid(inner))
    return logits, start


def numbers(draft: nn.Module, embed: nn.Module, lm_head: nn.Module) -> dict[str, np.ndarray]:
    found = {name: value.numpy() for name, value in draft.state_dict().items()}
    return {**found, "embed": embed.weight.detach().numpy(), "lm_head": lm_head.weight.detach().numpy()}


@pytest.mark.parametrize(("p", "shift"), MATRIX)
def test_every_prefix_and_both_conventions(p: int, shift: bool) -> None:
    draft = headed(Domino(STATES, NARROW, p, shift))
    embed, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=2, blocks=2)
    tokens = torch.randint(0, 100, (2, 2, 5), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = draft.block_scores(hidden, tokens[..., : draft.slots.steps], lm_head, embed)
    weights = numbers(draft, embed, lm_head)
    for row, block in itertools.product(range(2), range(2)):
        own = hidden[row, block * 4 : block * 4 + 4].numpy()
        want, start = slot_logits(own, tokens[row, block, :4].numpy(), weights, p, shift)
        first = draft.slots.first
        np.testing.assert_allclose(found.scores[row, block].numpy(), want[first:], rtol=1e-11, atol=1e-11)
        pure = found.scores[row, block, : start - first]
        assert torch.equal(pure, found.logits[row, block, : start - first])
        assert (found.scores[row, block, start - first :] != found.logits[row, block, start - first :]).any(-1).all()


@pytest.mark.parametrize(("p", "shift"), [(0, False), (1, False), (0, True), (1, True)])
def test_drafting_is_the_published_rollout(p: int, shift: bool) -> None:
    """Token by token, the whole head recomputed on the block filled so far; slot t - 1 is read if shifted, else t."""
    draft = headed(Domino(STATES, NARROW, p, shift))
    embed, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=1)
    tokens = draft.draft_tokens(hidden, torch.tensor([42]), lm_head, embed).tokens[0]
    weights, filled = numbers(draft, embed, lm_head), np.zeros(4, dtype=int)
    filled[0] = 42
    for t in range(1, 4):
        logits, _ = slot_logits(hidden[0].numpy(), filled, weights, p, shift)
        filled[t] = logits[t - 1 if shift else t].argmax()
    assert tokens.tolist() == filled[1:].tolist()


def test_the_recurrence_is_torchs() -> None:
    torch.manual_seed(0)
    theirs = nn.GRU(7, STATES, bias=False, batch_first=True).double()
    ours = PrefixGRU(7, STATES).double()
    ours.load_state_dict(theirs.state_dict())
    inputs = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    want, last = theirs(inputs)
    got = ours(inputs)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(want)
    for mine, other in zip(
        torch.autograd.grad((got * weight).sum(), [inputs, *ours.parameters()]),
        torch.autograd.grad((want * weight).sum(), [inputs, *theirs.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-12)
    state = None
    for step in range(5):
        state = ours.step(inputs[:, step], state)
    torch.testing.assert_close(state, last[0], rtol=1e-12, atol=1e-12)
