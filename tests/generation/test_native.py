"""transformers' own DFlash decoding with compiled bundles gives the target's greedy tokens, without draftc as well."""

from pathlib import Path

import pytest
import torch

from tests.compiler.bundles import run_alone
from tests.generation.support import (
    DEPTH,
    MASK,
    VOCABULARY,
    WIDTH,
    Options,
    Target,
    api,
    layout,
    prompts,
    small_draft,
    small_target,
)

STACKS = {
    "latent": ("latent", "latent_full"),
    "reset": ("recurrent", "context"),
    "scan": ("scan", "scan_low"),
    "hybrid": ("recurrent", "scan", "latent", "near", "context"),
}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("block_size", [2, 5])
def test_identical_to_greedy(stack: str, block_size: int) -> None:
    draft, target = small_draft(STACKS[stack], block_size), small_target()
    for length in (1, 4, 9):
        ids, mask = prompts([length], seed=length)
        settings = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
        plain = target.generate(ids, **settings)
        assert torch.equal(target.generate(ids, assistant_model=draft, speculation_type="dflash", **settings), plain)


ALONE = """
import torch
from transformers import AutoModel, AutoModelForCausalLM
target = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64)
draft = AutoModel.from_pretrained(sys.argv[2], dtype=torch.float64, trust_remote_code=True)
rounds = []
draft.register_forward_pre_hook(
    lambda _, __, inputs: rounds.append(inputs["context_hidden_states"].shape[1]), with_kwargs=True
)
for length in (1, 5, 9):
    ids = torch.randint(1, 90, (1, length), generator=torch.Generator().manual_seed(length))
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}
    plain = target.generate(ids, **settings)
    drafted = target.generate(ids, assistant_model=draft, speculation_type="dflash", **settings)
    print(torch.equal(plain, drafted), plain.shape[1] - length, len(rounds) > 0)
    rounds.clear()
"""


@pytest.mark.parametrize("stack", STACKS)
def test_a_bundle_in_a_process_without_draftc(stack: str, tmp_path: Path) -> None:
    small_target().save_pretrained(tmp_path / "target")
    facts = layout(
        *STACKS[stack],
        target=Target(hidden_size=WIDTH, num_hidden_layers=DEPTH, vocab_size=VOCABULARY),
        target_layer_ids=(0, 2),
        mask_token_id=MASK,
    )
    api.compile(facts, Options(packages={"torch": "2.13.0"})).write(tmp_path / "tiny", weights="random")
    printed = run_alone(ALONE, tmp_path, tmp_path / "target", tmp_path / "tiny")
    assert printed.splitlines() == ["True 20 True"] * 3
