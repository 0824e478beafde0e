"""The files of a bundle: complete, stable to the byte, and closed against whatever a layout says."""

import ast
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from draftc.compiler import api
from draftc.compiler.dispatch import held_backends
from draftc.compiler.emit import bundle_files
from draftc.compiler.errors import InternalError
from draftc.compiler.naming import names_of
from draftc.compiler.parameters import parameter_count, tensor_shapes
from draftc.spec.check import check_text
from tests.compiler.bundles import STACK, compiled
from tests.compiler.support import ATTENTIONS, layout

ROOT = Path(__file__).parents[2]
RUFF = [sys.executable, "-m", "ruff"]
RULES = "E,F,I,B,UP,W,C4,PIE,RET,SIM,D"
IGNORED = "D102,D105,D107,D203,D213,D401"


@pytest.fixture(scope="module")
def draft():
    return compiled()


def test_a_bundle_has_these_files(draft):
    assert sorted(draft.files) == [
        "README.md",
        "config.json",
        "configuration_tiny.py",
        "layout.resolved.json",
        "layout.yaml",
        "manifest.json",
        "modeling_tiny.py",
    ]


@pytest.mark.parametrize("opt", [0, 1, 2])
def test_python_files_are_fixed_points_of_ruff(opt, tmp_path):
    compiled(opt=opt).write(tmp_path / "tiny")
    check = [
        *RUFF,
        "check",
        "--isolated",
        "--line-length",
        "120",
        "--select",
        RULES,
        "--ignore",
        IGNORED,
        str(tmp_path),
    ]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    form = [*RUFF, "format", "--isolated", "--line-length", "120", "--diff", str(tmp_path)]
    done = subprocess.run(form, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_bytes_depend_on_the_layout_alone(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.compiler.bundles import compiled\n"
        "compiled().write('made')\n"
    )
    folders = []
    for seed in ("0", "1", "424242"):
        folder = tmp_path / f"working folder {seed}"
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1", "TZ": f"UTC-{seed[:1]}"}
        subprocess.run([sys.executable, "-c", script, str(ROOT)], cwd=folder, env=environment, check=True)
        folders.append({file.name: file.read_bytes() for file in (folder / "made").iterdir()})
    assert folders[0] == folders[1] == folders[2]
    text = b"".join(folders[0].values()).decode()
    assert str(tmp_path) not in text
    assert str(ROOT) not in text


def test_manifest_hashes_the_other_files_and_gives_reasons(draft):
    manifest = json.loads(draft.files["manifest.json"])
    others = {name: text for name, text in draft.files.items() if name != "manifest.json"}
    assert manifest["files"] == {name: hashlib.sha256(text.encode()).hexdigest() for name, text in others.items()}
    flex = next(entry for entry in manifest["backends"]["layers"] if "flex" in entry["refused"])
    assert flex["refused"]["flex"]
    assert {entry["layer"] for entry in manifest["backends"]["layers"]} == set(range(len(STACK)))
    assert manifest["backends"]["held"] == list(held_backends(draft.program))


def test_configuration_says_what_transformers_reads(draft):
    config = json.loads(draft.files["config.json"])
    assert config["layer_types"] == [
        "full_attention",
        "sliding_attention",
        "full_attention",
        "linear_attention",
        "linear_attention",
    ]
    assert config["sliding_window"] == 9
    assert (config["block_size"], config["mask_token_id"], config["target_layer_ids"]) == (4, 99, [1, 3])
    assert config["dflash_config"] == {"block_size": 4, "mask_token_id": 99, "target_layer_ids": [1, 3]}
    assert config["auto_map"] == {
        "AutoConfig": "configuration_tiny.TinyDraftConfig",
        "AutoModel": "modeling_tiny.TinyDraftModel",
    }
    assert config["tie_word_embeddings"] is False
    assert config["draftc"]["layout"] == json.loads(draft.files["layout.resolved.json"])


def test_layout_yaml_is_what_was_written_and_the_resolved_form_compiles_to_the_same_model():
    text = (ROOT / "spec" / "layouts" / "smollm2-135m-dflash.yaml").read_text(encoding="utf-8")
    written = check_text(text, "a.yaml", None).require()
    first = api.compile(written, text=text)
    assert first.files["layout.yaml"] == text
    again = api.compile(check_text(first.files["layout.resolved.json"], "b.json", None).require())
    for name in ("modeling_smollm2_135m_dflash.py", "configuration_smollm2_135m_dflash.py", "config.json"):
        assert first.files[name] == again.files[name]


HOSTILE = 'x"""\nimport os\nos.system("true")\n"""{{ 7 * 7 }}{% raw %}'


def test_a_description_reaches_no_python_file():
    files = compiled("context", description=HOSTILE).files
    reached = sorted(name for name, text in files.items() if "os.system" in text)
    assert reached == ["README.md", "config.json", "layout.resolved.json", "layout.yaml"]
    assert "{{ 7 * 7 }}" in files["README.md"]


def test_a_target_path_that_is_no_repository_reaches_no_code_block():
    base = layout("context")
    target = replace(base.target, name_or_path='a", trust_remote_code=True) or ("')
    text = compiled("context", target=target).files["README.md"]
    assert 'from_pretrained("PATH/OF/THE/TARGET"' in text
    assert "base_model" not in text


@pytest.mark.parametrize("name", ["a b", "a;import os", "é", "", "a/../b", "1a"])
def test_a_name_that_no_layout_has_is_refused(name):
    with pytest.raises(InternalError):
        names_of(name)


def test_names_are_distinct_identifiers():
    names = ["qwen3-4b.v2", "qwen34b.v2", "a1-2", "a12", "a1-b2", "kimi-k2.7-code"]
    found = [names_of(name) for name in names]
    assert len({entry.model_class for entry in found}) == len(names)
    for entry in found:
        assert all(word.isidentifier() for word in (entry.model_class, entry.config_class, entry.modeling))


def test_a_bundle_holds_the_chosen_backends_and_those_that_always_work(draft):
    text = draft.files["modeling_tiny.py"]
    defined = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    held = set(held_backends(draft.program))
    assert {"eager", "sdpa", "kda_recurrent", "kda_block"} <= held
    assert ("attend_flash" in defined) == ("flash" in held)
    assert ("kda_fla" in defined) == ("kda_fla" in held)
    assert {"attend_sdpa", "attend_eager", "kda_block", "kda_recurrent"} <= defined
    dense = compiled("context").files["modeling_tiny.py"]
    assert "def kda" not in dense
    assert "def rotate_interleaved" not in dense
    assert "none of this draft's" in dense


def test_no_file_imports_ours(draft):
    for name in ("modeling_tiny.py", "configuration_tiny.py"):
        for node in ast.walk(ast.parse(draft.files[name])):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("draftc"), name
            if isinstance(node, ast.Import):
                assert not any(entry.name.startswith("draftc") for entry in node.names), name


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_compiles_to_a_file_that_parses(name):
    files = compiled(name).files
    compile_text = files["modeling_tiny.py"]
    ast.parse(compile_text)
    assert f"class {compiled(name).program.stack[0]}(" in compile_text


@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_size": 16}, {"draft_vocab_size": 50}, {"hidden_size": 16, "draft_vocab_size": 50}],
)
def test_tensor_names_and_shapes_are_the_models(changes):
    draft = compiled(**changes)
    state = draft.model("meta").state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == tensor_shapes(draft.program)
    assert parameter_count(draft.program) == sum(each.numel() for each in draft.model("meta").parameters())


def test_stale_sees_every_change(draft, tmp_path):
    folder = tmp_path / "tiny"
    assert draft.stale(folder) == ("tiny is no bundle",)
    draft.write(folder)
    assert draft.stale(folder) == ()
    assert compiled().stale(folder) == ()
    assert any("modeling_tiny.py" in reason for reason in compiled(rms_norm_eps=1e-5).stale(folder))
    with (folder / "config.json").open("a") as file:
        file.write(" ")
    assert any(reason.startswith("config.json differs") for reason in draft.stale(folder))


def test_bundle_files_do_not_change_the_program(draft):
    assert bundle_files(draft.program) == draft.files


def test_layers_stand_between_their_operations_and_the_machinery_of_the_model(draft):
    names = [getattr(node, "name", "") for node in ast.parse(draft.files["modeling_tiny.py"]).body]
    places = [names.index(name) for name in ("attend", "ContextLayer", "Visibility", "DraftModel", "TinyDraftModel")]
    assert places == sorted(places)


def test_compile_imports_no_models_and_a_second_one_is_quick():
    script = (
        "import sys, time\n"
        "import draftc\n"
        "draftc.compile('smollm2-135m-dflash')\n"
        "assert 'transformers.modeling_utils' not in sys.modules\n"
        "start = time.process_time()\n"
        "draftc.compile('smollm2-135m-dflash')\n"
        "print(time.process_time() - start)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) < 0.5
