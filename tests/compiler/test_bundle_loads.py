"""Bundles where draftc is not: other widths and vocabularies, overrides of backends, names that Python has taken."""

from dataclasses import replace

import pytest

from draftc.spec.layout import Target
from tests.compiler.bundles import compiled, run_alone
from tests.compiler.support import GQA, LOCAL

WIDE = {"target": Target(hidden_size=40, num_hidden_layers=8, vocab_size=100)}
REDUCED = {"draft_vocab_size": 30}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [WIDE, REDUCED, WIDE | REDUCED], ids=["wide", "reduced", "both"])
def test_other_widths_and_vocabularies_survive_a_round_trip(changes, tmp_path):
    """Filled maps and weights come back bit for bit, and what is saved after loading is the same bytes again."""
    compiled("context", "near", **changes).write(tmp_path / "tiny")
    printed = run_alone(
        "import torch\n"
        "from pathlib import Path\n"
        "from transformers import AutoConfig, AutoModel\n"
        "config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "model = AutoModel.from_config(config, trust_remote_code=True).eval()\n"
        "generator = torch.Generator().manual_seed(1)\n"
        "for value in model.parameters():\n"
        "    value.data.normal_(0, 0.2, generator=generator)\n"
        "if model.owns_head:\n"
        "    model.t2d[::4] = True\n"
        "    model.d2t.copy_(torch.arange(30) * 2)\n"
        "noise = torch.randn(1, 4, config.target_hidden_size, generator=generator)\n"
        "taps = torch.randn(1, 5, config.context_width, generator=generator)\n"
        "one, two = Path(sys.argv[2], 'one'), Path(sys.argv[2], 'two')\n"
        "model.save_pretrained(one)\n"
        "again = AutoModel.from_pretrained(one, trust_remote_code=True)\n"
        "again.save_pretrained(two)\n"
        "names = sorted(path.name for path in one.iterdir())\n"
        "assert names == sorted(path.name for path in two.iterdir())\n"
        "assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)\n"
        "assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())\n"
        "out = [each(noise_embeds=noise, context_hidden_states=taps).last_hidden_state for each in (model, again)]\n"
        "assert torch.equal(*out)\n"
        "print(out[0].shape[-1], sorted({'d2t', 't2d', 'lm_head.weight'} & model.state_dict().keys()))\n",
        tmp_path, tmp_path / "tiny", tmp_path,
    )  # fmt: skip
    reduced = "draft_vocab_size" in changes
    width = 24 if reduced or "target" not in changes else 40  # an own head takes the draft's width
    assert printed == f"{width} {['d2t', 'lm_head.weight', 't2d'] if reduced else []}"


OVERRIDES = """
import torch
from transformers import AutoModel
options = {"attn_implementation": sys.argv[2]} if len(sys.argv) > 2 else {}
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, **options)
print(*model.layer_backends("decoding", "cpu"), *model.layer_backends("training", "cpu"))
"""


@pytest.mark.slow
def test_backends_of_a_loaded_bundle_can_be_chosen(tmp_path):
    compiled("context", "recurrent").write(tmp_path / "tiny", weights="random")
    where = (tmp_path, tmp_path / "tiny")
    assert run_alone(OVERRIDES, *where) == "sdpa kda_block sdpa kda_block"
    assert run_alone(OVERRIDES, *where, "eager") == "eager kda_block eager kda_block"
    assert run_alone(OVERRIDES, *where, "eager", DRAFTC_BACKEND="sdpa") == "sdpa kda_block sdpa kda_block"
    both = run_alone(OVERRIDES, *where, DRAFTC_BACKEND="eager,kda_recurrent")
    assert both == "eager kda_recurrent eager kda_recurrent"


def test_names_that_python_or_the_bundle_itself_has_taken(tmp_path):
    """Layouts and attentions may be called like keywords, packages, and things that the linked code defines."""
    layouts = ("torch", "transformers", "none", "a.b-c_d", "qwen3.5")
    words = ("lambda", "model", "draft", "view", "none")
    kinds = [replace(GQA if n % 2 else LOCAL, sliding_window=9 + n if n % 2 == 0 else None) for n in range(len(words))]
    for name, word, kind in zip(layouts, words, kinds, strict=True):
        attentions = {word: kind, "stateless": replace(kind, rope=None)}
        compiled(word, "stateless", attentions=attentions, name=name).write(tmp_path / name, weights="random")
    printed = run_alone(
        "import torch\n"
        "from transformers import AutoModel\n"
        "for folder in sys.argv[1:]:\n"
        "    model = AutoModel.from_pretrained(folder, trust_remote_code=True)\n"
        "    out = model(noise_embeds=torch.randn(1, 4, 24), context_hidden_states=torch.randn(1, 5, 48))\n"
        "    assert out.last_hidden_state.isfinite().all()\n"
        "    print(type(model).__name__, type(model.layers[0]).__name__)\n",
        tmp_path, *(tmp_path / name for name in layouts),
    )  # fmt: skip
    assert printed.splitlines() == [
        "TorchDraftModel LambdaLayer",
        "TransformersDraftModel ModelLayer",
        "NoneDraftModel DraftLayer",
        "ABCDDraftModel ViewLayer",
        "Qwen3_5DraftModel NoneLayer",
    ]
