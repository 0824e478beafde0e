"""`draftc inspect`: every shipped layout, every form."""

import json

import pytest

from draftc.spec.sources import list_layouts


@pytest.mark.parametrize("name", list_layouts())
def test_every_shipped_layout_has_its_tables(terminal, name: str) -> None:
    ran = terminal("inspect", name)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"{name}: ")
    for word in ("FLOPs a step", "cache bytes a token", "decoding on cuda", "draft at 4096 context rows"):
        assert word in ran.out


def test_costs_follow_the_context(terminal) -> None:
    ran = terminal("inspect", "qwen3-4b-dflash", "--context", "100")
    assert "draft at 100 context rows" in ran.out
    assert "2.05 MB" in ran.words  # five layers of 2 x 8 x 128 numbers of 2 bytes, for 100 rows


def test_json_is_one_document(terminal) -> None:
    found = json.loads(terminal("inspect", "qwen3-4b-kda-gqa", "--json").out)
    assert found["name"] == "qwen3-4b-kda-gqa"
    assert [layer["kind"] for layer in found["layers"]] == ["kda", "gqa", "kda", "gqa", "gqa"]


def test_graphs_and_passes(terminal) -> None:
    graph = terminal("inspect", "qwen3-4b-dflash", "--graph").out
    assert "  q_proj = Linear(block)  # q: [B, Q, 4096] bfloat16" in graph
    ran = terminal("inspect", "qwen3-4b-dflash", "--passes", "--opt", "2").out
    for word in ("annotate", "4 fuse: - 4 Linear", "4 fuse in GatedMLP:", "-up_proj = Linear(hidden)"):
        assert word in ran
    both = terminal("inspect", "qwen3-4b-dflash", "--passes", "--graph").out
    assert "annotate" in both
    assert "q_proj = Linear(block)" in both


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("hidden_size", "/hidden_size = 2560, from preset qwen3-4b: hidden_size"),
        ("/block_size", "/block_size = 16, from qwen3-4b-kda-gqa.yaml:"),
        ("sliding_window", "/attentions/local/sliding_window = 2048, from qwen3-4b-kda-gqa.yaml:13:"),
        ("/layers/3", '/layers/3 = "local", from qwen3-4b-kda-gqa.yaml:16:'),
        ("local/rope", '/attentions/local/rope = {"style": "half", "rope_theta": 1000000.0,'),
        ("rms_norm_eps", "/rms_norm_eps = 1e-06, from preset qwen3-4b"),
    ],
)
def test_why_says_the_value_and_where_it_comes_from(terminal, key: str, line: str) -> None:
    ran = terminal("inspect", "qwen3-4b-kda-gqa", "--why", key)
    assert ran.code == 0
    assert any(said.startswith(line) for said in ran.out.splitlines()), ran.out


def test_why_knows_every_value(terminal) -> None:
    for name in list_layouts():
        ran = terminal("inspect", name, "--why", "/attentions")
        assert ran.code == 0
        assert all(", from " in line for line in ran.out.splitlines())


def test_a_negative_context_is_refused(terminal) -> None:
    assert terminal("inspect", "qwen3-4b-dflash", "--context", "-1").code == 2


def test_no_costs_without_their_pass(terminal) -> None:
    ran = terminal("inspect", "qwen3-4b-dflash", "--disable", "cost")
    assert ran.code == 0
    assert "FLOPs" not in ran.out
    assert "100,930,816" in ran.out
