"""The import block of a Python file, in the order and the layout of `ruff check --select I` and `ruff format`."""

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass

LINE_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: `import module as alias` without `name`, `from module import name as alias` with it."""

    module: str
    name: str | None = None
    alias: str | None = None

    @property
    def bound(self) -> str:
        """The name that the statement defines."""
        return self.alias or self.name or self.module.partition(".")[0]

    @property
    def section(self) -> int:
        """Standard library 0, third party 1, sibling modules 2."""
        if self.module.startswith("."):
            return 2
        return 0 if self.module.partition(".")[0] in sys.stdlib_module_names else 1


def imports_of(statement: ast.Import | ast.ImportFrom) -> tuple[Import, ...]:
    """Return the names that an import statement imports. Relative modules keep their leading dots."""
    if isinstance(statement, ast.Import):
        return tuple(Import(found.name, None, found.asname) for found in statement.names)
    module = "." * statement.level + (statement.module or "")
    return tuple(Import(module, found.name, found.asname) for found in statement.names)


def import_block(imports: Iterable[Import]) -> str:
    """Return the import statements of a file, sections parted by a blank line; empty without imports."""
    distinct = set(imports)
    sections = ([found for found in distinct if found.section == section] for section in range(3))
    return "\n".join(_section(found) for found in sections if found)


def _section(imports: list[Import]) -> str:
    modules = sorted({(found.module, found.alias) for found in imports if found.name is None}, key=_module_order)
    plain = [f"import {module} as {alias}\n" if alias else f"import {module}\n" for module, alias in modules]
    origins = sorted({found.module for found in imports if found.name is not None}, key=str.lower)
    return "".join(plain) + "".join(_members(origin, imports) for origin in origins)


def _module_order(found: tuple[str, str | None]) -> tuple[str, str]:
    return found[0].lower(), found[1] or ""


def _members(module: str, imports: list[Import]) -> str:
    members = [found for found in imports if found.module == module and found.name is not None]
    joined = sorted((found.name or "" for found in members if found.alias is None), key=_member_order)
    renamed = sorted(f"{found.name} as {found.alias}" for found in members if found.alias is not None)
    lines = "".join(f"from {module} import {entry}\n" for entry in renamed)
    return (_from(module, joined) if joined else "") + lines


def _member_order(name: str) -> tuple[int, str, str]:
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[0].isupper() else 2
    return kind, name.lower(), name


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}\n"
    if len(line) <= LINE_LENGTH + 1:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"
