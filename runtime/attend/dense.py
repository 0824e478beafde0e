"""What the backends that read dense masks share."""

import torch
from torch import Tensor

from draftc.runtime.visibility import View, ViewError


def dense_mask(view: View) -> Tensor | None:
    """The mask of `view` with a row of True for each query that sees nothing, bool `[B, 1, Q, K]`; None: all is seen.

    A softmax over nothing is not a number on some devices and versions, and its gradient poisons every key; such a
    query looks at everything instead, and `silence_heads` removes the result. Raises `ViewError` for any other kind of
    mask: numbers would be added to the scores.
    """
    if view.mask is None:
        return None
    if not isinstance(view.mask, Tensor):
        raise ViewError(f"{view.backend} reads a bool mask, not a {type(view.mask).__name__}")
    if view.mask.dtype != torch.bool:
        raise ViewError(f"{view.backend} reads a bool mask (True: may attend), not one of {view.mask.dtype}")
    return view.mask if view.live is None else view.mask | ~view.live[:, None, :, None]


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat the g heads of `x [B, g, K, d]` in place so that there are `heads`, g to each group of `heads // g`.

    A single head is not copied.
    """
    if x.shape[1] == 1:
        return x.expand(-1, heads, -1, -1)
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def silence_heads(out: Tensor, view: View) -> Tensor:
    """Zero the rows of `out [B, h, Q, d]` that belong to queries that see nothing."""
    if view.live is None:
        return out
    return torch.where(view.live[:, None, :, None], out, 0)
