"""What a command's argument names: a file, standard input, or a shipped layout."""

import errno
import io
import sys
from pathlib import Path

import pytest

from draftc.spec.check import check_text
from draftc.spec.sources import SourceError, UnknownLayoutError, list_layouts, list_targets, open_source


def test_suffix_or_separator_makes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("a.yaml", "a.yml", "a.json", "sub/plain"):
        (tmp_path / name).write_bytes(b"draftc: 1")
        source = open_source(name)
        assert (source.file, source.data, source.folder) == (name, b"draftc: 1", Path(name).parent)


def test_a_name_is_a_shipped_layout_whatever_lies_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-4b-dflash").write_text("not this")
    source = open_source("qwen3-4b-dflash")
    assert (source.file, source.folder) == ("qwen3-4b-dflash.yaml", None)
    assert b"name: qwen3-4b-dflash" in source.data


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"draftc: 1")))
    source = open_source("-")
    assert (source.file, source.data, source.folder) == ("<stdin>", b"draftc: 1", Path())


def test_unknown_names_suggest() -> None:
    with pytest.raises(UnknownLayoutError, match="no shipped layout is called qwen3-4b-dflsh") as caught:
        open_source("qwen3-4b-dflsh")
    assert caught.value.help.startswith("did you mean `qwen3-4b-dflash`?")
    with pytest.raises(UnknownLayoutError) as caught:
        open_source("")
    assert "qwen3-4b-dflash" in caught.value.help


@pytest.mark.parametrize(
    ("argument", "says", "way_out"),
    [
        ("nowhere.yaml", "there is no file nowhere.yaml", "`draftc init` writes a layout"),
        ("./", "./ is a folder", "name a layout file in it"),
        ("bundle", "bundle is a folder", "did you mean bundle/layout.yaml?"),
        ("./bundle", "./bundle is a folder", "did you mean bundle/layout.yaml?"),
        ("bundle/layout.yaml/x.yaml", "cannot read bundle/layout.yaml/x.yaml: Not a directory", "a part of the path"),
        (f"{'a' * 300}.yaml", "File name too long", "choose a shorter name"),
        ("a" * 300, "no shipped layout is called", "shipped: "),
        ("a\0b.yaml", "cannot read", ""),
    ],
)
def test_what_cannot_be_read_is_a_typed_error_with_a_way_out(
    argument: str, says: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "layout.yaml").touch()
    with pytest.raises(SourceError) as caught:
        open_source(argument)
    assert says in str(caught.value)
    assert way_out in caught.value.help


def test_a_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "secret.yaml")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match=r"cannot read secret.yaml: Permission denied") as caught:
        open_source("secret.yaml")
    assert "permissions" in caught.value.help


def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError, match="standard input is closed"):
        open_source("-")


def test_a_file_of_any_size_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (1 << 21))
    source = open_source(str(path))
    assert len(source.data) == (1 << 20) + 1
    assert [found.code.number for found in check_text(source.data, source.file, None).diagnostics] == ["DC008"]


def test_what_is_shipped() -> None:
    assert {"qwen3-4b-dflash", "kimi-k3-4kda-1mla", "mla-full-gqa-sliding"} <= set(list_layouts())
    assert {"qwen3-4b", "gpt-oss-20b", "smollm2-135m"} <= set(list_targets())
