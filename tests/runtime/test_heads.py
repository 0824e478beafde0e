"""What every family's heads share: slots, and a training form that is the decoding form."""

import itertools

import pytest
import torch
from torch import Tensor

from draftc.runtime.heads.slots import domino_slots, dspark_slots, own_slots
from draftc.runtime.heads.vocabulary import draft_rows, vocabulary_maps
from draftc.runtime.rows import DraftInputError
from draftc.spec.layout import Dspark, Target
from tests.runtime.headed import FAMILIES, headed, hidden_states, tables

CASES = [pytest.param(name, {}, id=name) for name in FAMILIES]
NARROW = Target(hidden_size=40, num_hidden_layers=8, vocab_size=100)
CASES += [
    pytest.param(name, changes, id=f"{name}-{word}")
    for word, changes in {
        "narrow": {"target": NARROW},
        "reduced": {"draft_vocab_size": 30},
        "scaled": {"input_embedding_scale": 3.0, "output_multiplier": 0.7, "final_logit_softcapping": 2.0},
    }.items()
    for name in ("dflash", "dflash2", "domino-shifted-prefix", "dspark-vanilla", "dspark-own-rnn")
    if word != "reduced" or not name.startswith(("dflash2", "domino"))
]


@pytest.mark.parametrize(
    ("rule", "first", "steps", "drafted"),
    [
        (own_slots(8), 1, 7, 7),
        (domino_slots(8, False), 1, 7, 7),
        (domino_slots(8, True), 0, 8, 7),
        (dspark_slots(8, False), 1, 7, 7),
        (dspark_slots(8, True), 0, 8, 8),
    ],
)
def test_slots(rule, first, steps, drafted) -> None:
    assert (rule.first, rule.steps, rule.drafted) == (first, steps, drafted)
    anchor, slot = 50, torch.arange(8)
    predicted = (anchor + slot + rule.offset)[rule.first :]
    assert torch.equal(predicted, anchor + 1 + torch.arange(steps))
    rows = torch.arange(2 * 8.0).view(1, 16, 1)
    assert rule.predicting(rows).squeeze(-1).tolist() == [[[n * 8 + k for k in range(first, 8)] for n in range(2)]]
    assert rule.drafting(rows[:, :8]).flatten().tolist() == list(range(first, first + drafted))


def by_weight(scores: Tensor) -> Tensor:
    """A choice that no argmax makes: the column that a fixed draw from softmax gives."""
    generator = torch.Generator().manual_seed(int(scores.shape[-1]))
    points = torch.rand(scores.shape[:-1], generator=generator, dtype=scores.dtype)
    return (scores.softmax(-1).cumsum(-1) < points[..., None]).sum(-1).clamp(max=scores.shape[-1] - 1)


@pytest.mark.parametrize("choose", [None, by_weight])
@pytest.mark.parametrize(("name", "changes"), CASES)
def test_training_form_is_decoding_form(name, changes, choose) -> None:
    draft = headed(FAMILIES[name], **changes)
    embed, lm_head = tables(draft)
    hidden, anchors = hidden_states(draft), torch.tensor([7, 0, 99])
    given = {} if choose is None else {"choose": choose}
    with torch.no_grad():
        drafted = draft.draft_tokens(hidden, anchors, lm_head, embed, **given)
        count = draft.slots.drafted
        # The step that is trained and not drafted, where there is one, comes after the last drafted token.
        previous = torch.cat([anchors[:, None], drafted.tokens], dim=1)[:, : draft.slots.steps]
        told = draft.block_scores(hidden, previous[:, None], lm_head, embed)
    assert drafted.tokens.shape == (3, count)
    torch.testing.assert_close(told.scores[:, 0, :count], drafted.scores, rtol=1e-12, atol=1e-12)
    if told.candidates is not None and told.candidates.ndim > 1:
        assert torch.equal(told.candidates[:, 0, :count], drafted.candidates)
    if told.confidence is not None:
        assert told.confidence.shape == (3, 1, draft.slots.steps)
        torch.testing.assert_close(told.confidence[:, 0, :count], drafted.confidence, rtol=1e-12, atol=1e-12)
    assert (told.confidence is None) == (drafted.confidence is None)
    if choose is None:
        best = drafted.scores.argmax(-1)
        assert torch.equal(ids_of(best, drafted.candidates), drafted.tokens)


def ids_of(choice: Tensor, candidates: Tensor | None) -> Tensor:
    if candidates is None:
        return choice
    wide = candidates if candidates.ndim > 1 else candidates.expand(*choice.shape, -1)
    return wide.gather(-1, choice[..., None]).squeeze(-1)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_and_blocks_do_not_mix(name) -> None:
    draft = headed(FAMILIES[name])
    embed, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=2, blocks=3)
    previous = torch.randint(0, 100, (2, 3, draft.slots.steps), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        together = draft.block_scores(hidden, previous, lm_head, embed)
        for row, block in itertools.product(range(2), range(3)):
            own = hidden[row : row + 1, block * 4 : block * 4 + 4]
            alone = draft.block_scores(own, previous[row : row + 1, block : block + 1], lm_head, embed)
            for whole, part in zip(together, alone, strict=True):
                if whole is not None:
                    torch.testing.assert_close(whole[row, block], part[0, 0], rtol=1e-13, atol=1e-13)
        one_by_one = [
            draft.draft_tokens(h[None, :4], p[:1, 0], lm_head, embed).tokens
            for h, p in zip(hidden, previous, strict=True)
        ]
        both = draft.draft_tokens(hidden[:, :4], previous[:, 0, 0], lm_head, embed).tokens
    assert torch.equal(torch.cat(one_by_one), both)


@pytest.mark.parametrize("name", ["domino", "domino-shifted-prefix", "dspark-rnn", "dspark-own-gated", "dflash2"])
def test_scores_of_a_step_depend_on_the_tokens_before_it_only(name) -> None:
    draft = headed(FAMILIES[name])
    embed, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=1)
    previous = torch.arange(draft.slots.steps)[None, None]
    with torch.no_grad():
        base = draft.block_scores(hidden, previous, lm_head, embed).scores
        for step in range(draft.slots.steps):
            changed = previous.clone()
            changed[..., step] = 77
            moved = (draft.block_scores(hidden, changed, lm_head, embed).scores - base).abs().amax(-1)[0, 0] > 0
            assert not moved[:step].any()
            assert moved[step:].any()


def test_rows_in_parts_give_the_same_scores() -> None:
    for name in ("dflash2", "domino-prefix", "dspark-own-rnn"):
        draft = headed(FAMILIES[name])
        embed, lm_head = tables(draft)
        hidden = hidden_states(draft, batch=1, blocks=4)
        previous = torch.arange(4 * draft.slots.steps).view(1, 4, -1)
        with torch.no_grad():
            whole = draft.block_scores(hidden, previous, lm_head, embed).scores[0]
            rows = draft.block_rows(hidden, previous, embed)
            for block in range(4):
                part = draft.unary(rows.hidden[0, block], lm_head)
                scores = draft.corrected(part, rows.features[0, block])
                torch.testing.assert_close(scores, whole[block], rtol=1e-13, atol=1e-13)


def test_what_a_draft_refuses() -> None:
    domino = headed(FAMILIES["domino"])
    embed, lm_head = tables(domino)
    hidden = hidden_states(domino, batch=1)
    anchor, previous = torch.tensor([3]), torch.zeros(1, 1, 3, dtype=torch.long)
    with pytest.raises(DraftInputError, match="give the target's `embed`"):
        domino.draft_tokens(hidden, anchor, lm_head)
    with pytest.raises(DraftInputError, match="give the target's `embed`"):
        domino.block_scores(hidden, previous, lm_head)
    with pytest.raises(DraftInputError, match="no output head"):
        domino.draft_tokens(hidden, anchor, None, embed)
    with pytest.raises(DraftInputError, match=r"\[1, 3, 24\] must be one block of 4"):
        domino.draft_tokens(hidden[:, :3], anchor, lm_head, embed)
    with pytest.raises(DraftInputError, match="not whole blocks of 4"):
        domino.block_scores(hidden[:, :3], previous, lm_head, embed)
    with pytest.raises(DraftInputError, match=r"previous \[1, 1, 2\] must be \[1, 1, 3\]"):
        domino.block_scores(hidden, previous[..., :2], lm_head, embed)


def test_a_reduced_vocabulary() -> None:
    tokens = torch.tensor([9, 2, 5])
    d2t, t2d = vocabulary_maps(tokens, 12)
    assert d2t.tolist() == [2, 4, 7]
    assert t2d.nonzero().flatten().tolist() == [2, 5, 9]
    assert draft_rows(torch.tensor([[2, 3], [9, 5]]), d2t, 12).tolist() == [[0, -1], [2, 1]]
    with pytest.raises(DraftInputError, match="3 distinct"):
        vocabulary_maps(torch.tensor([1, 2, 2, 3]), 12)
    with pytest.raises(DraftInputError, match="outside a vocabulary of 8"):
        vocabulary_maps(tokens, 8)
    draft = headed(Dspark(True, 6, "vanilla", True, True), draft_vocab_size=30)
    shapes = {name: tuple(value.shape) for name, value in draft.state_dict().items()}
    assert shapes["lm_head.weight"] == (30, 24)
    assert shapes["d2t"] == (30,)
    assert shapes["t2d"] == (100,)
    assert shapes["markov_head.markov_w1.weight"] == (100, 6)
    assert shapes["markov_head.markov_w2.weight"] == (30, 6)
    drafted = draft.draft_tokens(hidden_states(draft), torch.tensor([0, 1, 2]))
    assert drafted.scores.shape == (3, 4, 30)
    assert draft.t2d[drafted.tokens].all()
    assert torch.equal(draft_rows(drafted.tokens, draft.d2t, 100), drafted.scores.argmax(-1))


@pytest.mark.parametrize("name", ["dflash", "dflash2", "domino-prefix", "dspark-rnn", "dspark-own-gated"])
def test_both_forms_are_one_graph(name) -> None:
    draft = headed(FAMILIES[name])
    embed, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=2, blocks=2)
    previous = torch.arange(4 * draft.slots.steps).view(2, 2, -1)
    torch._dynamo.reset()

    def both(hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        scored = draft.block_scores(hidden, previous, lm_head, embed)
        drafted = draft.draft_tokens(hidden[:, :4], previous[:, 0, 0], lm_head, embed)
        return scored.scores, drafted.tokens

    with torch.no_grad():
        want = both(hidden, previous)
        got = torch.compile(both, backend="eager", fullgraph=True)(hidden, previous)
    assert all(torch.equal(mine, other) for mine, other in zip(got, want, strict=True))
