"""Bundles on disk: written whole or not at all, and told apart from folders that are something else."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftc.compiler.errors import CompileError
from draftc.spec.compiling_codes import NOT_A_BUNDLE

MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"


class BundleError(CompileError):
    """A folder cannot be written or read as a bundle."""

    code = NOT_A_BUNDLE


def write_folder(
    folder: Path, files: Mapping[str, str], *, fill: Callable[[Path], None] | None = None, keep: bool = True
) -> None:
    """Write `files` (name to text) as the bundle `folder`; `fill` may add more files, weights for example.

    Everything is written to a temporary folder beside it and renamed, so that `folder` is at every moment the old
    bundle, the new one, or (for the time of one rename, when it replaces a bundle) absent; an error leaves the old one.
    With `keep`, files of a replaced bundle that its manifest does not list (weights, a tokenizer) are carried over.
    Raises BundleError when `folder` exists and is neither empty nor a bundle, OSError when the disk refuses.
    """
    folder = folder.resolve()
    require_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fresh.chmod(0o777 & ~_umask())
        _fill(fresh, files)
        if fill is not None:
            fill(fresh)
        if keep:
            _carry(folder, fresh)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def require_replaceable(folder: Path) -> None:
    """Raise BundleError unless `folder` is absent, empty, or a bundle."""
    if folder.is_dir() and (is_bundle(folder) or not any(folder.iterdir())):
        return
    if folder.exists():
        what = "a folder that is not a bundle" if folder.is_dir() else "not a folder"
        raise BundleError(f"{folder.name} exists and is {what}", help="choose another folder, or move this one away")


def is_bundle(folder: Path) -> bool:
    """Whether `folder` holds a bundle: one that we wrote, or one that `save_pretrained` of a draft wrote."""
    return bool(listed(folder))


def listed(folder: Path) -> frozenset[str]:
    """Return the names of the files of a bundle that are ours; empty when `folder` is no bundle.

    The manifest names them. A folder that `save_pretrained` wrote has none; its configuration names its code.
    """
    manifest, config = _mapping(folder / MANIFEST), _mapping(folder / CONFIG)
    if "draftc" in manifest and isinstance(manifest.get("files"), dict):
        return frozenset({MANIFEST, *manifest["files"]})
    if "draftc" in config and isinstance(config.get("auto_map"), dict):
        modules = {str(entry).partition(".")[0] for entry in config["auto_map"].values()}
        return frozenset({CONFIG, *(f"{module}.py" for module in modules)})
    return frozenset()


def _mapping(path: Path) -> dict[str, Any]:
    """Read a JSON object; an unreadable or other file is an empty one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def stale(folder: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    """Return why `folder` is not the bundle of `files`, one reason per file; empty when it is up to date.

    Weights and other files that no manifest lists are not looked at.
    """
    if not is_bundle(folder):
        return (f"{folder.name} is no bundle",)
    reasons = [_difference(folder / name, text) for name, text in sorted(files.items())]
    left = sorted(name for name in listed(folder) if name not in files and (folder / name).exists())
    return (*(reason for reason in reasons if reason), *(f"{name} is no longer part of the bundle" for name in left))


def _difference(path: Path, text: str) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    found = path.read_bytes()
    if found == text.encode():
        return None
    theirs, ours = found.decode("utf-8", "replace").splitlines(), text.splitlines()
    line = next((i for i, pair in enumerate(zip(theirs, ours, strict=False), 1) if pair[0] != pair[1]), None)
    return f"{path.name} differs from line {line or min(len(theirs), len(ours)) + 1}"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())


def _carry(old: Path, fresh: Path) -> None:
    ours = listed(old)
    for found in sorted(old.iterdir()) if old.is_dir() else ():
        if found.name in ours or (fresh / found.name).exists() or found.name == "__pycache__":
            continue
        if found.is_dir():
            shutil.copytree(found, fresh / found.name, symlinks=True)
        else:
            _link_or_copy(found, fresh / found.name)


def _link_or_copy(source: Path, target: Path) -> None:
    """Give `target` the content of `source` without copying gigabytes where the file system can link."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _swap(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    old = aside / folder.name
    folder.rename(old)
    try:
        fresh.rename(folder)
    finally:
        if not folder.exists():
            old.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)
