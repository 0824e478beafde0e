"""Verify passes what draftc wrote and sees what somebody changed."""

from pathlib import Path

import pytest

from draftc.compiler import api, verify
from draftc.compiler.write import BundleError
from draftc.spec.check import check_text

TEXT = """draftc: 1
name: tiny
family: dflash
target: {hidden_size: 32, num_hidden_layers: 6, vocab_size: 64, intermediate_size: 48, max_position_embeddings: 512,
  rms_norm_eps: 1e-6, dtype: float32}
target_layer_ids: [0, 2]
block_size: 4
mask_token_id: 63
rope: {style: half, rope_theta: 10000, scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 128}}
attentions:
  context: {kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, attention_bias: true}
  near: {extends: context, sliding_window: 6, is_causal: true}
  recurrent:
    {kind: kda, num_heads: 2, head_dim: 8, short_conv_kernel_size: 3, gate_lower_bound: -5, context_state: scan}
layers: [context, recurrent, near, context]
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = check_text(TEXT, "tiny.yaml", None).require()
    folder = tmp_path_factory.mktemp("verify") / "tiny"
    api.compile(layout, text=TEXT).write(folder)
    return folder


def changed(bundle: Path, old: str, new: str) -> Path:
    model = bundle / "modeling_tiny.py"
    text = model.read_text(encoding="utf-8")
    assert old in text
    model.write_text(text.replace(old, new, 1), encoding="utf-8")
    return bundle


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for file in bundle.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_bundle_passes_on_every_backend(bundle: Path) -> None:
    verdicts = list(verify.verify(bundle, (None, "flex"), "float64"))
    assert [verdict.reasons for verdict in verdicts] == [(), ()]
    forward = {difference.what for difference in verdicts[1].differences}
    layers = {"training output", "decoding output 1", "decoding output 2"}
    assert forward == layers | {"logits of heads", "scores of heads", "scores of a drafted block", "drafted tokens"}
    assert "gradient of layers.0.self_attn.q_proj.weight" in {found.what for found in verdicts[0].differences}


def test_one_layer_of_each_class_or_all(bundle: Path) -> None:
    assert verify.first_of_each(verify.layout_of(bundle)) == [0, 1, 2]
    (verdict,) = verify.verify(bundle, whole=True, dtype="float64")
    assert verdict.reasons == ()
    assert "gradient of layers.3.self_attn.q_proj.weight" in {found.what for found in verdict.differences}


def test_a_changed_scale_is_seen(copy: Path) -> None:
    (verdict,) = verify.verify(changed(copy, "scale=16**-0.5", "scale=16**-0.5 * (1 + 1e-6)"), dtype="float64")
    assert any("differs by" in reason for reason in verdict.reasons)


def test_a_changed_window_is_seen(copy: Path) -> None:
    (verdict,) = verify.verify(changed(copy, "window = 6", "window = 5"), dtype="float64")
    assert verdict.reasons


def test_code_that_fails_is_named(copy: Path) -> None:
    with pytest.raises(verify.VerifyError, match="NameError"):
        list(verify.verify(changed(copy, "torch.cat([context, block], dim=1)", "torch.cat([context, blocks], dim=1)")))


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no bundle"):
        list(verify.verify(tmp_path))
