"""Latent attention decodes in another form than it trains in: chosen with reasons, printed, taken and given back."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from draftc.compiler import api
from draftc.compiler.dims import Lengths
from draftc.compiler.latent_form import absorbed_flops, cheaper_form, expanded_flops
from draftc.compiler.part_costs import form_costs
from draftc.compiler.passes.cost import outer_cost
from draftc.compiler.program import Options
from draftc.compiler.report import form_lines, form_rows
from draftc.compiler.report_json import as_json
from draftc.compiler.verify import verify
from draftc.schemas import load
from draftc.spec.layout import Mla
from tests.compiler.bundles import compiled
from tests.compiler.support import ATTENTIONS, INTERLEAVED, MLA, layout
from tests.runtime.drafts import scrambled, streams

DEEPSEEK = Mla(128, 1536, 512, 128, 64, 128, 1e-6, INTERLEAVED, False, "none", None, False)
LATENTS = {
    "usual": MLA,
    "full": ATTENTIONS["latent_full"],
    "bare": ATTENTIONS["latent_bare"],
    "sliding": replace(MLA, sliding_window=6, is_causal=True),
    "shared_key_only": replace(MLA, qk_nope_head_dim=0, v_head_dim=20),
}


def latent_draft(spec: Mla, *more: str, **options: Any) -> api.CompiledDraft:
    facts = layout("first", *more, attentions={**ATTENTIONS, "first": spec})
    return api.compile(facts, Options(**{"packages": {"torch": "2.13.0"}, **options}))


def wide_model(draft: api.CompiledDraft) -> Any:
    torch.manual_seed(0)
    return scrambled(draft.model(dtype=torch.float64).eval())


def rounds(model: Any, taps: Tensor, accepted: tuple[int, ...] = (5, 1, 4, 2, 3)) -> list[Tensor]:
    """Outputs of steps that read as many more rows of `taps` each."""
    cache, found, end = DynamicCache(config=model.config), [], 0
    for number, rows in enumerate(accepted):
        noise, _ = streams(model, 1, batch=taps.shape[0], seed=number)
        new = taps[:, end : end + rows]
        with torch.no_grad():
            step = model(noise_embeds=noise, context_hidden_states=new, cache=cache)
        found.append(step.last_hidden_state)
        cache.crop(-model.config.block_size)
        end += rows
    return found


def without_forms(model: Any) -> Any:
    """The same weights in a class whose attentions decode as they train."""
    plain = type("Plain", (type(model),), {"decoding_forms": {}})(model.config)
    plain.to(torch.float64).load_state_dict(model.state_dict())
    return plain.eval()


@pytest.mark.parametrize("name", LATENTS)
def test_both_forms_decode_alike_over_many_rounds(name: str) -> None:
    model = wide_model(latent_draft(LATENTS[name], "context"))
    _, taps = streams(model, 15, batch=2)
    keys = list(model.state_dict())
    absorbed = rounds(model, taps)
    assert type(model.layers[0].self_attn).__name__ == "FirstAbsorbedAttention"
    assert list(model.state_dict()) == keys
    expanded = rounds(without_forms(model), taps)
    for ours, theirs in zip(absorbed, expanded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_one_form_continues_the_cache_of_the_other() -> None:
    model = wide_model(latent_draft(MLA))
    plain = without_forms(model)
    noise, taps = streams(model, 9)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        plain(noise_embeds=noise, context_hidden_states=taps[:, :5], cache=cache)
        cache.crop(-4)
        ours = model(noise_embeds=noise, context_hidden_states=taps[:, 5:], cache=cache).last_hidden_state
        alone = plain(noise_embeds=noise, context_hidden_states=taps).last_hidden_state
    torch.testing.assert_close(ours, alone, rtol=1e-11, atol=1e-11)


def test_the_phase_of_a_call_decides_and_training_takes_the_form_back() -> None:
    model = wide_model(latent_draft(MLA))
    kinds = lambda: type(model.layers[0].self_attn).__name__  # noqa: E731
    noise, taps = streams(model, 9, blocks=2)
    assert kinds() == "FirstAttention"
    model(noise_embeds=noise[:, :4], context_hidden_states=taps)
    assert kinds() == "FirstAbsorbedAttention"
    model(noise_embeds=noise, context_hidden_states=taps, anchors=torch.tensor([[2, 9]]))
    assert kinds() == "FirstAttention"
    assert model.prepare_decoding() == ()
    assert kinds() == "FirstAbsorbedAttention"
    assert model.eval() is model
    assert kinds() == "FirstAbsorbedAttention"
    assert model.train() is model
    assert kinds() == "FirstAttention"


def test_training_blocks_are_decoding_steps_across_the_forms() -> None:
    model = wide_model(latent_draft(MLA, "scan"))
    noise, taps = streams(model, 9, blocks=2)
    anchors = torch.tensor([[3, 9]])
    with torch.no_grad():
        together = model(noise_embeds=noise, context_hidden_states=taps, anchors=anchors).last_hidden_state
        for number, anchor in enumerate(anchors[0].tolist()):
            own = slice(4 * number, 4 * number + 4)
            alone = model(noise_embeds=noise[:, own], context_hidden_states=taps[:, :anchor]).last_hidden_state
            torch.testing.assert_close(together[:, own], alone, rtol=1e-11, atol=1e-11)


def test_models_copy_and_pickle_in_either_form() -> None:
    model = wide_model(latent_draft(MLA))
    _, taps = streams(model, 15)
    want = rounds(model, taps)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(rounds(twin, taps), want, strict=True))


def test_a_prepared_step_is_one_graph() -> None:
    model = wide_model(latent_draft(MLA))
    model.prepare_decoding()
    noise, taps = streams(model, 9)
    run: Callable[..., Any] = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = run(noise_embeds=noise, context_hidden_states=taps).last_hidden_state
        theirs = without_forms(model)(noise_embeds=noise, context_hidden_states=taps).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


class Adapted(nn.Linear):
    """A linear layer with something beside its weight, as adapters have it."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) * 2


def test_an_adapter_on_the_regrouped_weight_is_not_left_out() -> None:
    model = wide_model(latent_draft(MLA))
    noise, taps = streams(model, 9)
    plain = without_forms(model)
    for each in (model, plain):
        each(noise_embeds=noise, context_hidden_states=taps)
        attention = each.layers[0].self_attn
        adapted = Adapted(attention.kv_b_proj.in_features, attention.kv_b_proj.out_features, bias=False).double()
        adapted.weight = attention.kv_b_proj.weight
        attention.kv_b_proj = adapted
    ours, theirs = (each(noise_embeds=noise, context_hidden_states=taps).last_hidden_state for each in (model, plain))
    assert torch.equal(ours, theirs)
    (reason,) = model.prepare_decoding()
    assert reason.startswith("layer 0: its kv_b_proj is a Adapted of torch.float64")


def test_a_forced_backend_that_the_form_was_not_made_for_keeps_the_plain_one() -> None:
    spec = replace(MLA, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)  # wide enough for flex on CUDA
    model = wide_model(latent_draft(spec))
    plain = without_forms(model)
    for name, kept in (("flex", True), ("eager", False), ("sdpa", False)):
        model.config._attn_implementation = name
        reasons = model.prepare_decoding()
        assert ("backend flex was forced" in " ".join(reasons)) is kept
        assert (type(model.layers[0].self_attn).__name__ == "FirstAttention") is kept
    model.config._attn_implementation = "flex"
    _, taps = streams(model, 15)
    for ours, theirs in zip(rounds(model, taps), rounds(plain, taps), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("block", "form"), [(1, "absorbed"), (16, "absorbed"), (170, "absorbed"), (171, "expanded")])
def test_the_rule_is_operations_for_a_cached_row(block: int, form: str) -> None:
    """512·(128 + 128) / (2·512 - 128 - 128) = 170.67 queries cost the same in both forms."""
    assert cheaper_form(DEEPSEEK, block, "bfloat16").form == form
    head = 2 * 128
    assert expanded_flops(DEEPSEEK, block) == head * (512 * 256 + block * 320)
    assert absorbed_flops(DEEPSEEK, block) == head * block * (2 * 512 + 64)


def test_the_choice_says_its_numbers() -> None:
    draft = api.compile(layout("wide", attentions={"wide": DEEPSEEK}, block_size=16, dtype="bfloat16"))
    choice = draft.program.forms[0, "cuda"]
    assert choice.reason == (
        "16 queries cost a cached row 4,456,448 operations absorbed, 34,865,152 expanded; "
        "it is 1,152 bytes as latent, 81,920 expanded"
    )
    assert list(form_lines(draft)) == [
        f"wide, decoding on {device}: absorbed: {choice.reason}" for device in ("cpu", "cuda")
    ]
    refused = dict(draft.program.choices[0, "decoding", "cuda"].refusals)
    assert "heads of 576 channels; flash takes 256" in [refusal.reason for refusal in refused["flash"]]
    manifest = json.loads(draft.files["manifest.json"])
    assert manifest["decoding_forms"][1] == {"layer": 0, "device": "cuda", "form": "absorbed", "reason": choice.reason}
    assert "`WideAbsorbedAttention` takes the place of `WideAttention`" in draft.files["README.md"]


def test_backends_are_asked_about_the_widths_of_the_form() -> None:
    """Forced flex runs heads of 576 channels nowhere on CUDA: there the expanded form decodes, on CPU the absorbed."""
    facts = layout("wide", attentions={"wide": DEEPSEEK}, block_size=16, dtype="bfloat16")
    draft = api.compile(facts, Options(backend="flex"))
    forms = {device: draft.program.forms[0, device] for device in ("cpu", "cuda")}
    assert forms["cpu"].form == "absorbed"
    assert forms["cuda"].form == "expanded"
    assert forms["cuda"].reason == (
        "--backend flex refuses the absorbed form: heads of 576 and 512 channels; its tiles hold 512"
    )
    assert draft.program.choices[0, "decoding", "cuda"].backend == "flex"
    text = next(text for name, text in draft.files.items() if name.startswith("modeling"))
    assert '"cpu": {WideAttention: WideAbsorbedAttention}, "cuda": {}, }' in " ".join(text.split())


@pytest.mark.parametrize("options", [{"opt": 0}, {"disable": ("select",)}])
def test_the_plain_form_alone_is_printed_where_nothing_is_chosen(options: dict[str, Any]) -> None:
    draft = latent_draft(MLA, **options)
    text = draft.files["modeling_tiny.py"]
    assert "Absorbed" not in text
    assert "decoding_forms: ClassVar[Mapping[str, Mapping[type, type]]] = {}" in text
    assert text.count("decoding_forms:") == 1
    assert {choice.form for choice in draft.program.forms.values()} <= {"expanded"}


def test_layouts_without_latent_attention_have_no_forms() -> None:
    draft = compiled("context", "recurrent")
    assert draft.program.forms == {}
    assert form_rows(draft, 64)[1] == []
    assert "takes the place" not in draft.files["README.md"]


@pytest.mark.parametrize("opt", [1, 2])
def test_a_fresh_process_finds_both_forms_right(opt: int, tmp_path: Any) -> None:
    latent_draft(LATENTS["full"], "scan", opt=opt).write(tmp_path / "tiny")
    for verdict in verify(tmp_path / "tiny", backends=(None, "eager"), dtype="float64"):
        assert verdict.reasons == ()
        assert any("decoding" in difference.what for difference in verdict.differences)


@pytest.mark.parametrize("name", ["usual", "full", "bare"])
def test_operations_of_either_form_are_those_that_torch_counts(name: str) -> None:
    draft = latent_draft(LATENTS[name])
    model = wide_model(draft)
    model.config._attn_implementation = "eager"
    cost = draft.program.costs[0]
    lengths = Lengths(batch=1, blocks=1, context=1, past=10)
    outer = outer_cost(draft.layout).flops.evaluate(lengths)
    for each, counted in ((model, cost.absorbed), (without_forms(model), cost)):
        found = step_flops(each)
        elements = counted.flops_at(lengths) + outer - found
        assert 0 < elements < 0.15 * found


def step_flops(model: Any) -> int:
    """What torch counts in a step that reads one row after ten."""
    cache = DynamicCache(config=model.config)
    noise, taps = streams(model, 11)
    with torch.no_grad():
        model(noise_embeds=noise, context_hidden_states=taps[:, :10], cache=cache)
        cache.crop(-4)
        with FlopCounterMode(display=False) as counter:
            model(noise_embeds=noise, context_hidden_states=taps[:, 10:], cache=cache)
    return int(counter.get_total_flops())


def test_inspection_shows_what_the_latent_saves() -> None:
    draft = api.compile(layout("wide", "context", attentions={**ATTENTIONS, "wide": DEEPSEEK}, dtype="bfloat16"))
    cpu, cuda = form_costs(draft.program, 4096)
    assert (cpu.device, cuda.device) == ("cpu", "cuda")
    assert cuda.latent_cache_bytes == 4096 * 576 * 2
    assert cuda.expanded_cache_bytes == 4096 * 128 * (192 + 128) * 2
    assert 5 * cuda.absorbed_step_flops < cuda.expanded_step_flops
    _, rows, _ = form_rows(draft, 4096)
    assert [row[:3] for row in rows] == [("wide", "cpu", "absorbed"), ("wide", "cuda", "absorbed")]
    assert rows[0][-2:] == ("4.72 MB", "336 MB")
    found = as_json(draft, 4096)
    jsonschema.validate(found, load("inspect-1"))
    assert found["forms"][0]["absorbed_step_flops"] == cpu.absorbed_step_flops
    assert found["costs"][0]["step_flops"] == cuda.absorbed_step_flops
