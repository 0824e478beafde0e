"""`draftc compile`: what it writes, what it says, and how it ends."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from draftc.compiler import api
from draftc.spec.check import check_text
from draftc.spec.sources import list_layouts, open_source

TINY = """draftc: 1
name: tiny
family: dflash
target: {hidden_size: 32, num_hidden_layers: 6, vocab_size: 100, intermediate_size: 48, rms_norm_eps: 1.0e-6,
         max_position_embeddings: 256, dtype: float32}
target_layer_ids: [1, 4]
block_size: 4
mask_token_id: 99
hidden_act: silu
rope: {style: half, rope_theta: 10000}
attentions:
  context: {kind: gqa, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8}
  local: {extends: context, sliding_window: 9, is_causal: true}
layers: [local, context]
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return path


def test_a_bundle_and_a_table_of_what_was_built_and_why(terminal, tiny: Path) -> None:
    ran = terminal("compile", tiny, "-o", "out")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("tiny: dflash, 2 layers, ")
    assert ran.out.rstrip().endswith("wrote out/tiny")
    assert "9 positions, causal in the block" in ran.words
    assert sorted(path.name for path in Path("out/tiny").iterdir()) == [
        "README.md",
        "config.json",
        "configuration_tiny.py",
        "layout.resolved.json",
        "layout.yaml",
        "manifest.json",
        "modeling_tiny.py",
    ]
    assert Path("out/tiny/layout.yaml").read_text(encoding="utf-8") == TINY


def test_quiet_says_where_it_wrote(terminal, tiny: Path) -> None:
    assert terminal("compile", tiny, "-o", "out", "-q").out == "wrote out/tiny\n"


def test_check_is_fresh_then_stale_then_fresh(terminal, tiny: Path) -> None:
    missing = terminal("compile", tiny, "-o", "out", "--check")
    assert (missing.code, missing.out) == (1, "out/tiny is stale: tiny is no bundle\n")
    assert not Path("out").exists()
    terminal("compile", tiny, "-o", "out", "-q")
    fresh = terminal("compile", tiny, "-o", "out", "--check")
    assert (fresh.code, fresh.out) == (0, "out/tiny is fresh\n")
    tiny.write_text(TINY.replace("sliding_window: 9", "sliding_window: 10"), encoding="utf-8")
    stale = terminal("compile", tiny, "-o", "out", "--check")
    assert stale.code == 1
    assert "modeling_tiny.py differs from line" in stale.out
    assert "layout.yaml differs from line 13" in stale.out
    assert terminal("compile", tiny, "-o", "out", "--check", "--opt", "2").code == 1


def test_all_shipped_layouts(terminal) -> None:
    ran = terminal("compile", "--all", "-o", "out", "-q")
    assert ran.code == 0
    assert ran.out.splitlines() == [f"wrote out/{name}" for name in list_layouts()]
    again = terminal("compile", "--all", "-o", "out", "--check")
    assert again.out.splitlines() == [f"out/{name} is fresh" for name in list_layouts()]


def test_random_weights_are_those_of_the_api(terminal, tiny: Path) -> None:
    assert terminal("compile", tiny, "-o", "out", "-q", "--weights", "random").code == 0
    source = open_source(str(tiny))
    report = check_text(source.data, source.file, source.folder)
    api.compile(report.require(), text=report.text).write("api", weights="random")
    found, expected = load_file("out/tiny/model.safetensors"), load_file("api/model.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(value) for name, value in expected.items())


def test_weights_from_a_file_that_fits_and_one_that_does_not(terminal, tiny: Path) -> None:
    terminal("compile", tiny, "-o", "out", "-q", "--weights", "random")
    state = load_file("out/tiny/model.safetensors")
    save_file(state, "w.safetensors", metadata={"format": "pt"})
    assert terminal("compile", tiny, "-o", "second", "-q", "--weights", "w.safetensors").code == 0
    assert load_file("second/tiny/model.safetensors").keys() == state.keys()
    save_file({**state, "fc.weight": state["fc.weight"][:, 1:].contiguous()}, "w.safetensors")
    ran = terminal("compile", tiny, "-o", "third", "-q", "--weights", "w.safetensors")
    assert ran.code == 1
    assert "DC503 weights-do-not-fit" in ran.err
    assert "fc.weight is [32, 63] and should be [32, 64]" in ran.err
    assert not Path("third/tiny").exists()


def test_options_decide_backends(terminal, tiny: Path) -> None:
    tiny.write_text(TINY.replace("dtype: float32", "dtype: bfloat16"), encoding="utf-8")
    plain = terminal("compile", tiny, "-o", "out")
    with_flash = terminal("compile", tiny, "-o", "out", "--package", "flash-attn", "--capability", "9.0")
    assert "flash " not in plain.words
    assert "sdpa flash " in with_flash.words  # flex asks for heads of 16 channels
    old = terminal("compile", tiny, "-o", "out", "--package", "flash-attn", "--capability", "7.5")
    assert "flash " not in old.words
    forced = terminal("compile", tiny, "-o", "out", "--backend", "eager")
    assert "eager eager " in forced.words
    written = json.loads(Path("out/tiny/manifest.json").read_text(encoding="utf-8"))
    assert "eager" in json.dumps(written["backends"])
    assert "flex" not in json.dumps(written["backends"])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--backend", "flash"), 1, "DC404 backend-refuses]: backend flash refuses layer 0 (local)"),
        (("--backend", "kda_block"), 1, "kda_block runs kda, and no layer of tiny does"),
        (("--backend", "sdap"), 2, "DC405 unknown-option]: there is no backend sdap = help: did you mean `sdpa`?"),
        (("--package", "flash"), 2, "optional packages are flash-attn, fla-core"),
        (("--disable", "annotate"), 2, "pass cost requires annotate, which is disabled"),
        (("--disable", "fusee"), 2, "did you mean `fuse`?"),
        (("--capability", "nine"), 2, "--capability nine is not a compute capability = help: write it like 9.0"),
        (("--capability", "9.x"), 2, "is not a compute capability"),
        (("--opt", "3"), 2, "3 is not in the range 0<=x<=2"),
        (("--weights", "nowhere"), 1, "nowhere does not exist = help: pass a .safetensors file"),
        (("--weights", "tiny.yaml"), 1, "tiny.yaml cannot be read"),
        (("--weights", "."), 1, "holds no model*.safetensors"),
    ],
)
def test_refusals(terminal, tiny: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = terminal("compile", tiny, "-o", "out", *arguments)
    assert ran.code == code
    assert says in ran.words
    assert "Traceback" not in ran.err
    assert not Path("out/tiny").exists()


def test_a_reduced_vocabulary_draws_no_weights(terminal) -> None:
    ran = terminal("compile", "qwen3-8b-dspark-draftvocab32k", "-o", "out", "--weights", "random")
    assert ran.code == 1
    assert "maps of draft_vocab_size 32000" in ran.err


def test_places_that_cannot_be_written(terminal, tiny: Path) -> None:
    Path("file").touch()
    ran = terminal("compile", tiny, "-o", "file")
    assert ran.code == 2
    assert "file" in ran.err
    Path("out/tiny").mkdir(parents=True)
    Path("out/tiny/notes.txt").touch()
    ran = terminal("compile", tiny, "-o", "out")
    assert ran.code == 1
    assert "DC501 not-a-bundle" in ran.err
    assert [path.name for path in Path("out/tiny").iterdir()] == ["notes.txt"]


def test_a_layout_with_errors_is_compiled_by_nobody(terminal, tiny: Path) -> None:
    tiny.write_text(TINY.replace("num_key_value_heads: 2", "num_key_value_heads: 3"), encoding="utf-8")
    ran = terminal("compile", tiny, "-o", "out")
    assert ran.code == 1
    assert "DC203" in ran.err
    assert ran.out == ""


def test_warnings_are_said_and_do_not_stop(terminal, tiny: Path) -> None:
    tiny.write_text(TINY.replace("sliding_window: 9", "sliding_window: 2048"), encoding="utf-8")
    ran = terminal("compile", tiny, "-o", "out", "-q")
    assert ran.code == 0
    assert "warning[DC" in ran.err


def test_without_the_pass_cost_it_still_says_what_was_built(terminal, tiny: Path) -> None:
    ran = terminal("compile", tiny, "-o", "out", "--disable", "cost")
    assert ran.code == 0
    assert "wrote out/tiny" in ran.out
