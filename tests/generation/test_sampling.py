"""Sampled speculation draws from the target's own distribution, whatever the draft proposes.

Thousands of equal prompts are one batch; how often each sequence of tokens came is compared with its exact probability
under the target. The statistic is Pearson's: of `df` degrees of freedom, it stays below df + 5 sqrt(2 df) but for one
seed in 100,000, and seeds are fixed. That the bound bites is shown by breaking the rule.
"""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList

from draftc.runtime.generate import generate
from draftc.runtime.generation.errors import GenerationError
from draftc.runtime.generation.sampling import SamplingJudge, Verdict, drawn, make_judge, probabilities, warpers
from draftc.runtime.heads.scores import Drafted
from tests.generation.support import FAMILIES, plain_tokens, prompts, small_draft, small_target

VOCABULARY = 8
ROWS = 6000
RULES = {
    "plain": {"temperature": 1.0},
    "warm": {"temperature": 1.7},
    "top-k": {"temperature": 1.0, "top_k": 4},
    "top-p": {"temperature": 1.2, "top_p": 0.8},
    "greedy-draft": {"temperature": 1.0, "draft_temperature": 0.0},
    "cold-draft": {"temperature": 1.0, "draft_temperature": 0.4},
    "hot-draft": {"temperature": 0.7, "draft_temperature": 3.0, "top_k": 5},
}


def prompt() -> Tensor:
    return torch.tensor([[3, 1, 4, 1, 5]])


@torch.no_grad()
def exact(target: Any, rule: dict[str, Any]) -> Tensor:
    """The probability of each sequence of three tokens after the prompt, `[V, V, V]`, from the target's logits."""
    warped = warpers(rule["temperature"], rule.get("top_k"), rule.get("top_p"))
    found = torch.ones(())
    for length in range(3):
        grown = torch.tensor(list(product(range(VOCABULARY), repeat=length)), dtype=torch.long)
        texts = torch.cat([prompt().expand(len(grown), -1), grown], dim=1)
        logits = target(texts).logits[:, -1].float()
        step = warped(texts, logits).softmax(-1).view(*[VOCABULARY] * (length + 1))
        found = found[..., None] * step
    return found


def surplus(rows: Tensor, chances: Tensor) -> float:
    """How far Pearson's statistic of sampled `rows [N, 3]` lies above its mean, in standard deviations."""
    index = (rows[:, 0] * VOCABULARY + rows[:, 1]) * VOCABULARY + rows[:, 2]
    counts = torch.bincount(index, minlength=VOCABULARY**3).double()
    expected = chances.double().flatten() * len(rows)
    assert not counts[expected == 0].any(), "a sequence came that the target never samples"
    often = expected >= 5
    counts = torch.cat([counts[often], counts[~often].sum()[None]])
    expected = torch.cat([expected[often], expected[~often].sum()[None]])
    kept = expected > 0
    statistic = float(((counts - expected)[kept].square() / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def sampled(family: str, rule: dict[str, Any], own: int | None = None, seed: int = 0) -> tuple[float, float]:
    """Surplus of three tokens sampled for many equal prompts, and their mean acceptance length."""
    target = small_target(vocabulary=VOCABULARY)
    heads = FAMILIES[family] if family != "dflash2" else type(FAMILIES[family])(2, 4, 6, 5)
    draft = small_draft(family=heads, vocabulary=VOCABULARY, own_vocabulary=own)
    many = prompt().expand(ROWS, -1)
    found = generate(draft, target, many, max_new_tokens=4, stop_token_ids=(), seed=seed, **rule)
    rows = torch.tensor([line[:3] for line in found.new_tokens])
    return surplus(rows, exact(target, rule)), found.mean_acceptance_length


@pytest.mark.parametrize("rule", RULES)
def test_the_distribution_is_the_targets(rule: str) -> None:
    above, length = sampled("dflash", RULES[rule])
    assert above < 5
    assert 1.02 < length < 3.9


@pytest.mark.parametrize("family", FAMILIES)
def test_for_every_family(family: str) -> None:
    above, length = sampled(family, RULES["plain"], seed=1)
    assert above < 5
    assert length > 1.02


def test_for_a_reduced_vocabulary() -> None:
    above, length = sampled("dflash", RULES["plain"], own=4)
    assert above < 5
    assert length > 1.02


def accept_all(self: SamplingJudge, drafted: Drafted, logits: Tensor) -> Verdict:
    p = probabilities(logits, self.target_warpers)
    return Verdict(torch.full((len(p),), drafted.tokens.shape[1]), drawn(p[:, -1], self.generator))


def exact_match(self: SamplingJudge, drafted: Drafted, logits: Tensor) -> Verdict:
    """Rejects right, but replaces from p, not from p - q."""
    p = probabilities(logits, self.target_warpers)
    q = self.proposed(drafted, p.shape[-1])
    ratio = (p[:, :-1] / q.clamp(min=1e-30)).gather(-1, drafted.tokens[..., None])[..., 0]
    accepted = (torch.rand(ratio.shape, generator=self.generator) < ratio).long().cumprod(-1).sum(-1)
    return Verdict(accepted, drawn(p[torch.arange(len(p)), accepted], self.generator))


@pytest.mark.parametrize("wrong", [accept_all, exact_match])
def test_a_wrong_rule_is_seen(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SamplingJudge, "judge", wrong)
    assert sampled("dflash", RULES["plain"])[0] > 10


def test_the_target_against_itself_is_always_accepted() -> None:
    logits = torch.randn(50, 4, VOCABULARY)
    judge = make_judge(1.0, None, None, None, torch.Generator().manual_seed(0))
    tokens = judge.choose(logits[:, :3])
    found = judge.judge(Drafted(tokens, logits[:, :3], None, None), logits)
    assert (found.accepted == 3).all()


def test_a_seed_repeats_a_run_and_another_does_not() -> None:
    target, draft = small_target(), small_draft(("near", "scan"))
    ids, mask = prompts([4, 7])
    runs = [
        generate(draft, target, ids, mask, max_new_tokens=20, temperature=1.5, seed=seed).new_tokens
        for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_very_low_temperature_is_greedy() -> None:
    target, draft = small_target(), small_draft()
    ids, mask = prompts([4, 7])
    found = generate(draft, target, ids, mask, max_new_tokens=20, temperature=1e-4, seed=0)
    assert [list(line) for line in found.new_tokens] == plain_tokens(target, ids, mask, 20)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"temperature": 1.0, "top_p": -0.5}, {"temperature": 1.0, "top_k": -3}]
)
def test_options_out_of_range(wrong: dict[str, float]) -> None:
    ids, mask = prompts([4])
    with pytest.raises(GenerationError):
        generate(small_draft(), small_target(), ids, mask, **wrong)


def test_processors_see_the_own_tokens_of_each_row() -> None:
    """A processor that forbids the last token of its row, whatever the padding: no token comes twice in a row."""
    target, draft = small_target(), small_draft()
    ids, mask = prompts([2, 6, 4])

    class NoRepeat:
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores.scatter(1, input_ids[:, -1:], -math.inf)

    processors = LogitsProcessorList([NoRepeat()])
    plain = plain_tokens(target, ids, mask, 15, logits_processor=processors)
    found = generate(draft, target, ids, mask, max_new_tokens=15, logits_processor=processors)
    assert [list(line) for line in found.new_tokens] == plain
