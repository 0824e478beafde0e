"""How the hidden states of blocks become tokens: DFlash's rule, and what every family's rule is made of."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftc.runtime.config import DraftConfig
from draftc.runtime.heads.scores import BlockScores, Choose, Drafted, HeadRows, Unary, greedy
from draftc.runtime.heads.slots import SlotRule, own_slots
from draftc.runtime.rows import DraftInputError


class Drafting(nn.Module):
    """The part of a draft model behind its final norm. Here every slot speaks for itself.

    All families have the same two forms. `block_scores` is told the token before each predicted one and serves
    training; `draft_tokens` finds them one after the other and serves decoding; given the tokens that it drafted, the
    first gives the scores of the second. A family overrides `slots`, says by `features` and `step_features` what its
    correction of the logits reads, and by `correction_weight` what maps that to the vocabulary.

    `hidden` is always what the final norm returns (`hidden_states[-1]` of a forward), of the draft's width H.
    """

    config: DraftConfig
    lm_head: nn.Module
    output_proj: nn.Module | None
    owns_head: bool
    d2t: Tensor

    def add_heads(self) -> None:
        """Register the modules of the family's heads; DFlash has none."""

    @property
    def slots(self) -> SlotRule:
        """Which slot predicts which token."""
        return own_slots(self.config.block_size)

    @property
    def walks(self) -> bool:
        """Whether the scores of a slot depend on the token drafted before it."""
        return False

    @property
    def correction_weight(self) -> Tensor | None:
        """`[V_draft, r]`: logits gain `features @ correction_weight.T`; None where nothing is corrected."""
        return None

    def features(
        self,
        hidden: Tensor,  # noqa: ARG002 - DFlash looks at no other token
        previous: Tensor,  # noqa: ARG002
        embed: nn.Module | None,  # noqa: ARG002
    ) -> Tensor | None:
        """What the correction reads, `[B, N, T, r]`, of `hidden [B, N, T, H]` and `previous [B, N, T]`; None: nothing.

        T counts the steps of a block, in order. `embed` is the target's embedding, for families that read that of the
        previous tokens.
        """
        return None

    def step_features(
        self,
        step: int,  # noqa: ARG002 - DFlash looks at no other token
        hidden: Tensor,  # noqa: ARG002
        previous: Tensor,  # noqa: ARG002
        embed: nn.Module | None,  # noqa: ARG002
        state: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """`features` of one step, `[B, r]`, of `hidden [B, H]` and `previous [B]`, and the state for the next step."""
        return None, state

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor | None:  # noqa: ARG002 - DFlash has no such head
        """Logits of acceptance `[.., T]` of `hidden [.., T, H]` and `previous [.., T]`; None without such a head."""
        return None

    def outgoing(self, hidden: Tensor) -> Tensor:
        """What the output head reads, `[.., H] -> [.., H_out]`: target-wide unless the draft owns its head."""
        return hidden if self.output_proj is None else self.output_proj(hidden)

    def logits(self, hidden: Tensor, lm_head: nn.Module | None = None) -> Tensor:
        """Logits `[.., V_draft]` of `hidden [.., H_out]`, scaled and capped as the configuration says.

        `hidden` is the `last_hidden_state` of a forward. `lm_head` is the target's output head; a draft with a reduced
        vocabulary uses its own. Raises `DraftInputError` when there is neither.
        """
        head = self.lm_head if self.owns_head else lm_head
        if head is None:
            raise DraftInputError("this draft has no output head of its own: give the target's")
        logits = head(hidden)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def unary(self, hidden: Tensor, lm_head: nn.Module | None = None) -> Unary:
        """What `hidden [.., H_out]` says of the tokens by itself; see `Unary`."""
        logits = self.logits(hidden, lm_head)
        return Unary(logits, logits, self.token_ids() if self.owns_head else None)

    def token_ids(self) -> Tensor:
        """The target's id of every row of the draft's own output head, `[V_draft]`."""
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def corrected(self, unary: Unary, features: Tensor | None) -> Tensor:
        """`unary.scores [.., V']` with the correction that `features [.., r]` ask for."""
        weight = self.correction_weight
        if features is None or weight is None:
            return unary.scores
        return unary.scores + F.linear(features, weight)

    def block_rows(self, hidden: Tensor, previous: Tensor, embed: nn.Module | None = None) -> HeadRows:
        """Everything about `hidden [B, N·b, H]` that needs more than one slot, given `previous [B, N, T]`.

        `previous` are target ids of the tokens before the predicted ones, the anchor's first. Raises `DraftInputError`
        when the two do not fit, or when `embed`, the target's embedding, is needed and None.
        """
        if hidden.ndim != 3 or hidden.shape[1] % self.slots.size:
            raise DraftInputError(f"hidden {list(hidden.shape)} is not whole blocks of {self.slots.size} slots")
        rows = self.slots.predicting(hidden)
        if previous.shape != rows.shape[:3]:
            raise DraftInputError(f"previous {list(previous.shape)} must be {list(rows.shape[:3])}, a token a step")
        return HeadRows(self.outgoing(rows), self.features(rows, previous, embed), self.confidence(rows, previous))

    def block_scores(
        self, hidden: Tensor, previous: Tensor, lm_head: nn.Module | None = None, embed: nn.Module | None = None
    ) -> BlockScores:
        """Scores of every predicted token of `hidden [B, N·b, H]`, given the tokens `previous [B, N, T]` before them.

        `lm_head` and `embed` are the target's; see `block_rows` for what is raised. All logits are held at once:
        training makes them from `block_rows` by `unary` and `corrected`, some rows at a time.
        """
        rows = self.block_rows(hidden, previous, embed)
        unary = self.unary(rows.hidden, lm_head)
        return BlockScores(unary.logits, self.corrected(unary, rows.features), unary.candidates, rows.confidence)

    def draft_tokens(
        self,
        hidden: Tensor,
        anchor_tokens: Tensor,
        lm_head: nn.Module | None = None,
        embed: nn.Module | None = None,
        choose: Choose = greedy,
    ) -> Drafted:
        """Propose D tokens after `anchor_tokens [B]` from one block a row, `hidden [B, b, H]`.

        `choose` picks a column of scores, `[.., V'] -> [..]`, greedily unless given. `lm_head` and `embed` are the
        target's. Raises `DraftInputError` for another number of rows, or when a module is needed and None.
        """
        if hidden.ndim != 3 or hidden.shape[1] != self.slots.size:
            raise DraftInputError(f"hidden {list(hidden.shape)} must be one block of {self.slots.size} slots a row")
        rows = self.slots.drafting(hidden)
        unary = self.unary(self.outgoing(rows), lm_head)
        if self.walks:
            tokens, scores = self.walk(rows, unary, anchor_tokens, embed, choose)
        else:
            tokens, scores = unary.tokens(choose(unary.scores)), unary.scores
        previous = torch.cat([anchor_tokens[:, None], tokens[:, :-1]], dim=1)
        return Drafted(tokens, scores, unary.candidates, self.confidence(rows, previous))

    def walk(
        self, rows: Tensor, unary: Unary, anchor_tokens: Tensor, embed: nn.Module | None, choose: Choose
    ) -> tuple[Tensor, Tensor]:
        """Choose the tokens of `rows [B, D, H]` one after the other: tokens `[B, D]` and their scores `[B, D, V']`."""
        previous, state = anchor_tokens, None
        tokens, scores = [], []
        for step in range(rows.shape[1]):
            features, state = self.step_features(step, rows[:, step], previous, embed, state)
            scores.append(self.corrected(unary.at(step), features))
            previous = unary.at(step).tokens(choose(scores[-1]))
            tokens.append(previous)
        return torch.stack(tokens, dim=1), torch.stack(scores, dim=1)

    def target_embeddings(self, tokens: Tensor, embed: nn.Module | None) -> Tensor:
        """Target embeddings `[.., H_target]` of `tokens [..]`, scaled as the draft's input is.

        Raises `DraftInputError` when `embed`, the target's embedding, is None.
        """
        if embed is None:
            raise DraftInputError("the heads of this draft read embeddings of tokens: give the target's `embed`")
        found = embed(tokens)
        scale = self.config.input_embedding_scale
        return found if scale == 1.0 else found * scale
