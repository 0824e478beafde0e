"""Softmax attention: one operation, several backends."""

from torch import Tensor

from draftc.runtime.attend.eager import attend_eager
from draftc.runtime.attend.flash import attend_flash
from draftc.runtime.attend.flex import attend_flex
from draftc.runtime.attend.sdpa import attend_sdpa
from draftc.runtime.visibility import View, ViewError


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, scale: float) -> Tensor:
    """Softmax attention (arXiv:1706.03762) of the backend that `view` names, over the keys that it lets each query see.

    `q` `[B, h, Q, d]`, `k` `[B, g, K, d]`, `v` `[B, g, K, w]` where g divides h: head i reads group i // (h/g).
    Scores are q·k times `scale`. Returns `[B, h, Q, w]` in the dtype of `q`; a query that sees nothing gives exact
    zeros. Raises `ViewError` when no backend has that name, or when it cannot read the view's mask.
    """
    if view.backend == "eager":
        return attend_eager(q, k, v, view, scale)
    if view.backend == "sdpa":
        return attend_sdpa(q, k, v, view, scale)
    if view.backend == "flex":
        return attend_flex(q, k, v, view, scale)
    if view.backend == "flash":
        return attend_flash(q, k, v, view, scale)
    raise ViewError(f"attention backend {view.backend!r} is none of eager, sdpa, flex, flash")
