"""DFlash2 equals z-lab's published model: the stack with outputs and gradients, and the tokens that it drafts."""

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from draftc.compiler.build import reference
from draftc.runtime.draft import DraftModel
from draftc.runtime.memory import DraftCache
from draftc.spec.layout import Dflash2
from tests.compiler.support import GQA, LOCAL, layout
from tests.oracles.outside import assert_equal, assert_same_gradients, widen_norms
from tests.runtime.drafts import gradients, scrambled

DFlash2DraftModel = pytest.importorskip("dflash.model", reason="z-lab's package dflash is missing").DFlash2DraftModel
ATTENTIONS = {"full": GQA, "sliding": LOCAL}
STACKS = [("full",), ("sliding", "full"), ("sliding", "sliding")]
FAMILIES = [Dflash2(2, 8, 5, 7), Dflash2(4, 1, 3, 100), Dflash2(1, 24, 6, 1)]
CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


@pytest.fixture(autouse=True)
def _wide_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    widen_norms(monkeypatch, Qwen3RMSNorm)


def pair(names: tuple[str, ...], family: Dflash2, **changes: object) -> tuple[DraftModel, nn.Module]:
    ours = reference(layout(*names, attentions=ATTENTIONS, family=family, **changes)).double().eval()
    config = Qwen3Config(
        vocab_size=100,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=len(names),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=1e-6,
        layer_types=["full_attention" if name == "full" else "sliding_attention" for name in names],
        use_sliding_window="sliding" in names,
        sliding_window=9 if "sliding" in names else None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        num_target_layers=8,
        dflash_config={
            "target_layer_ids": [1, 3],
            "block_size": 4,
            "mask_token_id": 99,
            **{name: getattr(ours.config, name) for name in family.__dataclass_fields__},
            **changes,
        },
    )
    theirs = scrambled(DFlash2DraftModel(config).double().eval())
    ours.load_state_dict(public_keys(theirs.state_dict()), strict=True)
    return ours, theirs


def public_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors as their checkpoints name them: the codebooks without `.weight`."""
    codebooks = {f"{name}.weight": name for name in CODEBOOKS}
    return {codebooks.get(name, name): value for name, value in state.items()}


def inputs(rows: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()  # noqa: E731
    return draw(2, 4, 24), draw(2, rows, 48)


@pytest.mark.parametrize("names", STACKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_stack(names: tuple[str, ...], family: Dflash2) -> None:
    ours, theirs = pair(names, family)
    noise, taps = inputs(11)
    want = theirs(position_ids=torch.arange(15)[None], noise_embedding=noise, target_hidden=taps)
    got = ours(noise, taps).last_hidden_state
    assert_equal(got, want)
    found, expected = gradients(got, ours, noise, taps), public_keys(gradients(want, theirs, noise, taps))
    assert_same_gradients(found, expected)
    assert {name.rpartition("layers.0.")[2] for name in found} >= {
        *("attention_conv.base_kernel", "attention_conv.kernel_projection.weight"),
        *("mlp_conv.base_kernel", "mlp_conv.kernel_projection.weight"),
    }


@pytest.mark.parametrize("names", STACKS)
def test_steps_with_a_cache(names: tuple[str, ...]) -> None:
    ours, theirs = pair(names, FAMILIES[0])
    mine, his = DraftCache(config=ours.config), DynamicCache(config=theirs.config)
    his.activate_past_recording()
    past = 0
    for step, rows in enumerate((6, 1, 3)):
        noise, taps = inputs(rows, seed=step)
        positions = torch.arange(past, past + rows + 4)[None]
        given = {"noise_embedding": noise, "target_hidden": taps, "past_key_values": his, "use_cache": True}
        want = theirs(position_ids=positions, **given)
        assert_equal(ours(noise, taps, cache=mine).last_hidden_state, want)
        mine.crop(-4)
        his.crop(-4)
        past += rows


LOGITS = [{}, {"output_multiplier": 0.7, "final_logit_softcapping": 1.5}]


@pytest.mark.parametrize("changes", LOGITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_that_are_drafted(family: Dflash2, changes: dict[str, float]) -> None:
    ours, theirs = pair(("full",), family, **changes)
    torch.manual_seed(3)
    head = nn.Linear(24, 100, bias=False).double()
    for seed in range(20):
        hidden = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        anchors = torch.tensor([seed, 99 - seed])
        path, candidates, _ = theirs.propose(hidden[:, 1:], anchors, head, 0.0)
        drafted = ours.draft_tokens(hidden, anchors, head)
        assert torch.equal(drafted.tokens, path)
        assert torch.equal(drafted.candidates, candidates.sort(-1).values)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_the_distributions_that_are_drafted_from(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told which candidate to draw, both say with which probability they would have drawn each."""
    ours, theirs = pair(("full",), FAMILIES[0])
    torch.manual_seed(3)
    head = nn.Linear(24, 100, bias=False).double()
    hidden = torch.randn(2, 4, 24, dtype=torch.float64)
    anchors = torch.tensor([5, 60])
    least = lambda probabilities: probabilities.argmin(-1)  # noqa: E731 - a draw that no argmax would make
    monkeypatch.setattr("dflash.model._sample_probs", least)
    path, candidates, rows = theirs.propose(hidden[:, 1:], anchors, head, temperature)
    drafted = ours.draft_tokens(hidden, anchors, head, choose=lambda scores: scores.argmin(-1))
    assert torch.equal(drafted.tokens, path)
    order = candidates.argsort(-1)
    assert_equal((drafted.scores / temperature).softmax(-1), rows.double().gather(-1, order), 1e-6)
    with torch.no_grad():
        moved = (drafted.scores.softmax(-1) - rows.gather(-1, order)).abs().max()
    assert moved > 1e-3
