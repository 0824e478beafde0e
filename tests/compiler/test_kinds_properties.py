"""Any stack of any kinds and widths compiles, and its phases agree: cached steps, one call, training blocks."""

from dataclasses import replace

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from draftc.compiler import api
from draftc.compiler.program import Options
from draftc.spec.layout import AttentionSpec, Gqa, Kda, LayerSpec, Mla, MlpSpec, Rope
from tests.compiler.support import layout
from tests.runtime.drafts import scrambled, streams

ropes = st.sampled_from([None, Rope("half", 10000.0), Rope("interleaved", 5000.0)])
windows = st.sampled_from([None, 5, 9])
gates = st.sampled_from(["none", "full"])


@st.composite
def gqas(draw: st.DrawFn) -> Gqa:
    kv_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    width = 2 * draw(st.integers(1, 5))
    causal = draw(st.booleans())
    spec = Gqa(kv_heads * groups, kv_heads, width, draw(ropes), draw(st.booleans()), False, draw(gates), None, causal)
    return replace(spec, attention_bias=draw(st.booleans()), sliding_window=draw(windows))


@st.composite
def mlas(draw: st.DrawFn) -> Mla:
    rope = draw(ropes)
    turned = 2 * draw(st.integers(1 if rope else 0, 3))
    plain = draw(st.integers(0 if turned else 1, 6))
    rank, latent, value = draw(st.sampled_from([None, 5])), draw(st.integers(3, 14)), draw(st.integers(1, 9))
    heads, bias = draw(st.integers(1, 3)), draw(st.booleans())
    spec = Mla(heads, rank, latent, plain, turned, value, 1e-6, rope, bias, draw(gates), None, draw(st.booleans()))
    return replace(spec, sliding_window=draw(windows))


@st.composite
def kdas(draw: st.DrawFn) -> Kda:
    taps, bound = draw(st.integers(1, 4)), draw(st.sampled_from([None, -5.0, -0.5]))
    gate, state = draw(st.sampled_from(["low_rank", "full"])), draw(st.sampled_from(["reset", "scan"]))
    return Kda(draw(st.integers(1, 3)), draw(st.integers(2, 8)), taps, bound, gate, state)


@st.composite
def stacks(draw: st.DrawFn) -> tuple[AttentionSpec, ...]:
    return tuple(draw(st.lists(st.one_of(gqas(), mlas(), kdas()), min_size=1, max_size=3)))


@given(stack=stacks(), block=st.integers(1, 5), accepted=st.lists(st.integers(1, 4), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_phases_agree(stack: tuple[AttentionSpec, ...], block: int, accepted: list[int]) -> None:
    layers = tuple(LayerSpec(index, f"kind{index}", spec, MlpSpec(16, "silu")) for index, spec in enumerate(stack))
    facts = replace(layout("context"), layers=layers, block_size=block)
    draft = api.compile(facts, Options(packages={"torch": "2.13.0"}))
    torch.manual_seed(0)
    model = scrambled(draft.model(dtype=torch.float64).eval())
    noise, taps = streams(model, sum(accepted), blocks=len(accepted))
    cache, anchors, outs, end = DynamicCache(config=model.config), [], [], 0
    with torch.no_grad():
        for number, rows in enumerate(accepted):
            own, start, end = noise[:, number * block : (number + 1) * block], end, end + rows
            step = model(noise_embeds=own, context_hidden_states=taps[:, start:end], cache=cache)
            alone = model(noise_embeds=own, context_hidden_states=taps[:, :end])
            torch.testing.assert_close(step.last_hidden_state, alone.last_hidden_state, rtol=1e-9, atol=1e-9)
            outs.append(step.last_hidden_state)
            anchors.append(end)
            cache.crop(-block)
        model.train()
        trained = model(noise_embeds=noise, context_hidden_states=taps, anchors=torch.tensor([anchors]))
    torch.testing.assert_close(trained.last_hidden_state, torch.cat(outs, dim=1), rtol=1e-9, atol=1e-9)
