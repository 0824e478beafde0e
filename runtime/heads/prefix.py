"""The recurrence of Domino: what the tokens of a block say so far."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PrefixGRU(nn.Module):
    """Gated recurrent units in torch's form, one layer without biases, under the names of `torch.nn.GRU`.

    With r, z the sigmoids of the first two thirds of W x + U h and W_n, U_n the last thirds, n = tanh(W_n x + r U_n h)
    and h becomes (1 - z) n + z h, from zero. W is `weight_ih_l0 [3G, I]`, U is `weight_hh_l0 [3G, G]`.
    Written out because a draft runs it step by step while decoding and inside compiled and sharded models.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih_l0 = nn.Parameter(torch.zeros(3 * hidden_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.zeros(3 * hidden_size, hidden_size))

    def forward(self, inputs: Tensor) -> Tensor:
        """States `[.., T, G]` after each of `inputs [.., T, I]`."""
        driven = F.linear(inputs, self.weight_ih_l0)
        state = torch.zeros_like(driven[..., 0, : self.hidden_size])
        found = []
        for step in driven.unbind(-2):
            state = self.advance(step, state)
            found.append(state)
        return torch.stack(found, dim=-2)

    def step(self, inputs: Tensor, state: Tensor | None) -> Tensor:
        """The state `[.., G]` after `inputs [.., I]` and `state [.., G]`, None before the first."""
        driven = F.linear(inputs, self.weight_ih_l0)
        return self.advance(driven, torch.zeros_like(driven[..., : self.hidden_size]) if state is None else state)

    def advance(self, driven: Tensor, state: Tensor) -> Tensor:
        """The next state from `driven [.., 3G]`, which is W x, and `state [.., G]`."""
        reset, update, candidate = driven.chunk(3, dim=-1)
        recalled = F.linear(state, self.weight_hh_l0).chunk(3, dim=-1)
        kept = torch.sigmoid(update + recalled[1])
        fresh = torch.tanh(candidate + torch.sigmoid(reset + recalled[0]) * recalled[2])
        return (1 - kept) * fresh + kept * state
