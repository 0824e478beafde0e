"""A bundle folder is the old bundle or the new one, and nothing that is not a bundle is ever replaced."""

import json
import os
from pathlib import Path

import pytest

from draftc.compiler import write
from draftc.compiler.write import BundleError, is_bundle, stale, write_folder


def bundle(text: str, *more: str) -> dict[str, str]:
    files = {"config.json": text, **dict.fromkeys(more, "x = 1\n")}
    return files | {"manifest.json": json.dumps({"draftc": "0", "files": dict.fromkeys(files, "hash")})}


def content(folder: Path) -> dict[str, str]:
    return {found.name: found.read_text() for found in folder.iterdir()}


def test_writes_files_as_they_are_and_leaves_nothing_beside_them(tmp_path):
    files = bundle("ünï\n")
    write_folder(tmp_path / "deep" / "draft", files)
    assert content(tmp_path / "deep" / "draft") == files
    assert os.listdir(tmp_path / "deep") == ["draft"]
    assert is_bundle(tmp_path / "deep" / "draft")


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o022)
    try:
        write_folder(tmp_path / "draft", bundle("1"))
    finally:
        os.umask(old)
    assert (tmp_path / "draft").stat().st_mode & 0o777 == 0o755


def test_replaces_a_bundle_and_drops_files_that_it_no_longer_has(tmp_path):
    write_folder(tmp_path / "draft", bundle("1", "modeling_a.py"))
    write_folder(tmp_path / "draft", bundle("2", "modeling_b.py"))
    assert content(tmp_path / "draft") == bundle("2", "modeling_b.py")


def test_carries_over_what_the_manifest_does_not_list(tmp_path):
    write_folder(tmp_path / "draft", bundle("1"))
    (tmp_path / "draft" / "model.safetensors").write_text("trained for days")
    (tmp_path / "draft" / "notes").mkdir()
    (tmp_path / "draft" / "notes" / "a.md").write_text("a")
    write_folder(tmp_path / "draft", bundle("2"))
    assert (tmp_path / "draft" / "model.safetensors").read_text() == "trained for days"
    assert (tmp_path / "draft" / "notes" / "a.md").read_text() == "a"
    write_folder(tmp_path / "draft", bundle("3"), keep=False)
    assert content(tmp_path / "draft") == bundle("3")


def test_fill_adds_files_and_wins_over_carried_ones(tmp_path):
    draft = tmp_path / "draft"
    write_folder(draft, bundle("1"), fill=lambda at: put(at, "old"))
    write_folder(draft, bundle("2"), fill=lambda at: put(at, "new"))
    assert (draft / "model.safetensors").read_text() == "new"


def put(folder: Path, text: str) -> None:
    (folder / "model.safetensors").write_text(text)


@pytest.mark.parametrize("existing", ["folder", "file", "foreign manifest"])
def test_refuses_what_is_not_a_bundle(tmp_path, existing):
    draft = tmp_path / "draft"
    if existing == "file":
        draft.write_text("precious")
    else:
        draft.mkdir()
        (draft / "precious.txt").write_text("precious")
    if existing == "foreign manifest":
        (draft / "manifest.json").write_text('{"files": {"precious.txt": "hash"}}')
    with pytest.raises(BundleError, match="draft exists and is"):
        write_folder(draft, bundle("1"))
    assert draft.read_text() == "precious" if existing == "file" else (draft / "precious.txt").exists()


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "draft").mkdir()
    write_folder(tmp_path / "draft", bundle("1"))
    assert is_bundle(tmp_path / "draft")


def test_a_link_to_a_bundle_stays_a_link(tmp_path):
    write_folder(tmp_path / "real", bundle("1"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_folder(tmp_path / "link", bundle("2"))
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == bundle("2")


class DiskFullError(OSError):
    """The disk is full."""


def test_an_error_while_writing_leaves_the_old_bundle(tmp_path):
    write_folder(tmp_path / "draft", bundle("1"))

    def fail(_: Path) -> None:
        raise DiskFullError

    with pytest.raises(DiskFullError):
        write_folder(tmp_path / "draft", bundle("2"), fill=fail)
    assert content(tmp_path / "draft") == bundle("1")
    assert os.listdir(tmp_path) == ["draft"]


@pytest.mark.parametrize("error", [DiskFullError, KeyboardInterrupt])
def test_an_error_between_the_two_renames_brings_the_old_bundle_back(tmp_path, monkeypatch, error):
    write_folder(tmp_path / "draft", bundle("1"))
    rename = Path.rename
    calls = []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise error
        return rename(self, target)

    monkeypatch.setattr(write.Path, "rename", interrupted)
    with pytest.raises(error):
        write_folder(tmp_path / "draft", bundle("2"))
    assert len(calls) == 3
    assert content(tmp_path / "draft") == bundle("1")


def test_stale_names_each_difference(tmp_path):
    draft = tmp_path / "draft"
    assert stale(draft, bundle("1")) == ("draft is no bundle",)
    write_folder(draft, bundle("a\nb\n", "gone.py", "missing.py"))
    assert stale(draft, bundle("a\nb\n", "gone.py", "missing.py")) == ()
    (draft / "missing.py").unlink()
    expected = bundle("a\nc\n", "missing.py")
    assert stale(draft, expected) == (
        "config.json differs from line 2",
        "manifest.json differs from line 1",
        "missing.py is missing",
        "gone.py is no longer part of the bundle",
    )


def test_weights_do_not_make_a_bundle_stale(tmp_path):
    write_folder(tmp_path / "draft", bundle("1"))
    (tmp_path / "draft" / "model.safetensors").write_text("weights")
    assert stale(tmp_path / "draft", bundle("1")) == ()


def test_a_folder_that_save_pretrained_wrote_is_a_bundle(tmp_path):
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text('{"draftc": {}, "auto_map": {"AutoModel": "modeling_old.ADraftModel"}}')
    (draft / "modeling_old.py").write_text("")
    (draft / "model.safetensors").write_text("trained for days")
    write_folder(draft, bundle("1"))
    assert content(draft) == bundle("1") | {"model.safetensors": "trained for days"}
