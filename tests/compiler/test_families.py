"""Every family on every kind of attention: names and shapes, printed classes, bundles alone, what verify notices."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draftc.compiler.api import CompiledDraft
from draftc.compiler.build import reference
from draftc.compiler.dims import Lengths
from draftc.compiler.emit import bundle_files
from draftc.compiler.families import family_form
from draftc.compiler.parameters import parameter_count, tensor_shapes
from draftc.compiler.passes.cost import head_cost
from draftc.compiler.program import assemble
from draftc.compiler.readme import drafted_per_step
from draftc.compiler.verify import verify
from draftc.compiler.weights import WeightsError
from draftc.spec.layout import Dflash2, Dspark, Target
from tests.compiler.bundles import STACK, compiled, run_alone
from tests.compiler.support import ATTENTIONS, layout
from tests.runtime.headed import FAMILIES, fill_maps, hidden_states, tables

# One of each form whose code in a bundle differs.
FORMS = (
    "dflash",
    "dflash2",
    "domino-shifted-prefix",
    "dspark-vanilla",
    "dspark-gated",
    "dspark-own-rnn",
    "dspark-bare",
)


def same_weights(draft: CompiledDraft) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The emitted model and its reference, float64, with the same drawn weights and the same backends."""
    emitted, plain = draft.model(dtype=torch.float64).eval(), reference(draft.layout).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in emitted.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    if emitted.owns_head:
        fill_maps(emitted)
    plain.load_state_dict(emitted.state_dict(), strict=True)
    for model in (emitted, plain):
        model.environment_wish = "eager,kda_recurrent"
    return emitted, plain


def results(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Both forms of the heads on top of training blocks, and gradients of everything."""
    generator = torch.Generator().manual_seed(2)
    width, embed_and_head = model.config.target_hidden_size, tables(model)
    noise = torch.randn(1, 12, width, generator=generator, dtype=torch.float64)
    taps = torch.randn(1, 10, model.config.context_width, generator=generator, dtype=torch.float64)
    previous = torch.randint(0, 100, (1, 3, model.slots.steps), generator=generator)
    hidden = model(noise, taps, anchors=torch.tensor([[2, 7, -1]])).hidden_states[-1]
    embed, lm_head = embed_and_head
    scored = model.block_scores(hidden, previous, lm_head, embed)
    values = [value for value in scored if value is not None and value.is_floating_point()]
    sum(
        (value * torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view_as(value)).sum() for value in values
    ).backward()
    drafted = model.draft_tokens(hidden[:, :4].detach(), previous[:, 0, 0], lm_head, embed)
    found = {f"value {number}": value.detach() for number, value in enumerate([*scored, *drafted]) if value is not None}
    return found | {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("kind", ATTENTIONS)
@pytest.mark.parametrize("name", FORMS)
def test_every_family_compiles_with_every_attention(name: str, kind: str) -> None:
    draft = compiled(kind, family=FAMILIES[name])
    model = reference(draft.layout)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert list(tensor_shapes(draft.program).items()) == list(shapes.items())
    assert parameter_count(draft.program) == sum(p.numel() for p in model.parameters())
    assert drafted_per_step(draft.layout) == model.slots.drafted
    assert family_form(draft.layout).slots == model.slots
    compile(draft.files["modeling_tiny.py"], "modeling_tiny.py", "exec")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_emitted_model_is_the_reference_bit_for_bit(name: str) -> None:
    emitted, plain = same_weights(compiled(*STACK, family=FAMILIES[name]))
    found, want = results(emitted), results(plain)
    assert found.keys() == want.keys()
    for key, value in want.items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dflash", {"draft_vocab_size": 30}),
        ("dspark-vanilla", {"draft_vocab_size": 30}),
        ("dspark-own-rnn", {"draft_vocab_size": 30, "target": Target(40, 8, 100)}),
        ("dflash2", {"target": Target(40, 8, 100)}),
        ("domino-prefix", {"target": Target(40, 8, 100), "final_logit_softcapping": 3.0, "output_multiplier": 0.5}),
    ],
)
def test_other_widths_and_vocabularies(name: str, changes: dict) -> None:
    draft = compiled("context", "recurrent", family=FAMILIES[name], **changes)
    emitted, plain = same_weights(draft)
    assert list(tensor_shapes(draft.program)) == list(plain.state_dict())
    found, want = results(emitted), results(plain)
    for key, value in want.items():
        assert torch.equal(found[key], value), key


def test_optimising_again_keeps_the_numbers_of_a_convolved_layer() -> None:
    draft = compiled("context", "scan", opt=2, family=FAMILIES["dflash2"])
    emitted, plain = same_weights(draft)
    found, want = results(emitted), results(plain)
    for key, value in want.items():
        torch.testing.assert_close(found[key], value, rtol=1e-11, atol=1e-11, msg=key)


KEYS = {
    "dflash2": {
        "candidate_selector.predecessor_codebook": (100, 5),
        "candidate_selector.successor_codebook": (100, 5),
        "candidate_selector.hidden_projection.weight": (5, 24),
        "layers.0.attention_conv.base_kernel": (2, 2, 24),
        "layers.0.attention_conv.kernel_projection.weight": (12, 24),
        "layers.0.mlp_conv.base_kernel": (2, 2, 24),
        "layers.0.mlp_conv.kernel_projection.weight": (12, 24),
    },
    "domino": {
        "prefix_gru.weight_ih_l0": (18, 24),
        "prefix_gru.weight_hh_l0": (18, 6),
        "embed_proj.0.weight": (5, 30),
        "embed_proj.2.weight": (100, 5),
    },
    "dspark-vanilla": {
        "markov_head.markov_w1.weight": (100, 6),
        "markov_head.markov_w2.weight": (100, 6),
        "confidence_head.proj.weight": (1, 30),
        "confidence_head.proj.bias": (1,),
    },
    "dspark-gated": {
        "markov_head.markov_w1.weight": (100, 6),
        "markov_head.markov_w2.weight": (100, 6),
        "markov_head.gate_proj.weight": (6, 30),
        "markov_head.gate_proj.bias": (6,),
        "confidence_head.proj.weight": (1, 24),
        "confidence_head.proj.bias": (1,),
    },
    "dspark-rnn": {
        "markov_head.markov_w1.weight": (100, 6),
        "markov_head.markov_w2.weight": (100, 6),
        "markov_head.joint_proj.weight": (18, 36),
        "markov_head.joint_proj.bias": (18,),
    },
    "dspark-bare": {},
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_and_shapes_are_the_public_ones(name: str) -> None:
    plain = set(tensor_shapes(assemble(layout("context"))))
    found = tensor_shapes(assemble(layout("context", family=FAMILIES[name])))
    assert {key: shape for key, shape in found.items() if key not in plain} == KEYS[name]


@pytest.mark.parametrize(
    ("name", "nested"),
    [
        ("dflash2", {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 7}),
        (
            "domino-shifted-prefix",
            {
                "projector_type": "domino",
                "gru_hidden_dim": 6,
                "emb_dim": 5,
                "pure_draft_prefix_len": 1,
                "shift_label": True,
            },
        ),
        (
            "dspark-gated",
            {
                "projector_type": "dspark",
                "sample_from_anchor": True,
                "markov_rank": 6,
                "markov_head_type": "gated",
                "enable_confidence_head": True,
                "confidence_head_with_markov": False,
            },
        ),
    ],
)
def test_configuration_says_what_readers_of_the_formats_look_for(name: str, nested: dict) -> None:
    config = json.loads(compiled("context", family=FAMILIES[name]).files["config.json"])
    common = {"block_size": 4, "mask_token_id": 99, "target_layer_ids": [1, 3]}
    assert config["dflash_config"] == common | nested
    for field in fields(FAMILIES[name]):
        assert config[field.name] == nested[field.name]


def test_a_bundle_holds_the_head_that_it_uses() -> None:
    texts = {name: compiled("context", family=FAMILIES[name]).files["modeling_tiny.py"] for name in FORMS}
    classes = (
        "CandidateSelector",
        "PrefixGRU",
        "MarkovHead",
        "GatedMarkovHead",
        "RecurrentMarkovHead",
        "DynamicKernels",
    )
    held = {name: {word for word in classes if f"class {word}(" in text} for name, text in texts.items()}
    assert held["dflash"] == set()
    assert held["dflash2"] == {"CandidateSelector", "DynamicKernels"}
    assert held["domino-shifted-prefix"] == {"PrefixGRU"}
    assert held["dspark-vanilla"] == {"MarkovHead"}
    assert held["dspark-gated"] == {"MarkovHead", "GatedMarkovHead"}
    assert held["dspark-own-rnn"] == {"MarkovHead", "RecurrentMarkovHead"}


@pytest.mark.parametrize("name", ["dflash2", "domino", "dspark-gated"])
def test_python_files_are_fixed_points_of_ruff(name: str, tmp_path: Path) -> None:
    compiled("context", "scan", family=FAMILIES[name]).write(tmp_path / "tiny")
    ruff = [sys.executable, "-m", "ruff"]
    isolated = ["--isolated", "--line-length", "120"]
    for command in (["check", *isolated, "--select", "E,F,I,B,UP,W,C4,PIE,RET,SIM"], ["format", *isolated, "--diff"]):
        done = subprocess.run([*ruff, *command, str(tmp_path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


ALONE = """
import torch
from safetensors.torch import save_file
from transformers import AutoModel
draft = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=torch.float64)
torch.manual_seed(3)
embed = torch.nn.Embedding(100, 24).double()
lm_head = torch.nn.Linear(24, 100, bias=False).double()
hidden = torch.randn(3, draft.config.block_size, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
drafted = draft.draft_tokens(hidden, torch.tensor([7, 0, 99]), lm_head, embed)
save_file({"tokens": drafted.tokens, "scores": drafted.scores.detach().contiguous()}, sys.argv[2])
draft.save_pretrained(sys.argv[3])
"""


@pytest.mark.parametrize("name", ["dflash", "dflash2", "domino-shifted-prefix", "dspark-own-rnn"])
def test_a_bundle_alone_drafts_the_same_and_saves_the_same(name: str, tmp_path: Path) -> None:
    draft = compiled("context", family=FAMILIES[name])
    emitted, _ = same_weights(draft)
    draft.write(tmp_path / "tiny", weights=emitted.state_dict())
    run_alone(ALONE, tmp_path, tmp_path / "tiny", tmp_path / "drafted.safetensors", tmp_path / "again")
    found = load_file(tmp_path / "drafted.safetensors")
    emitted.load_state_dict({key: value.float().double() for key, value in emitted.state_dict().items()})
    embed, lm_head = tables(emitted)
    with torch.no_grad():
        want = emitted.draft_tokens(hidden_states(emitted), torch.tensor([7, 0, 99]), lm_head, embed)
    assert torch.equal(found["tokens"], want.tokens)
    torch.testing.assert_close(found["scores"], want.scores, rtol=1e-12, atol=1e-12)
    for file in ("configuration_tiny.py", "modeling_tiny.py"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "tiny" / file).read_bytes()
    wide = {key: value.double() for key, value in load_file(tmp_path / "tiny" / "model.safetensors").items()}
    assert wide.keys() == emitted.state_dict().keys()
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(again[key], value) for key, value in wide.items())


def test_a_reduced_vocabulary_travels_with_its_maps(tmp_path: Path) -> None:
    draft = compiled("context", family=FAMILIES["dspark-vanilla"], draft_vocab_size=30)
    with pytest.raises(WeightsError, match="draft_vocab_size 30"):
        draft.write(tmp_path / "tiny", weights="random")
    emitted, _ = same_weights(draft)
    draft.write(tmp_path / "tiny", weights=emitted.state_dict())
    run_alone(ALONE, tmp_path, tmp_path / "tiny", tmp_path / "drafted.safetensors", tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again["d2t"].dtype == torch.int64
    assert again["t2d"].dtype == torch.bool
    assert torch.equal(again["d2t"], emitted.d2t)
    assert torch.equal(again["t2d"], emitted.t2d)
    tokens = load_file(tmp_path / "drafted.safetensors")["tokens"]
    assert emitted.t2d[tokens].all()


MUTATIONS = {
    "dflash2": (
        ("transition(features, unary.candidates)", "transition(-features, unary.candidates)"),
        ("F.pad(blocks, (0, 0, 0, 0, taps - 1, 0))", "F.pad(blocks, (0, 0, 0, 0, 0, taps - 1))"),
        ("self.mlp_conv.base_kernel[1], after", "self.mlp_conv.base_kernel[0], after"),
    ),
    "domino-shifted-prefix": (
        ("(1 - kept) * fresh + kept * state", "kept * fresh + (1 - kept) * state"),
        ("step < self.config.pure_draft_prefix_len", "step <= self.config.pure_draft_prefix_len"),
    ),
    "dspark-own-rnn": (
        ("kept * state + (1 - kept) * torch.tanh(candidate)", "kept * state"),
        ("[hidden, self.markov_head.embedded(previous)]", "[self.markov_head.embedded(previous), hidden]"),
    ),
}


def test_verify_runs_the_heads(tmp_path: Path) -> None:
    compiled("context", family=FAMILIES["dspark-own-rnn"]).write(tmp_path / "tiny")
    (verdict,) = verify(tmp_path / "tiny", dtype="float64")
    assert verdict.reasons == ()
    assert {"scores of a drafted block", "gradient of markov_head.joint_proj.weight through heads"} <= {
        found.what for found in verdict.differences
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_verify_notices_a_head_that_is_wrong(name: str, tmp_path: Path) -> None:
    compiled("context", family=FAMILIES[name]).write(tmp_path / "tiny")
    file = tmp_path / "tiny" / "modeling_tiny.py"
    text = file.read_text()
    for right, wrong in MUTATIONS[name]:
        assert text.count(right) == 1, right
        file.write_text(text.replace(right, wrong))
        (verdict,) = verify(tmp_path / "tiny", dtype="float64")
        assert verdict.reasons, wrong


def test_costs_of_heads_are_those_of_their_products() -> None:
    step = Lengths(1, 1, 1)
    assert head_cost(layout("context")).flops.evaluate(step) == 0
    ahead = layout("context", family=Dspark(True, 6, "vanilla", True, True))
    assert head_cost(ahead).flops.evaluate(step) == 4 * 2 * (6 * 100 + 30)
    own = layout("context", family=Dspark(False, 6, "rnn", False, None), draft_vocab_size=30)
    assert head_cost(own).flops.evaluate(step) == 3 * 2 * (24 * 30 + 6 * 30 + 36 * 18)
    assert head_cost(ahead).flops.evaluate(Lengths(2, 5, 1)) == 10 * head_cost(ahead).flops.evaluate(step)


def test_costs_of_convolutions_count_their_taps() -> None:
    plain, convolved = (
        compiled("context", family=family).program for family in (FAMILIES["dflash"], Dflash2(2, 8, 5, 7))
    )
    step = Lengths(1, 1, 1)
    more = convolved.costs[0].dense.flops.evaluate(step) - plain.costs[0].dense.flops.evaluate(step)
    projections, taps = 2 * (2 * 4 * 24 * 12), 4 * (4 * 24 * 2 * 3)
    assert more == projections + taps
    assert convolved.costs[0].parameters - plain.costs[0].parameters == 2 * (2 * 2 * 24 + 12 * 24)


@pytest.mark.parametrize("name", FORMS)
def test_the_readme_says_how_a_family_is_used(name: str) -> None:
    text = bundle_files(compiled("context", family=FAMILIES[name]).program)["README.md"]
    assert ('speculation_type="dflash"' in text) == (name == "dflash")
    assert ("draft.draft_tokens(" in text) == (name != "dflash")
    assert f"proposes {4 if name in ('dspark-vanilla', 'dspark-gated') else 3} tokens a step" in text


@pytest.mark.parametrize("name", ["dflash2", "domino", "dspark-rnn"])
def test_the_step_that_the_readme_shows_runs(name: str) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 8, "head_dim": 8}
    target = Qwen3ForCausalLM(Qwen3Config(vocab_size=100, num_attention_heads=3, num_key_value_heads=1, **sizes)).eval()
    compiled_draft = compiled("context", family=FAMILIES[name])
    code = compiled_draft.files["README.md"].partition("prompt = ")[2].partition("```")[0]
    shown = "".join(line for line in code.splitlines(keepends=True)[1:] if not line.startswith("print"))
    scope = {"torch": torch, "target": target, "draft": compiled_draft.model().eval(), "prompt": {}}
    scope["prompt"] = {"input_ids": torch.randint(1, 90, (1, 7))}
    with torch.no_grad():
        exec(shown, scope)
    assert scope["drafted"].tokens.shape == (1, drafted_per_step(compiled_draft.layout))
