"""Small drafts of every family in their reference form, with the target's two tables beside them."""

from typing import Any

import torch
from torch import Tensor, nn

from draftc.compiler.build import reference
from draftc.runtime.draft import DraftModel
from draftc.spec.layout import Dflash, Dflash2, Domino, Dspark, Family
from tests.compiler.support import layout

FAMILIES: dict[str, Family] = {
    "dflash": Dflash(),
    "dflash2": Dflash2(2, 8, 5, 7),
    "dflash2-one-candidate": Dflash2(4, 24, 3, 1),
    "dflash2-all-candidates": Dflash2(1, 1, 3, 100),
    "domino": Domino(6, 5, 0, False),
    "domino-prefix": Domino(6, 5, 2, False),
    "domino-shifted": Domino(6, 5, 0, True),
    "domino-shifted-prefix": Domino(6, 5, 1, True),
    "dspark-vanilla": Dspark(True, 6, "vanilla", True, True),
    "dspark-gated": Dspark(True, 6, "gated", True, False),
    "dspark-rnn": Dspark(True, 6, "rnn", False, None),
    "dspark-own": Dspark(False, 6, "vanilla", False, None),
    "dspark-own-gated": Dspark(False, 6, "gated", True, True),
    "dspark-own-rnn": Dspark(False, 6, "rnn", True, True),
    "dspark-confidence": Dspark(True, 0, None, True, False),
    "dspark-bare": Dspark(False, 0, None, False, None),
}


def headed(family: Family, *names: str, seed: int = 0, **changes: Any) -> DraftModel:
    """A float64 draft of `family` on the named attentions, every weight drawn anew."""
    torch.manual_seed(seed)
    draft = reference(layout(*(names or ("context",)), family=family, **changes)).double().eval()
    for parameter in draft.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * 0.5 + (parameter.ndim == 1))
    if draft.owns_head:
        fill_maps(draft)
    return draft


def fill_maps(draft: DraftModel) -> None:
    """Give a reduced vocabulary every other token of the target."""
    from draftc.runtime.heads.vocabulary import vocabulary_maps

    tokens = torch.arange(draft.config.draft_vocab_size) * 2 + 1
    d2t, t2d = vocabulary_maps(tokens, draft.config.vocab_size)
    draft.d2t.copy_(d2t)
    draft.t2d.copy_(t2d)


def tables(draft: DraftModel, seed: int = 3) -> tuple[nn.Module, nn.Module]:
    """The target's embedding and output head, float64."""
    torch.manual_seed(seed)
    rows, width = draft.config.vocab_size, draft.config.target_hidden_size
    return nn.Embedding(rows, width).double(), nn.Linear(width, rows, bias=False).double()


def hidden_states(draft: DraftModel, batch: int = 3, blocks: int = 1, seed: int = 5) -> Tensor:
    """What a final norm might return, `[B, N·b, H]`."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, blocks * draft.config.block_size, draft.config.hidden_size)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
