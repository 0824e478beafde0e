"""A reduced vocabulary from data: the tokens that occur most often, and a head that starts from the target's."""

import torch
from torch import Tensor

from draftc.runtime.draft import DraftModel
from draftc.runtime.heads.vocabulary import vocabulary_maps
from draftc.runtime.train.examples import ExampleSource
from draftc.runtime.train.frozen import FrozenVocabulary


def frequent_tokens(examples: ExampleSource, vocab_size: int, count: int) -> Tensor:
    """The `count` tokens that are supervised most often, ascending; of equally frequent ones the lower ids."""
    seen = torch.zeros(vocab_size, dtype=torch.long)
    for index in range(len(examples)):
        example = examples[index]
        seen += torch.bincount(example.input_ids[example.loss_mask > 0], minlength=vocab_size)
    return seen.argsort(descending=True, stable=True)[:count].sort().values


@torch.no_grad()
def fill_reduced_vocabulary(draft: DraftModel, examples: ExampleSource, vocabulary: FrozenVocabulary) -> None:
    """Give `draft` its maps, unless they are filled, and where the widths agree the target's rows as its output head.

    A draft without a head of its own is left alone.
    """
    if not draft.owns_head or bool(draft.get_buffer("t2d").any()):
        return
    vocab_size, count = draft.config.vocab_size, draft.config.draft_vocab_size or draft.config.vocab_size
    tokens = frequent_tokens(examples, vocab_size, count)
    d2t, t2d = vocabulary_maps(tokens, vocab_size)
    draft.d2t.copy_(d2t)
    draft.get_buffer("t2d").copy_(t2d)
    head, rows = draft.get_parameter("lm_head.weight"), vocabulary.lm_head.weight
    if head.shape[1] == rows.shape[1]:
        head.copy_(rows[tokens.to(rows.device)])
