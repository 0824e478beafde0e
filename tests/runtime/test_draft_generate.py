"""transformers' own DFlash decoding with our drafts gives the target's greedy text, whatever the draft proposes."""

import pytest
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from draftc.runtime.draft import DraftModel
from tests.runtime.drafts import BOTH_WAYS, FULL, SLIDING, Dense, dense_draft

STACKS = {
    "full": (FULL, FULL),
    "sliding": (SLIDING, SLIDING),
    "mixed": (BOTH_WAYS, FULL, SLIDING),
    "window-1": (Dense(window=1), FULL),
}


@pytest.fixture(scope="module")
def target() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).double().eval()
    model.generation_config = GenerationConfig(pad_token_id=0)
    return model


class Watched:
    """Counts the rows that the draft was given, to see that tokens were accepted and rejected."""

    def __init__(self, draft: DraftModel) -> None:
        self.rows: list[int] = []
        draft.register_forward_pre_hook(self.see, with_kwargs=True)

    def see(self, _: object, __: tuple, inputs: dict) -> None:
        self.rows.append(inputs["context_hidden_states"].shape[1])


def both(
    target: Qwen3ForCausalLM, draft: DraftModel, pads: int = 0, tokens: int = 30
) -> tuple[torch.Tensor, torch.Tensor]:
    prompt = torch.randint(1, 60, (1, 7), generator=torch.Generator().manual_seed(2))
    prompt = torch.cat([torch.zeros(1, pads, dtype=torch.long), prompt], dim=1)
    settings = {"attention_mask": (prompt != 0).long(), "max_new_tokens": 30, "do_sample": False}
    plain = target.generate(prompt, **settings)
    return plain, target.generate(prompt, assistant_model=draft, speculation_type="dflash", **settings)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("pads", [0, 3])
def test_identical_to_greedy(target: Qwen3ForCausalLM, stack: str, pads: int) -> None:
    draft = dense_draft(*STACKS[stack])
    plain, drafted = both(target, draft, pads)
    assert torch.equal(plain, drafted)


def test_a_draft_that_copies_the_target_is_accepted(target: Qwen3ForCausalLM) -> None:
    """Trained for a moment on the very text, so that whole blocks pass: the draft really reads its context."""
    draft = dense_draft(FULL, SLIDING)
    plain, _ = both(target, draft)
    with torch.no_grad():
        states = target(plain, output_hidden_states=True).hidden_states
    taps = torch.cat([states[i + 1] for i in draft.config.target_layer_ids], dim=-1)
    anchors = torch.arange(7, 33)[None]
    slots = (anchors[..., None] + torch.arange(4)).flatten(1)
    noise = torch.full_like(slots, draft.config.mask_token_id)
    noise[:, ::4] = plain[0, anchors[0]]
    optimiser = torch.optim.Adam(draft.parameters(), lr=1e-2)
    draft.train()
    for _ in range(150):
        hidden = draft(target.get_input_embeddings()(noise).detach(), taps, anchors=anchors).last_hidden_state
        logits = draft.logits(hidden, target.lm_head)
        loss = torch.nn.functional.cross_entropy(logits[0], plain[0, slots[0]])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    watched = Watched(draft.eval())
    _, drafted = both(target, draft)
    assert torch.equal(plain, drafted)
    assert watched.rows[0] == 7
    assert max(watched.rows[1:]) == 4
    assert len(watched.rows) <= 10


def test_a_random_draft_is_rejected_mostly(target: Qwen3ForCausalLM) -> None:
    draft = dense_draft(FULL, SLIDING)
    watched = Watched(draft)
    both(target, draft)
    assert min(watched.rows[1:]) == 1
