"""Greedy speculation gives the target's own greedy tokens, whatever is accepted, for every kind of draft and target."""

import random

import pytest
import torch

from draftc.runtime.generate import generate, stream
from tests.generation.support import (
    FAMILIES,
    STACKS,
    TARGETS,
    Planted,
    plain_tokens,
    prompts,
    small_draft,
    small_target,
)

TOLERANCE = 1e-5  # relative, of hidden states: targets round to float32 inside, a wrong row shows at 1e-2


def planted_case(
    stack: tuple[str, ...], kind: str, block_size: int, seed: int, family: str = "dflash", own: int | None = None
) -> Planted:
    """Decode a random batch with planted proposals, and prove its tokens, its lengths and its hidden states."""
    draw = random.Random(seed)
    ids, mask = prompts([draw.randint(1, 12) for _ in range(draw.choice((1, 1, 2, 3)))], seed)
    count = draw.randint(1, 24)
    draft = small_draft(stack, block_size, FAMILIES[family], own_vocabulary=own)
    case = Planted(draft, small_target(kind), ids, mask, count, seed)
    rounds = case.rounds()
    for row, wanted in enumerate(case.wanted):
        assert [t for each in rounds for t in each.tokens.get(row, ())] == wanted[:count]
    for each, lengths in zip(rounds[1:], case.planted, strict=False):
        assert all(each.acceptance_lengths[row] in (length, *room(case, length)) for row, length in lengths.items())
    assert case.worst < TOLERANCE
    return case


def room(case: Planted, length: int) -> range:
    """Lengths of a last round, in which no row has room for all that was planted."""
    return range(1, length) if not case.run.rows else range(0)


@pytest.mark.parametrize("stack", STACKS, ids="-".join)
@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_planted_proposals(stack: tuple[str, ...], kind: str) -> None:
    for seed in range(3):
        planted_case(stack, kind, (2, 4, 7)[seed], seed)


@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_of_target(kind: str) -> None:
    for seed in range(3):
        planted_case(("near", "scan"), kind, 4, 10 + seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    for seed in range(2):
        planted_case(("near", "scan"), "full", 4, 20 + seed, family)


@pytest.mark.parametrize("family", ["dflash", "dspark"])
def test_a_reduced_vocabulary(family: str) -> None:
    planted_case(("context",), "full", 4, 30, family, own=30)


def test_planting_reaches_every_length() -> None:
    """What the cases above rest on: rows of one round accept different numbers, from none to all."""
    ids, mask = prompts([3, 8, 5])
    case = Planted(small_draft(("near", "scan"), 4), small_target(), ids, mask, 40, 0)
    rounds = case.rounds()
    seen = {length for each in rounds for length in each.acceptance_lengths.values()}
    assert seen == {1, 2, 3, 4}
    assert any(len(set(each.acceptance_lengths.values())) > 1 for each in rounds)
    assert case.worst < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_hundreds_of_random_cases(seed: int) -> None:
    draw = random.Random(1000 + seed)
    stack, kind, family = draw.choice(STACKS), draw.choice(list(TARGETS)), draw.choice(list(FAMILIES))
    planted_case(stack, kind, draw.randint(2, 8), seed, family)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_result_is_what_generate_returns(kind: str) -> None:
    target = small_target(kind)
    ids, mask = prompts([4, 9, 6])
    plain = target.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    found = generate(small_draft(("near", "latent")), target, ids, mask, max_new_tokens=12)
    assert torch.equal(found.sequences, plain)
    assert found.rounds == max(map(len, found.acceptance_lengths))
    assert found.mean_acceptance_length >= 1
    assert found.tokens_per_second > 0


def test_padding_may_stand_on_either_side() -> None:
    target, draft = small_target(), small_draft(("scan", "context"))
    ids, mask = prompts([4, 9])
    right_ids, right_mask = ids.clone(), mask.clone()
    right_ids[0], right_mask[0] = ids[0].roll(4), mask[0].roll(4)
    left = generate(draft, target, ids, mask, max_new_tokens=9)
    right = generate(draft, target, right_ids, right_mask, max_new_tokens=9)
    assert left.new_tokens == right.new_tokens
    assert torch.equal(left.sequences, right.sequences)


def test_every_row_stops_at_its_own_stop_token() -> None:
    target, draft = small_target(), small_draft()
    ids, mask = prompts([5, 7, 2], seed=4)
    plain = plain_tokens(target, ids, mask, 20)
    stops = {plain[0][3], plain[1][11]}
    found = generate(draft, target, ids, mask, max_new_tokens=20, stop_token_ids=stops)
    for line, wanted in zip(found.new_tokens, plain, strict=True):
        ends = [at for at, token in enumerate(wanted) if token in stops]
        assert list(line) == (wanted[: ends[0] + 1] if ends else wanted)
    assert len({len(line) for line in found.new_tokens}) > 1
    assert set(found.sequences[0, 7 + len(found.new_tokens[0]) :].tolist()) <= {0}


def test_a_stop_token_inside_an_accepted_block_ends_the_row_there() -> None:
    target, draft = small_target(), small_draft(block_size=7)
    ids, mask = prompts([5])
    wanted = plain_tokens(target, ids, mask, 40)[0]
    for stop in dict.fromkeys(wanted[1:20]):
        case = Planted(draft, target, ids, mask, 30, seed=1)
        object.__setattr__(case.run.limits, "stop_token_ids", frozenset({stop}))
        found = [token for each in case.rounds() for token in each.tokens[0]]
        assert found == wanted[: wanted.index(stop) + 1]


def test_the_stop_tokens_and_the_repetition_penalty_of_the_target_hold() -> None:
    target, draft = small_target(), small_draft(("near", "context"))
    ids, mask = prompts([5, 7])
    own = target.generation_config
    penalised = {"repetition_penalty": 1.7}
    plain = plain_tokens(target, ids, mask, 16, **penalised)
    assert plain != plain_tokens(target, ids, mask, 16)
    try:
        own.repetition_penalty, own.eos_token_id = 1.7, [plain[0][6]]
        found = generate(draft, target, ids, mask, max_new_tokens=16)
    finally:
        own.repetition_penalty = own.eos_token_id = None
    assert list(found.new_tokens[0]) == plain[0][: plain[0].index(plain[0][6]) + 1]


@pytest.mark.parametrize("tap", ["pre_norm", "post_norm"])
def test_the_final_tap_is_the_one_that_the_layout_names(tap: str) -> None:
    """Behind the last layer transformers hands out normed states; before the norm they come from the layer itself."""
    target, draft = small_target(), small_draft(taps=(1, 3), final_tap=tap)
    ids, mask = prompts([6])
    seen = []
    hook = draft.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(inputs["context_hidden_states"]), with_kwargs=True
    )
    list(stream(draft, target, ids, mask, max_new_tokens=3))
    hook.remove()
    raw = []
    hook = target.model.layers[3].register_forward_hook(lambda _, __, output: raw.append(output))
    normed = target(ids, output_hidden_states=True).hidden_states
    hook.remove()
    last = raw[0] if tap == "pre_norm" else normed[4]
    assert torch.allclose(seen[0], torch.cat([normed[2], last], dim=-1), rtol=1e-12)
    assert not torch.allclose(raw[0], normed[4], rtol=1e-3)
