"""The candidate selector of DFlash2: which of a slot's best tokens goes with the token before it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftc.runtime.heads.scores import Unary


class CandidateSelector(nn.Module):
    """Scores of a slot's K best tokens: their logits plus sum_r A[previous]_r (W h)_r B[candidate]_r.

    A is `predecessor_codebook [V, r]`, B `successor_codebook [V, r]`, W `hidden_projection`. A successor codebook of
    zeros, which is how it starts, leaves the logits as they are. The keys of the codebooks end in their names.
    """

    def __init__(self, vocab_size: int, hidden_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)

    def features(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """A[previous] (W h), `[.., r]`, of `hidden [.., H]` and `previous [..]`."""
        return F.embedding(previous, self.predecessor_codebook) * self.hidden_projection(hidden)

    def candidates(self, logits: Tensor) -> Unary:
        """The K best of `logits [.., V]`, in order of their ids, so that of equal scores the first token wins."""
        tokens = logits.topk(self.top_k, dim=-1).indices.sort(dim=-1).values
        return Unary(logits, logits.gather(-1, tokens), tokens)

    def transition(self, features: Tensor, tokens: Tensor) -> Tensor:
        """What `features [.., r]` add to the scores of `tokens [.., K]`: `[.., K]`."""
        successors = F.embedding(tokens, self.successor_codebook)
        return (successors @ features[..., None]).squeeze(-1)
