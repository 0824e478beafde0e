"""Rope tables equal transformers' modules for every scaling type; rotations equal the published vectors."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from draftc.runtime import rope as rope_module
from draftc.runtime.rope import Turn, call_frequencies, rope_table, rotate_half, rotate_interleaved
from draftc.runtime.rope_scaling import RopeScalingError

HEAD_DIM = 16
LONGEST = 256
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 32},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 0.5,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 1.25,
    },
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0 + 0.125 * i for i in range(HEAD_DIM // 2)],
        "long_factor": [2.0 + i for i in range(HEAD_DIM // 2)],
    },
    "llama3": {
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.5},
}
TYPED = {name: {"rope_type": name, **keys} for name, keys in SCALINGS.items()}


def frozen(scaling: dict) -> tuple:
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in scaling.items()))


def turn_of(name: str | None, theta: float = 10000.0) -> Turn:
    return Turn("half", HEAD_DIM, theta, None if name is None else frozen(TYPED[name]), LONGEST)


def theirs(family: str, name: str | None, theta: float = 10000.0) -> torch.nn.Module:
    config_class, module_class = {
        "llama": (LlamaConfig, LlamaRotaryEmbedding),
        "qwen3": (Qwen3Config, Qwen3RotaryEmbedding),
    }[family]
    parameters = {"rope_type": "default"} if name is None else dict(TYPED[name])
    config = config_class(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        max_position_embeddings=LONGEST,
        rope_parameters={**parameters, "rope_theta": theta},
    )
    return module_class(config)


def test_every_type_of_transformers_is_covered():
    assert {keys["rope_type"] for keys in TYPED.values()} == set(ROPE_INIT_FUNCTIONS)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("name", [None, *TYPED])
@pytest.mark.parametrize("longest", [40, 200, 700, 5000], ids="to{}".format)
def test_table_equals_the_module_of_transformers(family: str, name: str | None, longest: int):
    positions = torch.tensor([[0, 1, 17, longest - 1], [3, 5, longest - 2, longest]])
    cos, sin = theirs(family, name)(torch.zeros(1), positions)
    ours = rope_table(turn_of(name), positions)
    assert ours[0].dtype == torch.float32
    torch.testing.assert_close(ours, (cos, sin), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_growing_calls_equal_a_module_that_remembers(name: str):
    module = theirs("qwen3", name)
    for longest in (10, 200, 255, 256, 300, 900, 901):
        positions = torch.arange(longest - 8, longest)[None]
        torch.testing.assert_close(
            rope_table(turn_of(name), positions), module(torch.zeros(1), positions), rtol=0, atol=0
        )


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_call_is_judged_by_its_own_longest_position(name: str):
    short = torch.arange(8)[None]
    alone = rope_table(turn_of(name), short)
    rope_table(turn_of(name), short + 900)
    torch.testing.assert_close(rope_table(turn_of(name), short), alone, rtol=0, atol=0)
    beside = rope_table(turn_of(name), torch.cat([short, short + 900], dim=1))
    assert (beside[0][:, :8] - alone[0]).abs().max() > 1e-3


@pytest.mark.parametrize("name", [n for n in [None, *TYPED] if n != "proportional"])
def test_partial_rotation_uses_the_frequencies_of_the_turned_width(name: str | None):
    keys = {} if name is None else {**TYPED[name]}
    width = HEAD_DIM // 2
    for key in ("short_factor", "long_factor"):
        if key in keys:
            keys[key] = keys[key][: width // 2]
    turn = Turn("half", width, 10000.0, frozen(keys) if keys else None, LONGEST)
    positions = torch.tensor([[0, 7, 600]])
    if name is None:
        expected = 1 / 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    else:
        config = LlamaConfig(
            hidden_size=HEAD_DIM,
            num_attention_heads=1,
            head_dim=HEAD_DIM,
            max_position_embeddings=LONGEST,
            rope_parameters={**keys, "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        )
        expected, _ = ROPE_INIT_FUNCTIONS[keys["rope_type"]](config, "cpu", seq_len=601)
    torch.testing.assert_close(call_frequencies(turn, positions)[0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("original", "mscale", "frequencies", "factor"),
    [
        (64, (1.0, 1.0), [1, 0.0625, 0.0025, 0.00025], 1.0),
        (64, None, [1, 0.0625, 0.0025, 0.00025], 1.138629436111989),
        (32, (1.0, 0.5), [1, 0.025, 0.0025, 0.00025], 1.0648216253695715),
    ],
)
def test_yarn_vectors_of_a_latent_attention(original: int, mscale: tuple | None, frequencies: list, factor: float):
    keys = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
    if mscale:
        keys |= {"mscale": mscale[0], "mscale_all_dim": mscale[1]}
    turn = Turn("interleaved", 8, 10000.0, frozen(keys), 256)
    ours, scale = call_frequencies(turn, torch.zeros(1, 1, dtype=torch.int64))
    torch.testing.assert_close(ours, torch.tensor(frequencies), rtol=1e-6, atol=0)
    assert scale == pytest.approx(factor, rel=1e-15)


def rows(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(1, 1, 1, -1)


@pytest.mark.parametrize(
    ("rotate", "expected"), [(rotate_half, [-1, -2, 3, 4]), (rotate_interleaved, [-0.4, 2.2, -1.4, 4.8])]
)
def test_published_vectors(rotate, expected: list[float]):
    x = rows([1, 2, 3, 4])
    rope = rows([0.8, 0.6, 0.8, 0.6])[0], rows([0.6, 0.8, 0.6, 0.8])[0]
    for turned in rotate(x, x, rope):
        torch.testing.assert_close(turned, rows(expected), rtol=0, atol=1e-15)


def sample(dtype: torch.dtype = torch.float64, width: int = HEAD_DIM) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    q = torch.randn(2, 4, 3, width, dtype=dtype)
    k = torch.randn(2, 2, 8, width, dtype=dtype)
    positions = torch.stack([torch.arange(8) + 90, torch.arange(8) * 3])
    return q, k, rope_table(turn_of(None), positions)


def test_half_equals_transformers_on_the_trailing_rows():
    q, k, (cos, sin) = sample()
    expected_q, _ = apply_rotary_pos_emb(q, q, cos[:, -3:], sin[:, -3:])
    _, expected_k = apply_rotary_pos_emb(k, k, cos, sin)
    torch.testing.assert_close(rotate_half(q, k, (cos, sin)), (expected_q, expected_k), rtol=0, atol=0)


def test_interleaved_equals_transformers_after_moving_even_channels_first():
    q, k, (cos, sin) = sample()
    expected_q, _ = apply_rotary_pos_emb_interleave(q, q, cos[:, -3:], sin[:, -3:])
    _, expected_k = apply_rotary_pos_emb_interleave(k, k, cos, sin)
    ours = [torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1) for x in rotate_interleaved(q, k, (cos, sin))]
    torch.testing.assert_close(ours, [expected_q, expected_k], rtol=0, atol=1e-15)


def test_permuted_weights_turn_one_style_into_the_other():
    q, k, rope = sample()
    order = torch.cat([torch.arange(0, HEAD_DIM, 2), torch.arange(1, HEAD_DIM, 2)])
    plain_q, plain_k = rotate_interleaved(q, k, rope)
    moved_q, moved_k = rotate_half(q[..., order], k[..., order], rope)
    scores = plain_q @ plain_k.repeat_interleave(2, 1).mT
    torch.testing.assert_close(moved_q @ moved_k.repeat_interleave(2, 1).mT, scores, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rotate", [rotate_half, rotate_interleaved])
def test_channels_beyond_the_table_pass(rotate):
    q, k, rope = sample(width=HEAD_DIM + 6)
    turned_q, turned_k = rotate(q, k, rope)
    assert torch.equal(turned_q[..., HEAD_DIM:], q[..., HEAD_DIM:])
    assert torch.equal(turned_k[..., HEAD_DIM:], k[..., HEAD_DIM:])
    narrow_q, narrow_k = rotate(q[..., :HEAD_DIM], k[..., :HEAD_DIM], rope)
    assert torch.equal(turned_q[..., :HEAD_DIM], narrow_q)
    assert torch.equal(turned_k[..., :HEAD_DIM], narrow_k)


def test_proportional_leaves_the_pairs_beyond_its_share():
    q, k, _ = sample()
    positions = torch.arange(8)[None].expand(2, 8)
    turned_q, _ = rotate_half(q, k, rope_table(turn_of("proportional"), positions))
    still = [4, 5, 6, 7, 12, 13, 14, 15]
    assert torch.equal(turned_q[..., still], q[..., still])
    assert (turned_q[..., :4] - q[..., :4]).abs().max() > 0.1


@pytest.mark.parametrize("rotate", [rotate_half, rotate_interleaved])
def test_narrow_inputs_are_widened_and_cast_back_once(rotate):
    q, k, rope = sample(torch.bfloat16)
    wide_q, wide_k = rotate(q.float(), k.float(), rope)
    assert torch.equal(rotate(q, k, rope)[0], wide_q.bfloat16())
    assert torch.equal(rotate(q, k, rope)[1], wide_k.bfloat16())
    rounded = rope[0].bfloat16(), rope[1].bfloat16()
    assert rotate(q, k, rounded)[0].dtype == torch.bfloat16
    assert torch.equal(rotate(q, k, rounded)[0], rotate(q.float(), k.float(), rounded)[0].bfloat16())


@pytest.mark.parametrize("name", [None, *TYPED])
def test_compiles_without_a_break_and_gives_the_same_bits(name: str | None):
    torch._dynamo.reset()
    turn = turn_of(name)

    def whole(q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_half(q, k, rope_table(turn, positions))

    q, k, _ = sample()
    positions = torch.arange(8)[None].expand(2, 8) + 300
    compiled = torch.compile(whole, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, positions)[0], whole(q, k, positions)[0])
    assert torch.equal(compiled(q, k, positions - 300)[1], whole(q, k, positions - 300)[1])


def test_memo_serves_training_after_inference_mode_and_keeps_no_fake_tensor():
    rope_module.frequency_memo.clear()
    positions = torch.arange(8)[None].expand(2, 8)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        rope_table(turn_of("yarn"), positions)
    assert not rope_module.frequency_memo
    with torch.inference_mode():
        first = rope_table(turn_of("yarn"), positions)
    assert len(rope_module.frequency_memo) == 1
    q, k, _ = sample()
    q.requires_grad_()
    rope = rope_table(turn_of("yarn"), positions)
    assert torch.equal(rope[0], first[0])
    rotate_half(q, k, rope)[0].sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope_type": "yarrn", "factor": 2.0}, "'yarrn' is none of dynamic, linear"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 8}, "yarn needs the key factor"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "belongs to proportional"),
    ],
)
def test_impossible_scalings_are_named(keys: dict, words: str):
    with pytest.raises(RopeScalingError, match=words):
        rope_table(Turn("half", 8, 10000.0, frozen(keys), 64), torch.arange(4)[None])


def test_import_leaves_modeling_utils_alone():
    code = "import sys, draftc.runtime.rope; print('transformers.modeling_utils' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert importlib.util.find_spec("transformers.modeling_utils") is not None
