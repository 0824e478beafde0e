"""How tokens are chosen and proposals judged: greedily, or sampled so that the target's distribution is kept.

Sampling is speculative sampling (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318): a token x drawn
from q is kept with probability min(1, p(x) / q(x)); where the first one is rejected, the next token comes from the
positive part of p - q; where all are kept, from p. What comes out is distributed as p, whatever q.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftc.runtime.generation.errors import GenerationError
from draftc.runtime.heads.scores import Drafted


class Verdict(NamedTuple):
    """How many proposed tokens stand, and the token after them, both `[B]` int64."""

    accepted: Tensor
    following: Tensor


class Judge(Protocol):
    """How tokens are chosen."""

    def choose(self, scores: Tensor) -> Tensor:
        """A column of the draft's `scores [.., V']` for each row, `[..]`."""

    def judge(self, drafted: Drafted, logits: Tensor) -> Verdict:
        """Compare D proposed tokens with `logits [B, D+1, V]` of the target, the last of which stand behind them."""


@dataclass(frozen=True, slots=True)
class GreedyJudge:
    """The target's most probable token, always: a proposal stands as long as it agrees."""

    def choose(self, scores: Tensor) -> Tensor:
        """The column of the highest score."""
        return scores.argmax(-1)

    def judge(self, drafted: Drafted, logits: Tensor) -> Verdict:
        """Accept what the target would have chosen itself."""
        wanted = logits.argmax(-1)
        agreed = drafted.tokens == wanted[:, :-1]
        return verdict(agreed, wanted)


def verdict(agreed: Tensor, wanted: Tensor) -> Verdict:
    """Accept up to the first `agreed [B, D]` that is false; what follows is taken from `wanted [B, D+1]`."""
    accepted = agreed.long().cumprod(-1).sum(-1)
    return Verdict(accepted, wanted.gather(1, accepted[:, None])[:, 0])


@dataclass(frozen=True, slots=True)
class SamplingJudge:
    """Sample from `target_warpers` of the target's logits; proposals are sampled from `draft_warpers` of the draft's.

    Without `draft_warpers` proposals are the draft's most probable tokens.
    """

    target_warpers: LogitsProcessorList
    draft_warpers: LogitsProcessorList | None
    generator: torch.Generator | None

    def choose(self, scores: Tensor) -> Tensor:
        """A column drawn for each row."""
        if self.draft_warpers is None:
            return scores.argmax(-1)
        return drawn(probabilities(scores, self.draft_warpers), self.generator)

    def judge(self, drafted: Drafted, logits: Tensor) -> Verdict:
        """Accept and replace so that the tokens are distributed as the target's own."""
        p = probabilities(logits, self.target_warpers)
        q = self.proposed(drafted, p.shape[-1])
        of_target = p[:, :-1].gather(-1, drafted.tokens[..., None])[..., 0]
        of_draft = q.gather(-1, drafted.tokens[..., None])[..., 0]
        kept = torch.rand(of_draft.shape, generator=self.generator, device=p.device) * of_draft < of_target
        accepted = kept.long().cumprod(-1).sum(-1)
        at = accepted[:, None, None].expand(-1, 1, p.shape[-1])
        nothing = torch.zeros_like(p[:, :1])
        rest = (p.gather(1, at) - torch.cat([q, nothing], dim=1).gather(1, at))[:, 0].clamp(min=0)
        # Rounding alone can leave nothing of p - q; then p and q agree, and a draw from p is right.
        rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, p.gather(1, at)[:, 0])
        return Verdict(accepted, drawn(rest, self.generator))

    def proposed(self, drafted: Drafted, vocabulary: int) -> Tensor:
        """The distributions q `[B, D, V]` that the tokens of `drafted` were drawn from."""
        if self.draft_warpers is None or not drafted.tokens.shape[1]:
            sure = drafted.scores.new_zeros(*drafted.tokens.shape, vocabulary, dtype=torch.float32)
            return sure.scatter(-1, drafted.tokens[..., None], 1.0)
        q = probabilities(drafted.scores, self.draft_warpers)
        if drafted.candidates is None:
            return q
        return q.new_zeros(*q.shape[:-1], vocabulary).scatter(-1, drafted.candidates.expand_as(q), q)


def probabilities(logits: Tensor, warpers: LogitsProcessorList) -> Tensor:
    """`[.., V] -> [.., V]` float32: `logits` warped, which looks at no earlier token, then normalised."""
    rows = logits.float().flatten(0, -2)
    nothing: Any = torch.empty(rows.shape[0], 0, dtype=torch.long, device=rows.device)
    return warpers(nothing, rows).softmax(-1).view(logits.shape)


def drawn(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """A column for each row of `weights [.., V]`, drawn in proportion to them: `[..]`."""
    return torch.multinomial(weights.flatten(0, -2), 1, generator=generator).view(weights.shape[:-1])


def warpers(temperature: float, top_k: int | None, top_p: float | None) -> LogitsProcessorList:
    """The warpers of transformers, in its order. Raises `GenerationError` for values that they refuse."""
    try:
        found = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
        if top_k:
            found.append(TopKLogitsWarper(top_k))
        if top_p is not None and top_p < 1.0:
            found.append(TopPLogitsWarper(top_p))
    except ValueError as error:
        raise GenerationError(" ".join(str(error).split())) from None
    return found


def make_judge(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    draft_temperature: float | None,
    generator: torch.Generator | None,
) -> Judge:
    """The judge for `temperature`, 0 for greedy; the draft's own, the same unless given, is 0 for greedy as well.

    `top_k` and `top_p` hold for both. Raises `GenerationError` for a value out of range.
    """
    if temperature == 0:
        return GreedyJudge()
    own = temperature if draft_temperature is None else draft_temperature
    proposing = warpers(own, top_k, top_p) if own != 0 else None
    return SamplingJudge(warpers(temperature, top_k, top_p), proposing, generator)
