"""Specs become the modules that public checkpoints fit; equal layers are built and traced once; nothing is filled."""

import ast
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftc.compiler.build import build, facts_of, latent_scale, reference, turn_of
from draftc.compiler.program import TAKEN, assemble, class_name
from draftc.runtime.kda.states import plan_states
from draftc.spec.layout import LayerSpec, MlpSpec, Rope, RopeScaling
from tests.compiler.support import ATTENTIONS, GQA, HALF, INTERLEAVED, KDA, LOCAL, MLA, SCAN, layout, qwen3_8b

YARN = RopeScaling("yarn", (("factor", 40.0), ("original_max_position_embeddings", 4096), ("mscale_all_dim", 1.0)))


def test_gqa_parameters_are_those_of_qwen3_drafts() -> None:
    (part, *_) = build(qwen3_8b())
    shapes = {name: tuple(p.shape) for name, p in part.module.named_parameters()}
    assert shapes == {
        "self_attn.q_proj.weight": (4096, 4096),
        "self_attn.k_proj.weight": (1024, 4096),
        "self_attn.v_proj.weight": (1024, 4096),
        "self_attn.o_proj.weight": (4096, 4096),
        "self_attn.q_norm.weight": (128,),
        "self_attn.k_norm.weight": (128,),
        "mlp.gate_proj.weight": (12288, 4096),
        "mlp.up_proj.weight": (12288, 4096),
        "mlp.down_proj.weight": (4096, 12288),
        "input_layernorm.weight": (4096,),
        "post_attention_layernorm.weight": (4096,),
    }


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_meta_form_has_the_tensors_of_the_real_one(name: str) -> None:
    whole = reference(layout(name))
    real = {key: tuple(p.shape) for key, p in whole.layers[0].named_parameters()}
    (part,) = build(layout(name))
    assert {key: tuple(p.shape) for key, p in part.module.named_parameters()} == real
    assert all(p.is_meta for p in part.module.parameters())


def test_the_compile_path_is_cheap() -> None:
    """No model code of transformers and no meta kernel is imported, for any kind."""
    code = (
        "import sys; from tests.compiler.support import ATTENTIONS, layout\n"
        "from draftc.compiler.program import assemble; from draftc.compiler.passes.driver import run_passes\n"
        "run_passes(assemble(layout(*ATTENTIONS)))\n"
        "print([name for name in ('transformers.modeling_utils', 'sympy', 'torch._dynamo') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_turns() -> None:
    made = layout("context")
    assert turn_of(GQA, made) == ("half", 8, 10000.0, None, 128)
    assert turn_of(replace(GQA, rope=Rope("half", 5.0, 0.5)), made)[:3] == ("half", 4, 5.0)
    assert turn_of(MLA, made)[:2] == ("interleaved", 6)
    assert turn_of(replace(GQA, rope=None), made) is None
    assert turn_of(KDA, made) is None


def test_a_share_of_the_channels_is_rounded_not_cut_off() -> None:
    """100 x 0.58 is 57.99999999999999 in floating point."""
    turn = turn_of(replace(GQA, head_dim=100, rope=replace(HALF, partial_rotary_factor=0.58)), layout("context"))
    assert turn is not None
    assert turn.dim == 58


def test_stacks_that_scan_make_one_plan_for_all_layers() -> None:
    assert reference(layout("scan", "context")).plan_scan is plan_states
    assert reference(layout("recurrent", "context")).plan_scan is None


def test_a_proportional_rope_covers_the_whole_head() -> None:
    rope = Rope("half", 5.0, 0.25, RopeScaling("proportional", (("factor", 2.0),)))
    turn = turn_of(replace(GQA, rope=rope), layout("context"))
    assert turn.dim == GQA.head_dim
    assert dict(turn.scaling) == {"factor": 2.0, "partial_rotary_factor": 0.25, "rope_type": "proportional"}
    assert list(turn.scaling) == sorted(turn.scaling)


def test_facts() -> None:
    facts = facts_of(LOCAL, layout("near"))
    assert (facts.window, facts.is_causal, facts.memory) == (9, True, "keys")
    assert facts_of(KDA, layout("recurrent")).memory == "none"
    assert facts_of(SCAN, layout("scan")).memory == "state"


def test_scale_of_latent_attention_matches_deepseek() -> None:
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    keys = {"rope_type": "yarn", "rope_theta": 10000.0, **dict(YARN.parameters)}
    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        q_lora_rank=7,
        kv_lora_rank=12,
        qk_nope_head_dim=10,
        qk_rope_head_dim=6,
        v_head_dim=5,
        rope_parameters=keys,
    )
    ours = latent_scale(replace(MLA, rope=replace(INTERLEAVED, scaling=YARN)))
    assert math.isclose(ours, DeepseekV3Attention(config, 0).scaling, rel_tol=1e-12)
    assert latent_scale(MLA) == 16**-0.5
    assert latent_scale(replace(MLA, rope=None)) == 16**-0.5


def test_equal_layers_share_everything() -> None:
    program = assemble(qwen3_8b())
    assert [unit.name for unit in program.units] == ["ContextAttention", "GatedMLP", "ContextLayer"]
    assert program.stack == ("ContextLayer",) * 5
    assert all(unit.layers == (0, 1, 2, 3, 4) for unit in program.units)


def test_a_window_makes_another_layer_of_the_same_attention() -> None:
    program = assemble(layout("context", "near", "context"))
    assert [unit.name for unit in program.units] == ["ContextAttention", "GatedMLP", "ContextLayer", "NearLayer"]
    assert program.unit("NearLayer").parts == {"self_attn": "ContextAttention", "mlp": "GatedMLP"}
    assert program.unit("ContextLayer").layers == (0, 2)
    assert program.unit("NearLayer").facts.window == 9
    assert program.attention(1).name == "ContextAttention"


@pytest.mark.parametrize(
    "change",
    [
        {"num_key_value_heads": 4},
        {"head_dim": 16},
        {"qk_norm": False},
        {"attention_bias": True},
        {"output_gate": "full"},
        {"rope": replace(HALF, style="interleaved")},
        {"rope": replace(HALF, partial_rotary_factor=0.5)},
        {"rope": None},
    ],
)
def test_what_changes_a_body_makes_another_attention(change: dict) -> None:
    program = assemble(layout("a", "b", attentions={"a": GQA, "b": replace(GQA, **change)}))
    assert [unit.name for unit in program.units if unit.kind == "attention"] == ["AAttention", "BAttention"]


def test_a_rope_of_another_base_shares_the_attention_but_not_the_layer() -> None:
    other = replace(GQA, rope=replace(HALF, rope_theta=5e6))
    program = assemble(layout("a", "b", attentions={"a": GQA, "b": other}))
    assert program.unit("BLayer").parts["self_attn"] == "AAttention"
    assert program.unit("BLayer").facts.turn.theta == 5e6


def test_feed_forward_parts_of_two_widths_are_two_classes() -> None:
    layers = tuple(LayerSpec(i, "context", GQA, MlpSpec(40 + i, "silu")) for i in range(2))
    program = assemble(layout(layers=layers))
    assert [unit.name for unit in program.units if unit.kind == "mlp"] == ["GatedMLP", "DraftGatedMLP"]
    assert program.stack == ("ContextLayer", "DraftContextLayer")


def test_inputs_that_nobody_reads_are_dropped_with_their_arguments() -> None:
    program = assemble(layout("recurrent", "context", "scan"))
    assert program.unit("RecurrentAttention").inputs == ("block", "view")
    assert program.unit("ContextAttention").inputs == ("block", "context", "rope", "view", "memory")
    assert program.unit("ScanAttention").inputs == ("block", "context", "anchors", "view", "memory")
    layer = program.unit("RecurrentLayer")
    assert layer.inputs == ("block", "context", "anchors", "rope", "view", "memory")
    call = next(node for node in layer.graph.nodes if node.target == "self_attn")
    assert [arg.name for arg in call.args] == ["input_layernorm", "view"]


@pytest.mark.parametrize("word", ["dynamic", "dummy", "decoder", "gradient_checkpointing", "cache"])
def test_no_class_takes_a_name_that_a_bundle_imports(word: str) -> None:
    name = f"{class_name(word)}Layer"
    assert name in TAKEN
    assert assemble(layout(word, attentions={word: GQA})).stack == (f"Draft{name}",)


def test_every_name_that_a_bundle_could_lose_to_a_layout_is_known() -> None:
    """Linked or imported names of runtime that end as names of emitted classes do; attentions and MLPs are emitted."""
    runtime = Path(__file__).parents[2] / "runtime"
    sources = [path for path in runtime.rglob("*.py") if path.parent.name != "attention" and path.name != "mlp.py"]
    found = set()
    for path in sources:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name for alias in node.names}
    assert {name for name in found if re.fullmatch(r"[A-Z]\w*(Layer|Attention)", name)} <= TAKEN


def test_class_names() -> None:
    assert class_name("context") == "Context"
    assert class_name("latent_full") == "LatentFull"


def test_the_reference_runs() -> None:
    model = reference(layout("recurrent", "context", "scan", "near", "latent")).double().eval()
    block, taps = torch.randn(1, 8, 24, dtype=torch.float64), torch.randn(1, 7, 48, dtype=torch.float64)
    out = model(noise_embeds=block, context_hidden_states=taps, anchors=torch.tensor([[3, 7]])).last_hidden_state
    assert out.shape == (1, 8, 24)
    assert out.isfinite().all()
    assert model.layer_backends("training", "cpu") == ("kda_recurrent", "eager", "kda_recurrent", "eager", "eager")
    assert [layer.window for layer in model.layers] == [None, None, None, 9, None]
