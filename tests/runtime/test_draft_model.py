"""The model around the layers: what it takes, what it refuses, what survives saving, compiling and checkpointing."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from draftc.runtime import draft as draft_module
from draftc.runtime.draft import DraftModel
from draftc.runtime.memory import DraftCache
from draftc.runtime.rows import DraftInputError
from draftc.runtime.visibility import Visibility
from tests.runtime.drafts import BOTH_WAYS, FULL, SLIDING, Dense, config_of, dense_draft, gradients, reference, streams

ANCHORS = torch.tensor([[2, 6, -1]])


def test_keys_are_the_public_ones() -> None:
    keys = set(dense_draft(Dense(bias=True, gate=True)).state_dict())
    attention = {f"self_attn.{part}_proj.{kind}" for part in "qkvo" for kind in ("weight", "bias")}
    attention |= {"self_attn.g_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight"}
    layer = attention | {f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    layer |= {"input_layernorm.weight", "post_attention_layernorm.weight"}
    assert keys == {"fc.weight", "hidden_norm.weight", "norm.weight"} | {f"layers.0.{name}" for name in layer}


@pytest.mark.parametrize(
    ("noise", "taps", "words"),
    [
        ((1, 4, 32), (1, 5, 96), ["96 wide", "2 taps", "width 32", "64"]),
        ((1, 4, 16), (1, 5, 64), ["16 wide", "32"]),
        ((2, 4, 32), (1, 5, 64), ["[2, 4, 32]", "[1, 5, 64]"]),
        ((4, 32), (5, 64), ["[4, 32]"]),
    ],
)
def test_widths_that_do_not_fit(noise: tuple[int, ...], taps: tuple[int, ...], words: list[str]) -> None:
    draft = dense_draft(FULL)
    with pytest.raises(DraftInputError) as error:
        draft(torch.zeros(noise, dtype=torch.float64), torch.zeros(taps, dtype=torch.float64))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"anchors": torch.tensor([[1, 2]])}, "each anchor takes a block of 4 slots"),
        ({"position_ids": torch.arange(5)[None]}, "position_ids"),
        ({"attention_mask": torch.ones(1, 1, 4, 9)}, "attention_mask"),
        ({"attention_mask": torch.ones(1, 5)}, "attention_mask"),
        ({"anchors": torch.tensor([[1]]), "cache": DynamicCache()}, "not both"),
    ],
)
def test_shapes_that_do_not_fit(inputs: dict, words: str) -> None:
    draft = dense_draft(FULL)
    with pytest.raises(DraftInputError, match=words):
        draft(*streams(draft, 5), **inputs)


def test_missing_unknown_and_doubled_arguments() -> None:
    draft = dense_draft(FULL)
    noise, taps = streams(draft, 5)
    with pytest.raises(DraftInputError, match="context_hidden_states"):
        draft(noise_embeds=noise)
    with pytest.raises(TypeError, match="no argument 'anchor'"):
        draft(noise, taps, anchor=ANCHORS)
    with pytest.raises(TypeError, match="twice"):
        draft(noise, taps, target_hidden=taps)


def test_input_embedding_scale() -> None:
    plain, scaled = dense_draft(FULL), dense_draft(FULL, input_embedding_scale=3.0)
    noise, taps = streams(plain, 5)
    want = plain(noise * 3.0, taps).last_hidden_state
    assert torch.equal(scaled(noise, taps).last_hidden_state, want)
    assert torch.equal(scaled(noise_embedding=noise * 3.0, target_hidden=taps).last_hidden_state, want)


def test_a_narrow_draft_projects_at_both_ends() -> None:
    draft = dense_draft(FULL, target_hidden_size=48, context_width=96)
    assert draft.input_proj.weight.shape == (32, 48)
    assert draft.output_proj.weight.shape == (48, 32)
    assert draft.fc.weight.shape == (32, 96)
    noise, taps = streams(draft, 5)
    inner = dense_draft(FULL, context_width=96)
    inner.load_state_dict(
        {k: v for k, v in draft.state_dict().items() if k not in ("input_proj.weight", "output_proj.weight")}
    )
    want = draft.output_proj(inner(draft.input_proj(noise), taps).last_hidden_state)
    assert torch.equal(draft(noise, taps).last_hidden_state, want)


def test_a_reduced_vocabulary_has_its_own_head_and_no_output_projection() -> None:
    draft = dense_draft(FULL, target_hidden_size=48, context_width=96, draft_vocab_size=16)
    assert draft.output_proj is None
    assert (draft.d2t.shape, draft.d2t.dtype) == ((16,), torch.int64)
    assert (draft.t2d.shape, draft.t2d.dtype) == ((64,), torch.bool)
    hidden = draft(*streams(draft, 5)).last_hidden_state
    assert torch.equal(draft.logits(hidden), draft.lm_head(hidden))


def test_logits_need_a_head() -> None:
    with pytest.raises(DraftInputError, match="target"):
        dense_draft(FULL).logits(torch.zeros(1, 4, 32))


def test_first_weights() -> None:
    torch.manual_seed(0)
    draft = reference(lambda: Dense(bias=True).layer(32))(config_of(FULL, initializer_range=0.5))
    weights = draft.state_dict()
    assert torch.equal(weights["norm.weight"], torch.ones(32))
    assert not weights["layers.0.self_attn.q_proj.bias"].any()
    assert 0.45 < weights["fc.weight"].std() < 0.55


def test_saved_and_loaded_weights_are_the_same_bits(tmp_path: Path) -> None:
    draft = dense_draft(Dense(bias=True), SLIDING, draft_vocab_size=16)
    draft.d2t.copy_(torch.arange(16) * 3)
    draft.t2d[::4] = True
    draft.save_pretrained(tmp_path)
    again = type(draft).from_pretrained(tmp_path, dtype=torch.float64)
    assert again.state_dict().keys() == draft.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in draft.state_dict().items())
    noise, taps = streams(draft, 9)
    assert torch.equal(again(noise, taps).last_hidden_state, draft(noise, taps).last_hidden_state)
    config = (tmp_path / "config.json").read_text()
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text() == config


def test_missing_weights_are_drawn_and_present_ones_kept(tmp_path: Path) -> None:
    draft = dense_draft(FULL)
    kept = {name: value for name, value in draft.state_dict().items() if "fc" not in name}
    draft.save_pretrained(tmp_path, state_dict=kept)
    again = type(draft).from_pretrained(tmp_path, dtype=torch.float64)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in kept.items())
    assert 0 < again.fc.weight.std() < 0.03


def test_no_buffer_that_a_load_could_lose() -> None:
    assert dict(dense_draft(FULL, SLIDING).named_buffers()) == {}
    with torch.device("meta"):
        draft = reference(lambda: FULL.layer(32))(config_of(FULL))
    draft = draft.to_empty(device="cpu").double()
    source = dense_draft(FULL)
    draft.load_state_dict(source.state_dict())
    noise, taps = streams(source, 5)
    assert torch.equal(draft.eval()(noise, taps).last_hidden_state, source(noise, taps).last_hidden_state)


def test_one_rope_table_per_distinct_turn_and_one_visibility(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Dense(rope_style="interleaved", rotated=4)
    draft = dense_draft(FULL, SLIDING, other, Dense(rope_style=None), FULL)
    seen = {"tables": 0, "visibilities": 0}
    make_table, make_visibility = draft_module.rope_table, Visibility.__init__

    def counted_table(*args: object) -> object:
        seen["tables"] += 1
        return make_table(*args)

    def counted_visibility(*args: object, **kwargs: object) -> None:
        seen["visibilities"] += 1
        make_visibility(*args, **kwargs)

    monkeypatch.setattr(draft_module, "rope_table", counted_table)
    monkeypatch.setattr(Visibility, "__init__", counted_visibility)
    draft(*streams(draft, 5))
    assert seen == {"tables": 2, "visibilities": 1}


def checkpoint_layers(draft: DraftModel, **settings: object) -> None:
    """Turn checkpointing on under the name that this transformers has for it."""
    getattr(draft, "activation_checkpointing_enable", draft.gradient_checkpointing_enable)(settings or None)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_keeps_every_bit(use_reentrant: bool) -> None:
    draft = dense_draft(FULL, SLIDING, BOTH_WAYS).train()
    noise, taps = (tensor.requires_grad_() for tensor in streams(draft, 9, blocks=3))
    plain = draft(noise, taps, anchors=ANCHORS).last_hidden_state
    want = gradients(plain, draft, noise, taps)
    checkpoint_layers(draft, use_reentrant=use_reentrant)
    again = draft(noise, taps, anchors=ANCHORS).last_hidden_state
    assert torch.equal(plain, again)
    weight = torch.randn(again.shape, generator=torch.Generator().manual_seed(9), dtype=again.dtype)
    (again * weight).sum().backward()
    assert all(torch.equal(parameter.grad, want[name]) for name, parameter in draft.named_parameters())
    assert torch.equal(noise.grad, want["0"])


def test_checkpointing_refuses_a_cache_only_where_layers_run_twice() -> None:
    draft = dense_draft(FULL).train()
    checkpoint_layers(draft)
    noise, taps = streams(draft, 5)
    with pytest.raises(DraftInputError, match="checkpointing"):
        draft(noise, taps, cache=DraftCache(config=draft.config))
    with torch.no_grad():
        draft(noise, taps, cache=DraftCache(config=draft.config))


def test_attention_dropout_only_while_training() -> None:
    draft = dense_draft(FULL, backend="eager", attention_dropout=0.5)
    noise, taps = streams(draft, 9)
    still = draft(noise, taps).last_hidden_state
    assert torch.equal(draft(noise, taps).last_hidden_state, still)
    draft.train()
    assert not torch.equal(draft(noise, taps).last_hidden_state, still)


def backends_of(draft: DraftModel, **inputs: object) -> list[str]:
    """The backend in the view that each layer receives."""
    seen: list[str] = []
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[4].backend)) for layer in draft.layers]
    draft(*streams(draft, 9, blocks=inputs.pop("blocks", 1)), **inputs)
    for hook in hooks:
        hook.remove()
    return seen


def table_draft(**fields: object) -> DraftModel:
    made = reference(lambda: FULL.layer(32), lambda: SLIDING.layer(32))
    made.backends = {("training", "cpu"): ("sdpa", "eager"), ("decoding", "cpu"): ("eager", "sdpa")}
    return made(config_of(FULL, SLIDING, **fields)).double().eval()


def test_the_table_gives_each_layer_its_backend_by_phase() -> None:
    draft = table_draft()
    assert backends_of(draft) == ["eager", "sdpa"]
    assert backends_of(draft, blocks=3, anchors=ANCHORS) == ["sdpa", "eager"]


def test_overrides_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config_of(FULL, SLIDING)
    asked._attn_implementation = "eager"
    forced = type(table_draft())(asked).double()
    assert backends_of(forced) == ["eager", "eager"]
    monkeypatch.setenv("DRAFTC_BACKEND", "sdpa")
    assert backends_of(type(forced)(asked).double()) == ["sdpa", "sdpa"]
    assert backends_of(forced) == ["eager", "eager"]


def test_setting_the_implementation_later() -> None:
    draft = table_draft()
    draft.set_attn_implementation("eager")
    assert backends_of(draft) == ["eager", "eager"]


def test_an_override_that_is_not_there_says_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTC_BACKEND", "flsh")
    with pytest.raises(ValueError, match=r"DRAFTC_BACKEND asks for backend 'flsh'; this draft has .*sdpa"):
        table_draft()
    monkeypatch.delenv("DRAFTC_BACKEND")
    with pytest.raises(ValueError, match=r"attn_implementation asks for backend 'flex'; this draft has .*sdpa"):
        table_draft(attn_implementation="flex_attention")


def test_an_override_of_one_operation_leaves_the_other() -> None:
    assert draft_module.forced_over("kda_block", ("eager",)) == "kda_block"
    assert draft_module.forced_over("kda_block", ("eager", "kda_recurrent")) == "kda_recurrent"
    assert draft_module.forced_over("sdpa", ("kda_recurrent",)) == "sdpa"


def test_building_twice_from_one_config_keeps_the_default_apart_from_a_choice() -> None:
    config = config_of(FULL, SLIDING)
    kind = type(table_draft())
    kind(config)
    assert config._attn_implementation is None
    assert backends_of(kind(config).double()) == ["eager", "sdpa"]


@pytest.mark.parametrize("stack", [(FULL, SLIDING), (Dense(bias=True, gate=True), Dense(rope_style=None))])
def test_one_graph_for_the_whole_model(stack: tuple[Dense, ...]) -> None:
    draft = dense_draft(*stack)
    compiled = torch.compile(draft, fullgraph=True, backend="eager")
    noise, taps = streams(draft, 9, blocks=3)
    assert torch.equal(
        compiled(noise, taps, anchors=ANCHORS).last_hidden_state, draft(noise, taps, anchors=ANCHORS).last_hidden_state
    )
    noise, taps = streams(draft, 9)
    assert torch.equal(compiled(noise, taps).last_hidden_state, draft(noise, taps).last_hidden_state)
    mask = torch.ones(1, 13)
    mask[:, :2] = 0
    assert torch.equal(
        compiled(noise, taps, attention_mask=mask).last_hidden_state,
        draft(noise, taps, attention_mask=mask).last_hidden_state,
    )


@torch.no_grad()
def test_one_graph_with_a_cache() -> None:
    draft = dense_draft(FULL, SLIDING)
    compiled = torch.compile(draft, fullgraph=True, backend="eager")
    noise, taps = streams(draft, 9)
    plain, traced = DraftCache(config=draft.config), DraftCache(config=draft.config)
    for start, end in ((0, 6), (6, 9)):
        want = draft(noise, taps[:, start:end], cache=plain).last_hidden_state
        assert torch.equal(compiled(noise, taps[:, start:end], cache=traced).last_hidden_state, want)
        plain.crop(-4)
        traced.crop(-4)


def test_bfloat16_runs_and_stays_bfloat16() -> None:
    draft = dense_draft(FULL, SLIDING).to(torch.bfloat16)
    noise, taps = (tensor.bfloat16() for tensor in streams(draft, 9))
    assert draft(noise, taps).last_hidden_state.dtype == torch.bfloat16


def test_layer_classes_are_not_split_across_devices() -> None:
    assert dense_draft(FULL)._no_split_modules == {"DecoderLayer"}
    assert isinstance(dense_draft(FULL).layers, nn.ModuleList)
