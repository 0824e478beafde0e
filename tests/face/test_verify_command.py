"""`draftc verify`: its table, its exit code, and what it cannot run on."""

from pathlib import Path

import pytest
import torch

from tests.compiler.bundles import compiled


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    compiled("context").write(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_bundle_passes_and_a_changed_one_fails(terminal, bundle: Path) -> None:
    ran = terminal("verify", bundle, "--dtype", "float64")
    assert ran.code == 0
    assert ran.out.startswith("tiny against the reference")
    assert "its own choice cpu float64" in ran.words
    assert "passes" in ran.out
    code = bundle / "modeling_tiny.py"
    code.write_text(code.read_text(encoding="utf-8").replace("scale=8**-0.5", "scale=7**-0.5"), encoding="utf-8")
    ran = terminal("verify", bundle, "--dtype", "float64")
    assert ran.code == 1
    assert "fails" in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--backend", "nope"), 2, "there is no backend nope"),
        (("--device", "gpu"), 2, "'gpu' is not one of 'cpu', 'cuda'"),
        (("--dtype", "int8"), 2, "'int8' is not one of"),
    ],
)
def test_what_does_not_exist(terminal, bundle: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = terminal("verify", bundle, *arguments)
    assert ran.code == code
    assert says in ran.words


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a card that is not there")
def test_a_card_that_is_not_there(terminal, bundle: Path) -> None:
    ran = terminal("verify", bundle, "--device", "cuda")
    assert ran.code == 2
    assert "there is no CUDA device here" in ran.err


def test_what_is_no_bundle(terminal) -> None:
    Path("folder").mkdir()
    for name in ("folder", "nowhere"):
        ran = terminal("verify", name)
        assert ran.code == 1
        assert f"{name} is no bundle" in ran.err


@pytest.mark.parametrize("content", [b"{", b"\xff", b"draftc: 1\n"])
def test_a_bundle_whose_layout_is_broken(terminal, bundle: Path, content: bytes) -> None:
    (bundle / "layout.resolved.json").write_bytes(content)
    ran = terminal("verify", bundle)
    assert ran.code == 1
    assert f"error[DC501 not-a-bundle]: the layout of {bundle} is broken" in ran.words
    assert "= help: `draftc compile` writes the files of a bundle anew" in ran.err


def test_a_bundle_without_its_model(terminal, bundle: Path) -> None:
    (bundle / "modeling_tiny.py").unlink()
    ran = terminal("verify", bundle)
    assert ran.code == 1
    assert "error[DC502 bundle-does-not-run]: the bundle in tiny fails" in ran.err
    assert "= help: `draftc compile` writes the files of a bundle anew" in ran.err
