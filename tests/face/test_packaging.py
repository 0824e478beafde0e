"""A wheel holds every file that the commands read: what pyproject.toml promises against what is there."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = {"draftc": ROOT / "draftc"} | {
    f"draftc.{name}": ROOT / name for name in ("spec", "schemas", "compiler", "runtime")
}


def files() -> list[tuple[str, Path]]:
    """Each file of the product with the dotted name of its top package, once: the links in draftc/ are not followed."""
    found = []
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*")):
            links = package == "draftc" and any(part.is_symlink() for part in (path, *path.parents) if part != ROOT)
            if path.is_file() and "__pycache__" not in path.parts and not links:
                found.append((package, path.relative_to(folder)))
    return found


def dotted(package: str, path: Path) -> str:
    return ".".join((package, *path.parent.parts))


@pytest.mark.parametrize("package", FOLDERS)
def test_every_folder_with_code_is_a_package(package: str) -> None:
    patterns = SETUPTOOLS["packages"]["find"]["include"]
    for folder in {path.parent for top, path in files() if top == package and path.suffix == ".py"}:
        assert (FOLDERS[package] / folder / "__init__.py").is_file(), folder
        assert any(fnmatch(dotted(package, folder / "x"), pattern) for pattern in patterns), folder


def test_every_other_file_is_package_data() -> None:
    data = SETUPTOOLS["package-data"]
    for package, path in files():
        if path.suffix != ".py":
            assert any(path.match(pattern) for pattern in data.get(package, ())), f"{package}: {path}"


def test_every_pattern_of_package_data_matches_something() -> None:
    known = files()
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert any(top == package and path.match(pattern) for top, path in known), f"{package}: {pattern}"


def test_the_lock_holds_every_dependency() -> None:
    """Extras that name draftc itself bring what its other extras bring."""
    locked = {line.split("==")[0].strip().lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(word for words in extras.values() for word in words)]
    for entry in wanted:
        name = entry.split(";")[0].split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip().lower()
        assert name == "draftc" or name in locked, entry
