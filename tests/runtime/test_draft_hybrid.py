"""Stacks that mix attention kinds: cached, uncached and training forms agree, and padding changes nothing."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DFlashCache

from draftc.runtime.attention.kda_reset import DeltaAttention
from draftc.runtime.attention.kda_scan import ScanDeltaAttention
from draftc.runtime.attention.mla import LatentAttention
from draftc.runtime.draft import DraftModel
from draftc.runtime.kda.states import plan_states
from draftc.runtime.memory import DraftCache
from draftc.runtime.mlp import GatedMLP
from draftc.runtime.residual.plain import DecoderLayer
from draftc.runtime.rope import Turn
from tests.runtime.drafts import EPS, FULL, SLIDING, config_of, reference, scrambled, streams

WORDS = {"none": "linear_attention", "state": "linear_attention", "keys": "full_attention"}
TOLERANCE = 1e-10


def around(attention: nn.Module, memory: str, turn: Turn | None = None, window: int | None = None) -> DecoderLayer:
    layer = DecoderLayer(32, EPS, attention, GatedMLP(32, 48, "silu"))
    layer.memory, layer.turn, layer.window = memory, turn, window
    return layer


def latent(window: int | None = None) -> DecoderLayer:
    attention = LatentAttention(32, 4, 12, 10, 6, 4, 8, EPS, "interleaved", 10**-0.5, False, False)
    return around(attention, "keys", Turn("interleaved", 4, 10000.0), window)


def delta(kind: type[nn.Module], memory: str) -> DecoderLayer:
    return around(kind(32, 2, 8, 4, -5.0, False, EPS, 4), memory)


MAKERS = {
    "gqa": lambda: FULL.layer(32),
    "sliding": lambda: SLIDING.layer(32),
    "mla": latent,
    "mla-sliding": lambda: latent(5),
    "reset": lambda: delta(DeltaAttention, "none"),
    "scan": lambda: delta(ScanDeltaAttention, "state"),
}
STACKS = [
    ("mla", "mla-sliding"),
    ("reset", "gqa"),
    ("scan", "scan"),
    ("scan", "mla", "sliding"),
    ("reset", "scan", "gqa"),
    ("gqa", "reset", "scan", "mla-sliding"),
]


def hybrid_draft(stack: tuple[str, ...]) -> DraftModel:
    torch.manual_seed(0)
    layers = [MAKERS[name]() for name in stack]
    kind = reference(*(MAKERS[name] for name in stack))
    kind.plan_scan = staticmethod(plan_states) if "scan" in stack else None
    names = tuple("sdpa" if layer.memory == "keys" else "kda_block" for layer in layers)
    kind.backends = {("training", "cpu"): names, ("decoding", "cpu"): names}
    types = [WORDS[layer.memory] if layer.window is None else "sliding_attention" for layer in layers]
    windows = [layer.window for layer in layers if layer.window]
    config = config_of(*[FULL] * len(stack), layer_types=types, sliding_window=max(windows, default=None))
    return scrambled(kind(config).double().eval())


def step(draft: DraftModel, noise: Tensor, taps: Tensor, **inputs: object) -> Tensor:
    with torch.no_grad():
        return draft(noise_embeds=noise, context_hidden_states=taps, **inputs).last_hidden_state


def close(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() < TOLERANCE)


@pytest.mark.parametrize("stack", STACKS, ids="-".join)
@pytest.mark.parametrize("kind", [DraftCache, DFlashCache, DynamicCache])
def test_random_acceptance(stack: tuple[str, ...], kind: type[DynamicCache]) -> None:
    draft = hybrid_draft(stack)
    cache = kind(config=draft.config)
    draw = random.Random("-".join(stack))
    _, taps = streams(draft, 30)
    start, end = 0, draw.randint(1, 9)
    while end < 30:
        noise, _ = streams(draft, 1, seed=end)
        cached = step(draft, noise, taps[:, start:end], cache=cache)
        assert close(cached, step(draft, noise, taps[:, :end]))
        cache.crop(-4)
        start, end = end, end + draw.randint(1, 4)


@pytest.mark.parametrize("stack", STACKS, ids="-".join)
def test_training_blocks_are_decoding_steps(stack: tuple[str, ...]) -> None:
    draft = hybrid_draft(stack)
    anchors = torch.tensor([[1, 4, 9, 12], [0, 3, 3, -1]])
    noise, taps = streams(draft, 12, blocks=4, batch=2)
    together = step(draft, noise, taps, anchors=anchors)
    assert torch.isfinite(together).all()
    for row in range(2):
        for number, anchor in enumerate(anchors[row].tolist()):
            own = slice(4 * number, 4 * number + 4)
            if anchor < 0:
                continue
            alone = step(draft, noise[row : row + 1, own], taps[row : row + 1, :anchor])
            assert close(together[row : row + 1, own], alone)


@pytest.mark.parametrize("stack", STACKS, ids="-".join)
def test_left_padding_changes_nothing(stack: tuple[str, ...]) -> None:
    draft = hybrid_draft(stack)
    noise, taps = streams(draft, 9)
    padded = torch.cat([torch.full_like(taps[:, :3], 1e3), taps], dim=1)
    mask = torch.ones(1, 16, dtype=torch.long)
    mask[:, :3] = 0
    alone = step(draft, noise, taps)
    cache = DraftCache(config=draft.config)
    assert close(step(draft, noise, padded, attention_mask=mask), alone)
    step(draft, noise, padded[:, :5], attention_mask=mask[:, :9], cache=cache)
    cache.crop(-4)
    assert close(step(draft, noise, padded[:, 5:], attention_mask=mask, cache=cache), alone)


@pytest.mark.parametrize("stack", STACKS, ids="-".join)
def test_one_graph_for_the_whole_model(stack: tuple[str, ...]) -> None:
    draft = hybrid_draft(stack)
    compiled = torch.compile(draft, fullgraph=True, backend="eager")
    noise, taps = streams(draft, 9)
    assert close(step(compiled, noise, taps), step(draft, noise, taps))


def test_recurrent_layers_share_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = hybrid_draft(("scan", "gqa", "scan"))
    noise, taps = streams(draft, 9, blocks=3)
    inputs = (noise, taps)
    shared = step(draft, *inputs, anchors=torch.tensor([[2, 5, -1]]))
    made = []
    monkeypatch.setattr(
        type(draft), "plan_scan", staticmethod(lambda *facts: made.append(facts) or plan_states(*facts))
    )
    step(draft, *inputs, anchors=torch.tensor([[2, 5, -1]]))
    assert [facts[:2] for facts in made] == [([[2, 5, -1]], 9)]
    monkeypatch.setattr(type(draft), "plan_scan", None)
    assert torch.equal(step(draft, *inputs, anchors=torch.tensor([[2, 5, -1]])), shared)


def test_first_weights_of_every_kind() -> None:
    draft = hybrid_draft(("reset", "scan", "mla"))
    fresh = type(draft)(draft.config)
    for layer in fresh.layers[:2]:
        attention = layer.self_attn
        assert 0 < attention.A_log.min() < attention.A_log.max() < 2.8
        assert not attention.dt_bias.any()
        assert 0.01 < attention.q_conv1d.weight.std() < 0.03
        assert attention.o_norm.weight.eq(1).all()


def test_decay_rates_stay_float32_in_a_bfloat16_load(tmp_path: Path) -> None:
    draft = hybrid_draft(("reset", "scan", "mla"))
    draft.float().save_pretrained(tmp_path)
    loaded = type(draft).from_pretrained(tmp_path, dtype=torch.bfloat16)
    kinds = {name: parameter.dtype for name, parameter in loaded.named_parameters()}
    wide = {name for name, kind in kinds.items() if kind == torch.float32}
    assert wide == {name for name in kinds if name.endswith(("A_log", "dt_bias"))} != set()
    assert all(torch.equal(loaded.state_dict()[name], draft.state_dict()[name]) for name in wide)
    noise, taps = (tensor.bfloat16() for tensor in streams(draft, 9))
    assert step(loaded, noise, taps).dtype == torch.bfloat16
