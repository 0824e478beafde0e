"""Link: copy the definitions that a bundle reaches out of the sources of `runtime/`, by text.

From the roots the linker closes over the names that each definition mentions, cuts the text of every definition
by line range (so comments survive), puts definitions before their users and collects the imports they need.
A method is left out only of a class without bases, and only when no reached code mentions an attribute of its name:
a class with a base keeps all its methods, since the base may call them.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from draftc.compiler.errors import InternalError
from draftc.compiler.imports import Import
from draftc.compiler.sources import Definition, Source, Symbol, read_source


class LinkError(InternalError):
    """A source of `runtime/` breaks the rules for linkable modules; the message names the place."""


@dataclass(frozen=True, slots=True)
class Linked:
    """Texts of the reached definitions by name, each before its users, with the imports that they need.

    `attributes` are the names of attributes that reached code mentions, by which methods were kept. `companions` are
    the modules that functions import when they are called: copied whole, for files beside the text, by file name.
    """

    definitions: Mapping[str, str]
    imports: frozenset[Import]
    attributes: frozenset[str]
    companions: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the definitions, in order."""
        return tuple(self.definitions)

    @property
    def text(self) -> str:
        """All definitions as `ruff format` parts them."""
        return _joined(list(self.definitions.values()))

    def parted(self, first: Collection[str]) -> tuple[str, str]:
        """The text of the definitions named in `first`, which must hold what they reach, and that of the others."""
        before = [text for name, text in self.definitions.items() if name in first]
        after = [text for name, text in self.definitions.items() if name not in first]
        return _joined(before), _joined(after)


@dataclass
class _Closure:
    """What the roots reach while only methods named in `kept` stay."""

    replaced: Mapping[str, str]
    provided: Mapping[str, str]
    kept: frozenset[str]
    reached: dict[Symbol, Definition] = field(default_factory=dict)
    order: list[Symbol] = field(default_factory=list)
    imports: set[Import] = field(default_factory=set)

    def reach(self, symbol: Symbol) -> None:
        """Take in `symbol` and everything its definition mentions, dependencies first."""
        if symbol in self.reached or symbol.name in self.provided:
            return
        source = read_source(symbol.module)
        self.reached[symbol] = self.definition(symbol, source)
        for name in self.reached[symbol].names_with(self.kept):
            self.follow(name, source)
        self.order.append(symbol)

    def definition(self, symbol: Symbol, source: Source) -> Definition:
        """Return the definition of `symbol`, or the one that replaces it."""
        found = source.definitions.get(symbol.name)
        if found is None:
            raise LinkError(f"{symbol.module} defines no {symbol.name}")
        other = self.replaced.get(symbol.name)
        return found if other is None else Definition.of_text(other)

    def follow(self, name: str, source: Source) -> None:
        """Reach what `name` means in `source`; a name that is neither defined nor imported there is a builtin."""
        found = source.resolve(name)
        if isinstance(found, Import):
            self.imports.add(found)
        elif found is not None:
            if found.name in self.provided:
                self.imports.add(Import(self.provided[found.name], found.name))
            self.reach(found)


def link(
    roots: Sequence[Symbol],
    *,
    replaced: Mapping[str, str] | None = None,
    provided: Mapping[str, str] | None = None,
    attributes: frozenset[str] = frozenset(),
) -> Linked:
    """Return the text of everything that `roots` reach.

    `replaced` gives the text of definitions that are generated instead of copied; names it mentions are looked up
    in the module of the original. `provided` maps names that a sibling module of the bundle already defines to that
    module. `attributes` are names of attributes that the code beside the linked text mentions.
    Raises LinkError when a root does not exist or when two reached definitions share a name.
    """
    closure = _closed(roots, replaced or {}, provided or {}, attributes)
    order = _evaluated_first(closure)
    _require_unique(order)
    texts = {symbol.name: _beside(closure.reached[symbol].text_with(closure.kept), symbol.module) for symbol in order}
    return Linked(texts, frozenset(closure.imports), closure.kept, _companions(closure))


def _companions(closure: _Closure) -> dict[str, str]:
    """Return the files of the modules that reached functions import, and of those that these import in turn."""
    found: dict[str, str] = {}
    waiting = [
        module
        for symbol, definition in closure.reached.items()
        for node in definition.inner_imports(closure.kept)
        if (module := read_source(symbol.module).companion_of(node)) is not None
    ]
    while waiting:
        source = read_source(waiting.pop())
        name = f"{source.module.rpartition('.')[2]}.py"
        if name not in found:
            found[name] = _beside(source.text, source.module)
            nodes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ImportFrom)]
            waiting.extend(module for node in nodes if (module := source.companion_of(node)) is not None)
    return dict(sorted(found.items()))


def _beside(text: str, module: str) -> str:
    """Return `text` with its imports of our modules as imports of files in the same folder."""
    top = re.escape(module.partition(".")[0])
    return re.sub(rf"(?m)^(\s*from )(?:{top}\b|\.)[\w.]*?\.?(\w+) import ", r"\1.\2 import ", text)


def _closed(
    roots: Sequence[Symbol], replaced: Mapping[str, str], provided: Mapping[str, str], attributes: frozenset[str]
) -> _Closure:
    """Close over names and over kept methods together: a kept method may reach code that mentions another one."""
    kept = attributes
    while True:
        closure = _Closure(replaced, provided, kept)
        for root in roots:
            closure.reach(root)
        more = kept.union(*(found.attributes_with(kept) for found in closure.reached.values()))
        if more == kept:
            return closure
        kept = more


def _require_unique(order: list[Symbol]) -> None:
    seen: dict[str, str] = {}
    for symbol in order:
        if symbol.name in seen:
            raise LinkError(f"{symbol.name} is defined in {seen[symbol.name]} and in {symbol.module}")
        seen[symbol.name] = symbol.module


def _evaluated_first(closure: _Closure) -> list[Symbol]:
    """Order so that what a definition evaluates (bases, defaults, annotations, values) stands before it."""
    done: dict[Symbol, None] = {}

    def place(symbol: Symbol) -> None:
        if symbol in done:
            return
        source = read_source(symbol.module)
        for name in closure.reached[symbol].evaluated:
            found = source.resolve(name)
            if isinstance(found, Symbol) and found in closure.reached and found != symbol:
                place(found)
        done[symbol] = None

    for symbol in closure.order:
        place(symbol)
    return list(done)


def _joined(texts: list[str]) -> str:
    """Join definitions as `ruff format` parts them: two blank lines around def and class, none between constants."""
    parts: list[str] = []
    for text in texts:
        if parts:
            parts.append("" if _is_constant(text) and _is_constant(parts[-1]) else "\n\n")
        parts.append(text)
    return "".join(parts)


def _is_constant(text: str) -> bool:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return not lines[0].startswith(("def ", "class ", "@", "async "))
