"""A bundle alone, in a process without draftc, is the model that compile returns in this one."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from draftc import bundles
from draftc.compiler.weights import WeightsError
from draftc.compiler.write import BundleError
from tests.compiler.bundles import STACK, compiled, run_alone

CALL = """
import torch
from transformers import AutoModel, DynamicCache
def training(model):
    generator = torch.Generator().manual_seed(3)
    size, config = model.config.block_size, model.config
    anchors = torch.tensor([[2, 7, -1], [0, 5, 9]])
    noise = torch.randn(2, 3 * size, config.target_hidden_size, generator=generator, dtype=torch.float64)
    taps = torch.randn(2, 10, config.context_width, generator=generator, dtype=torch.float64)
    out = model(noise_embeds=noise, context_hidden_states=taps, anchors=anchors).last_hidden_state
    model.zero_grad()
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return {"out": out.detach()} | {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
@torch.no_grad()
def decoding(model):
    generator, cache = torch.Generator().manual_seed(4), DynamicCache(config=model.config)
    size, config, found, past = model.config.block_size, model.config, {}, 0
    for step, rows in enumerate((6, 2, 1, 4)):
        noise = torch.randn(1, size, config.target_hidden_size, generator=generator, dtype=torch.float64)
        taps = torch.randn(1, rows, config.context_width, generator=generator, dtype=torch.float64)
        places = torch.arange(past, past + rows + size)[None]
        out = model(noise_embeds=noise, context_hidden_states=taps, position_ids=places, cache=cache)
        found[f"step {step}"] = out.last_hidden_state
        cache.crop(-size)
        past += rows
    return found
"""


@pytest.fixture(scope="module")
def draft():
    return compiled()


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache of bundles of this test's own."""
    monkeypatch.setenv("DRAFTC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bundles"


@pytest.fixture
def written(draft, tmp_path) -> Path:
    draft.write(tmp_path / "tiny", weights="random")
    return tmp_path / "tiny"


@pytest.fixture
def one_thread():
    """As many threads as the other process has: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_bundle_alone_equals_the_model_of_this_process(draft, written, tmp_path):
    run_alone(
        CALL + "from safetensors.torch import save_file\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=torch.float64)\n"
        "assert model.config.model_type == 'draftc_tiny'\n"
        "save_file({**training(model), **decoding(model)}, sys.argv[2])\n",
        tmp_path, written, tmp_path / "result.safetensors",
    )  # fmt: skip
    model = draft.model(dtype=torch.float64).eval()
    model.load_state_dict({name: value.double() for name, value in load_file(written / "model.safetensors").items()})
    scope: dict = {}
    exec(CALL, scope)
    expected, found = (
        {**scope["training"](model), **scope["decoding"](model)},
        load_file(tmp_path / "result.safetensors"),
    )
    assert expected.keys() == found.keys()
    assert len(found) > len(list(model.parameters()))
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def test_generation_is_that_of_the_target_alone(written, tmp_path):
    printed = run_alone(
        "import torch\n"
        "from transformers import AutoModel, Qwen3Config, Qwen3ForCausalLM\n"
        "torch.manual_seed(0)\n"
        "target = Qwen3ForCausalLM(Qwen3Config(vocab_size=100, hidden_size=24, intermediate_size=32, head_dim=8,\n"
        "    num_hidden_layers=8, num_attention_heads=3, num_key_value_heads=1, eos_token_id=None, bos_token_id=None,\n"
        "    pad_token_id=0)).eval()\n"
        "draft = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "prompt = torch.randint(1, 90, (1, 7))\n"
        "options = dict(max_new_tokens=20, do_sample=False)\n"
        "plain = target.generate(prompt, **options)\n"
        "drafted = target.generate(prompt, assistant_model=draft, speculation_type='dflash', **options)\n"
        "print(torch.equal(plain, drafted), plain.shape[1])\n",
        tmp_path, written,
    )  # fmt: skip
    assert printed == "True 27"


def test_from_config_needs_no_weights(draft, tmp_path):
    draft.write(tmp_path / "tiny")
    printed = run_alone(
        "from transformers import AutoConfig, AutoModel\n"
        "config = AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "model = AutoModel.from_config(config, trust_remote_code=True)\n"
        "print(type(model).__name__, model.dtype, len(model.layers))\n",
        tmp_path, tmp_path / "tiny",
    )  # fmt: skip
    assert printed == "TinyDraftModel torch.float32 5"


def test_save_after_load_gives_the_same_bytes(written, tmp_path):
    run_alone(
        "from transformers import AutoModel\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "model.save_pretrained(sys.argv[2])\n"
        "AutoModel.from_pretrained(sys.argv[2], trust_remote_code=True).save_pretrained(sys.argv[3])\n",
        tmp_path, written, tmp_path / "again", tmp_path / "thrice",
    )  # fmt: skip
    for name in ("config.json", "configuration_tiny.py", "modeling_tiny.py", "model.safetensors"):
        expected = (written / name).read_bytes()
        assert (tmp_path / "again" / name).read_bytes() == expected, name
        assert (tmp_path / "thrice" / name).read_bytes() == expected, name


def test_save_of_an_in_process_model_is_a_full_bundle(draft, cached, tmp_path):
    model = draft.model()
    model.save_pretrained(tmp_path / "saved")
    for name in ("config.json", "configuration_tiny.py", "modeling_tiny.py"):
        assert (tmp_path / "saved" / name).read_text() == draft.files[name], name
    printed = run_alone(
        "from transformers import AutoModel\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "print(sum(each.double().abs().sum().item() for each in model.parameters()))\n",
        tmp_path, tmp_path / "saved",
    )  # fmt: skip
    assert float(printed) == sum(each.double().abs().sum().item() for each in model.parameters())


def test_a_saved_model_becomes_a_bundle_again_with_its_weights(draft, cached, tmp_path):
    model = draft.model()
    model.save_pretrained(tmp_path / "saved")
    draft.write(tmp_path / "saved")
    assert draft.stale(tmp_path / "saved") == ()
    kept = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


def test_a_bfloat16_load_keeps_fp32_parts_and_values(tmp_path):
    draft = compiled("recurrent", "context", dtype="bfloat16")
    state = {name: torch.randn(each.shape) for name, each in draft.model("meta").state_dict().items()}
    draft.write(tmp_path / "tiny", weights=state)
    printed = run_alone(
        "import json, torch\n"
        "from transformers import AutoModel\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "print(json.dumps({name: [str(each.dtype), each.double().sum().item()] for name, each in "
        "model.state_dict().items()}))\n",
        tmp_path, tmp_path / "tiny",
    )  # fmt: skip
    found = json.loads(printed)
    for name, value in state.items():
        is_kept = name.endswith(("A_log", "dt_bias"))
        dtype = torch.float32 if is_kept else torch.bfloat16
        assert found[name] == [str(dtype), value.to(dtype).double().sum().item()], name
    in_process = draft.model()
    assert {name: str(each.dtype) for name, each in in_process.state_dict().items()} == {
        name: dtype for name, (dtype, _) in found.items()
    }


def test_bundles_of_different_layouts_load_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    names = ("context", "latent", "recurrent", "scan")
    for name in names:
        compiled(*(("context", name) if name == "recurrent" else (name,)), name=f"draft-{name}").write(
            tmp_path / name, weights="random"
        )
    printed = run_alone(
        "from transformers import AutoModel\n"
        "models = [AutoModel.from_pretrained(path, trust_remote_code=True) for path in sys.argv[1:]]\n"
        "print(*(type(model).__name__ for model in models))\n",
        tmp_path, *(tmp_path / name for name in names),
    )  # fmt: skip
    assert printed.split() == [f"Draft{name.capitalize()}DraftModel" for name in names]


def test_a_backend_that_the_bundle_lacks_is_named(written, tmp_path):
    printed = run_alone(
        "from transformers import AutoModel\n"
        "try:\n"
        "    AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "except ValueError as error:\n"
        "    print(error)\n",
        tmp_path, written, DRAFTC_BACKEND="kda_unheard",
    )  # fmt: skip
    assert "kda_unheard" in printed
    assert "kda_block" in printed


def test_a_second_compile_finds_the_installed_module(draft, cached):
    first = type(draft.model("meta"))
    assert type(compiled().model("meta")) is first
    assert first.__module__.startswith("draftc.bundles.tiny_")
    assert [entry.name for entry in cached.iterdir()] == [first.__module__.split(".")[2]]


def test_different_layouts_get_modules_of_their_own(cached):
    one, other = compiled("context"), compiled("context", rms_norm_eps=1e-5)
    assert type(one.model("meta")) is not type(other.model("meta"))


def test_a_damaged_cache_is_repaired(draft, cached):
    name = type(draft.model("meta")).__module__.split(".")[2]
    file = cached / name / "modeling_tiny.py"
    file.write_text("raise RuntimeError('damaged')\n")
    bundles.sys.modules.pop(f"draftc.bundles.{name}.modeling_tiny")
    draft.model("meta")
    assert file.read_text() == draft.files["modeling_tiny.py"]


def test_models_pickle_into_another_process(draft, cached, tmp_path):
    import os
    import subprocess
    import sys

    model = draft.model()
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    script = (
        "import pickle, sys\n"
        "model = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(type(model).__name__, sum(each.double().sum().item() for each in model.parameters()))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "model.pickle")]
    environment = os.environ | {"DRAFTC_CACHE": str(cached.parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    total = sum(each.double().sum().item() for each in model.parameters())
    assert done.stdout.split() == ["TinyDraftModel", str(total)]


def test_random_weights_are_the_same_every_time(draft, tmp_path):
    draft.write(tmp_path / "one", weights="random")
    torch.rand(3)
    draft.write(tmp_path / "two", weights="random")
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()


def test_weights_come_from_a_file_or_a_state_dict(draft, written, tmp_path):
    state = {name: value * 2 for name, value in load_file(written / "model.safetensors").items()}
    draft.write(tmp_path / "dict", weights=state)
    save_file({name: value.double() for name, value in state.items()}, tmp_path / "given.safetensors")
    draft.write(tmp_path / "file", weights=tmp_path / "given.safetensors")
    draft.write(tmp_path / "folder", weights=tmp_path / "dict")
    for name in ("dict", "file", "folder"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], value) and found[key].dtype == value.dtype for key, value in state.items())


def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(draft, written, tmp_path):
    state = load_file(written / "model.safetensors")
    del state["norm.weight"]
    state["fc.weight"] = state["fc.weight"][:, :3].contiguous()
    state["lm_head.weight"] = torch.zeros(2, 2)
    with pytest.raises(WeightsError) as refused:
        draft.write(tmp_path / "new", weights=state)
    notes = " ".join(refused.value.notes)
    assert "norm.weight [24] is missing" in notes
    assert "fc.weight is [24, 3] and should be [24, 48]" in notes
    assert "lm_head.weight is no tensor of the draft" in notes
    assert not (tmp_path / "new").exists()
    (tmp_path / "broken.safetensors").write_bytes(b"not a header")
    for path in (tmp_path / "broken.safetensors", tmp_path / "nowhere"):
        with pytest.raises(WeightsError):
            draft.write(tmp_path / "new", weights=path)
    assert not (tmp_path / "new").exists()


def test_kept_weights_of_another_architecture_are_refused(written):
    before = (written / "config.json").read_text()
    with pytest.raises(WeightsError, match="which are kept"):
        compiled("context").write(written)
    assert (written / "config.json").read_text() == before
    compiled(rms_norm_eps=1e-5).write(written)
    assert (written / "config.json").read_text() != before
    assert (written / "model.safetensors").exists()


def test_random_weights_need_no_maps_of_a_vocabulary(tmp_path):
    with pytest.raises(WeightsError, match="unfilled"):
        compiled("context", draft_vocab_size=50).write(tmp_path / "tiny", weights="random")
    assert not (tmp_path / "tiny").exists()


def test_a_foreign_folder_is_refused_before_weights_are_drawn(draft, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BundleError):
        draft.write(tmp_path, weights="random")


def test_meta_takes_no_memory(draft):
    model = draft.model("meta")
    assert all(each.is_meta for each in (*model.parameters(), *model.buffers()))
    assert isinstance(model, nn.Module)
    assert len(model.layers) == len(STACK)
