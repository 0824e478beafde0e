"""DFlash2: dynamic convolutions around the sublayers, and a selector that walks through each slot's candidates."""

import torch
from torch import Tensor, nn
from transformers import initialization as init

from draftc.runtime.config import DraftConfig
from draftc.runtime.draft import DraftModel
from draftc.runtime.heads.scores import Unary
from draftc.runtime.heads.selector import CandidateSelector


class Dflash2Config(DraftConfig):
    """A draft's configuration, and that of its convolutions and its selector."""

    conv_kernel_size: int = 1
    conv_group_size: int = 1
    selector_rank: int = 1
    selector_top_k: int = 1


class Dflash2Draft(DraftModel):
    """A DFlash2 draft: its layers hold convolutions, its selector prefers candidates that follow on one another.

    Fresh, both do nothing: with the weights of a DFlash draft it is that draft, bit for bit.
    """

    config_class = Dflash2Config
    config: Dflash2Config

    def add_heads(self) -> None:
        """Register the selector."""
        config = self.config
        self.candidate_selector = CandidateSelector(
            config.vocab_size, config.hidden_size, config.selector_rank, config.selector_top_k
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Give `module` its first weights: convolutions that copy, a selector without effect, the rest as a draft's."""
        super()._init_weights(module)
        for name, parameter in module.named_parameters():
            if name == "base_kernel":
                copying = torch.zeros_like(parameter)
                copying[:, 0] = 1
                init.copy_(parameter, copying)
            elif name in ("kernel_projection.weight", "successor_codebook"):
                init.zeros_(parameter)

    @property
    def walks(self) -> bool:
        """A slot's scores depend on the token before it."""
        return True

    @property
    def correction_weight(self) -> Tensor:
        """B `[V, r]`, of which only the rows of candidates are used."""
        return self.candidate_selector.successor_codebook

    def features(self, hidden: Tensor, previous: Tensor, embed: nn.Module | None) -> Tensor:  # noqa: ARG002
        """What the transition reads, `[B, N, T, r]`, of `hidden [B, N, T, H]` and `previous [B, N, T]`."""
        return self.candidate_selector.features(hidden, previous)

    def step_features(
        self,
        step: int,  # noqa: ARG002 - every step is alike
        hidden: Tensor,
        previous: Tensor,
        embed: nn.Module | None,  # noqa: ARG002
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The same of one step, `[B, r]`."""
        return self.candidate_selector.features(hidden, previous), state

    def unary(self, hidden: Tensor, lm_head: nn.Module | None = None) -> Unary:
        """Logits `[.., V]` of `hidden [.., H_out]`, and the best K of them, which alone can be chosen."""
        return self.candidate_selector.candidates(self.logits(hidden, lm_head))

    def corrected(self, unary: Unary, features: Tensor | None) -> Tensor:
        """`unary.scores [.., K]` with the transitions to each candidate."""
        if features is None or unary.candidates is None:
            return unary.scores
        return unary.scores + self.candidate_selector.transition(features, unary.candidates)
