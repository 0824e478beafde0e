"""The one batch that training builds: made once from documents, on the host, and shared by all layers and terms."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftc.runtime.blocks import DROPPED, BlockShape, NoAnchorError, ahead, noise_ids, sample_anchors
from draftc.runtime.packing import Packing, one_per_row


@dataclass(frozen=True, slots=True)
class Document:
    """One sequence to learn from: `input_ids [S]` int64, `loss_mask [S]` float32, the `seed` of its anchors.

    The seed belongs to the document and the epoch, so that neither the ranks nor the neighbours in a batch move its
    anchors.
    """

    input_ids: Tensor
    loss_mask: Tensor
    seed: int


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """D documents as R rows of context and N blocks for each row, of b slots of which T predict a token.

    For the target: `input_ids [D, S]` and `attention_mask [D, S]` int64, padded on the right, one document a row.
    For the draft: `source [R, C]` int64 says which row of the flattened `[D·S]` each context row is (-1: padding);
    `anchors [R, N]` are context rows, `DROPPED` last; `starts [R, N]` the first rows of their documents, None when no
    row holds two; `noise_ids [R, N·b]` the tokens to embed; `position_ids [R, C + N·b]` count from each document's own
    start. For the objective: `tokens [R, N, T+1]` are the tokens from the anchor on, zero past the end, and `weights
    [R, N, T]` float32 the loss mask of the predicted ones, zero where there is none. `documents` is D.
    """

    input_ids: Tensor
    attention_mask: Tensor
    source: Tensor
    anchors: Tensor
    starts: Tensor | None
    noise_ids: Tensor
    position_ids: Tensor
    tokens: Tensor
    weights: Tensor
    documents: int

    @property
    def previous(self) -> Tensor:
        """The token before each predicted one, `[R, N, T]`."""
        return self.tokens[..., :-1]

    @property
    def labels(self) -> Tensor:
        """The predicted tokens, `[R, N, T]`."""
        return self.tokens[..., 1:]

    @property
    def states(self) -> Tensor:
        """The context row whose target state predicts each of `labels`, `[R, N, T]`: that of the token before it."""
        steps = torch.arange(self.weights.shape[-1], device=self.anchors.device)
        return (self.anchors[..., None] + steps).clamp(0, self.source.shape[1] - 1)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "DraftBatch":
        """The same batch on `device`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = value.to(device, non_blocking=non_blocking)
        return DraftBatch(**values)

    def context(self, states: Tensor) -> Tensor:
        """What the draft's rows hold of `states [D, S, W]`, one row per token of the documents: `[R, C, W]`."""
        flat = states.flatten(0, 1)[self.source.clamp(min=0)]
        return torch.where((self.source >= 0)[..., None], flat, 0)


def document_anchors(document: Document, shape: BlockShape) -> Tensor:
    """The anchors of `document`, ascending, `[n]`; drawn from its own seed. Raises `NoAnchorError`."""
    generator = torch.Generator().manual_seed(document.seed)
    return sample_anchors(document.loss_mask[None], shape.num_anchors, generator)[0]


def batch_of(documents: Sequence[Document], shape: BlockShape, packing: Packing | None = None) -> DraftBatch:
    """Draw the blocks of `documents` and lay them out as `packing` says, by default one document a row.

    Equal documents get equal anchors whatever the packing. Raises `NoAnchorError` for a document in which no two
    tokens in a row are supervised, or an empty batch.
    """
    if not documents:
        raise NoAnchorError("a batch needs at least one document")
    plan = packing or one_per_row([len(document.input_ids) for document in documents])
    ids = pad_sequence([document.input_ids for document in documents], batch_first=True)
    mask = pad_sequence([document.loss_mask for document in documents], batch_first=True)
    real = pad_sequence([torch.ones_like(document.input_ids) for document in documents], batch_first=True)
    drawn = [document_anchors(document, shape) for document in documents]
    local = pad_sequence(drawn, batch_first=True, padding_value=DROPPED)
    rows = plan.blocks([len(anchors) for anchors in drawn])
    anchors = rows.lay(local + plan.offsets[:, None], DROPPED)
    slots = torch.arange(shape.block_size)
    slot_positions = (rows.lay(local, 0)[..., None] + slots).flatten(1)
    noise = noise_ids(ids, local, shape.block_size, shape.mask_token_id).unflatten(1, (-1, shape.block_size))
    return DraftBatch(
        input_ids=ids,
        attention_mask=real,
        source=plan.source(ids.shape[1]),
        anchors=anchors,
        starts=rows.lay(plan.offsets[:, None].expand_as(local), 0) if plan.is_shared else None,
        noise_ids=rows.lay(noise, shape.mask_token_id).flatten(1),
        position_ids=torch.cat([plan.positions(), slot_positions], dim=1),
        tokens=rows.lay(ahead(ids, local, shape.steps + 1), 0),
        weights=rows.lay(ahead(mask, local, shape.steps + 1)[..., 1:], 0),
        documents=len(documents),
    )
