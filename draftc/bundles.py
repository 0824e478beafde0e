"""Compiled bundles as importable modules: `draftc.bundles.<name>_<hash>.modeling_<name>`.

Their files lie in a content-addressed cache, one folder per distinct content, written once and never changed. This
module behaves like a package whose path is that cache, so the ordinary import system also finds bundles of earlier
processes, and a pickled model loads elsewhere.
"""

import hashlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import platformdirs

__path__: list[str] = []


def home() -> Path:
    """Folder of the cached bundles: below `DRAFTC_CACHE` when it is set, else in the user's cache folder."""
    chosen = os.environ.get("DRAFTC_CACHE")
    return Path(chosen or platformdirs.user_cache_dir("draftc", appauthor=False)).expanduser().absolute() / "bundles"


def install(name: str, files: Mapping[str, str]) -> ModuleType:
    """Put the Python files of a bundle into the cache, unless they are there, and import its model module.

    `name` is the identifier that ends the file names (`modeling_<name>.py`); `files` maps names to text and may hold
    other files, which are left out. Raises OSError when the cache cannot be written.
    """
    code = {file: text for file, text in sorted(files.items()) if file.endswith(".py")}
    folder = home() / f"{name}_{_digest(code)}"
    module = f"{__name__}.{folder.name}.modeling_{name}"
    loaded = sys.modules.get(module)
    if loaded is not None and loaded.__file__ == str(folder / f"modeling_{name}.py"):
        return loaded
    if not _holds(folder, code):
        _place(folder, code)
    _look_in(str(home()))
    return importlib.import_module(module)


def _digest(files: Mapping[str, str]) -> str:
    text = "".join(f"{name}\n{len(content)}\n{content}" for name, content in files.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _holds(folder: Path, files: Mapping[str, str]) -> bool:
    return all(
        (folder / name).is_file() and (folder / name).read_bytes() == text.encode() for name, text in files.items()
    )


def _place(folder: Path, files: Mapping[str, str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        for name, text in files.items():
            (fresh / name).write_bytes(text.encode())
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except OSError:
        if not _holds(folder, files):  # another process may have placed the same content first
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _look_in(path: str) -> None:
    if path not in __path__:
        __path__.insert(0, path)
    importlib.invalidate_caches()


_look_in(str(home()))
