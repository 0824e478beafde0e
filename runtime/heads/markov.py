"""Markov heads of DSpark: a bias on the logits of a slot from the token before it, by way of R channels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MarkovHead(nn.Module):
    """The vanilla head: the bias on a slot's logits is `markov_w2 e`, with e = `markov_w1[previous token]`.

    `markov_w1` has a row for each of the target's V tokens, `markov_w2` one for each that the draft can propose. The
    other heads change what `markov_w2` is applied to: the features. They read `hidden`, which this one does not.
    """

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int, hidden_size: int) -> None:  # noqa: ARG002
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)

    def embedded(self, previous: Tensor) -> Tensor:
        """Return e of the tokens `previous [..]`, `[.., R]`."""
        return self.markov_w1(previous)

    def features(self, hidden: Tensor, previous: Tensor) -> Tensor:  # noqa: ARG002 - one signature for all heads
        """Features `[.., T, R]` of T steps in order, from `hidden [.., T, H]` and `previous [.., T]`."""
        return self.embedded(previous)

    def step_features(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features `[B, R]` of one step, from `hidden [B, H]` and `previous [B]`, and the state after it."""
        return self.features(hidden, previous), state


class GatedMarkovHead(MarkovHead):
    """Features are `sigmoid(gate_proj [hidden; e]) * e`."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, draft_vocab_size, rank, hidden_size)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def features(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Features `[.., T, R]` of T steps, each for itself."""
        e = self.embedded(previous)
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, e], dim=-1))) * e


class RecurrentMarkovHead(MarkovHead):
    """Features come from a state s `[R]` that runs along the block, zero before its first step.

    (g, c, o) = `joint_proj [s; e; hidden]`; s becomes sigmoid(g) s + (1 - sigmoid(g)) tanh(c); features are tanh(o).
    """

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__(vocab_size, draft_vocab_size, rank, hidden_size)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def features(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Features `[.., T, R]` of T steps in order."""
        driven = self.driven(hidden, previous)
        state = torch.zeros_like(driven[..., 0, : self.markov_w1.embedding_dim])
        found = []
        for step in driven.unbind(-2):
            features, state = self.advance(step, state)
            found.append(features)
        return torch.stack(found, dim=-2)

    def step_features(self, hidden: Tensor, previous: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Features `[B, R]` of one step after `state [B, R]`, None before the first, and the state after it."""
        driven = self.driven(hidden, previous)
        before = torch.zeros_like(driven[..., : self.markov_w1.embedding_dim]) if state is None else state
        return self.advance(driven, before)

    def driven(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """The part of `joint_proj` that no state enters, `[.., 3R]`: one product for all steps."""
        rows = torch.cat([self.embedded(previous), hidden], dim=-1)
        return F.linear(rows, self.joint_proj.weight[:, self.markov_w1.embedding_dim :], self.joint_proj.bias)

    def advance(self, driven: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: features and the next state, both `[.., R]`, from `driven [.., 3R]` and `state [.., R]`."""
        joined = driven + F.linear(state, self.joint_proj.weight[:, : self.markov_w1.embedding_dim])
        gate, candidate, out = joined.chunk(3, dim=-1)
        kept = torch.sigmoid(gate)
        return torch.tanh(out), kept * state + (1 - kept) * torch.tanh(candidate)
