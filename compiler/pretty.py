"""Python expressions laid out as `ruff format` would: on one line if it fits, else one level of brackets at a time."""

from collections.abc import Mapping
from dataclasses import dataclass

from draftc.compiler.imports import LINE_LENGTH


@dataclass(frozen=True, slots=True)
class Group:
    """A bracketed list: `opening` ends in the bracket, `closing` is the other bracket."""

    opening: str
    items: tuple["Piece", ...]
    closing: str

    @property
    def flat(self) -> str:
        """The group on one line; a tuple of one keeps its comma."""
        alone = "," if self.opening == "(" and len(self.items) == 1 else ""
        return self.opening + ", ".join(flat(item) for item in self.items) + alone + self.closing


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A piece behind a word that stays on its line: `key=`, `key: `."""

    word: str
    piece: "Piece"

    @property
    def flat(self) -> str:
        """Both on one line."""
        return self.word + flat(self.piece)


Piece = str | Group | Prefixed


def flat(piece: Piece) -> str:
    """Return the piece on one line."""
    return piece if isinstance(piece, str) else piece.flat


def laid_out(piece: Piece, indent: int, before: int = 0, after: int = 0) -> str:
    """Return the text of `piece` on lines indented by `indent`, the first of which already holds `before` columns.

    `after` columns must stay free behind the last line. The text has no indentation on its first line.
    """
    line = flat(piece)
    if before + len(line) + after <= LINE_LENGTH or isinstance(piece, str):
        return line
    if isinstance(piece, Prefixed):
        return piece.word + laid_out(piece.piece, indent, before + len(piece.word), after)
    return _opened(piece, indent)


def _opened(group: Group, indent: int) -> str:
    """Break inside the brackets: the contents on one line of their own, or each item on its own lines."""
    inner, pad = indent + 4, " " * (indent + 4)
    contents = ", ".join(flat(item) for item in group.items)
    alone = group.opening == "(" and len(group.items) == 1
    if inner + len(contents) <= LINE_LENGTH and not group.opening.endswith("{") and not alone and _is_call(group):
        return f"{group.opening}\n{pad}{contents}\n{' ' * indent}{group.closing}"
    items = "".join(f"{pad}{laid_out(item, inner, inner, 1)},\n" for item in group.items)
    return f"{group.opening}\n{items}{' ' * indent}{group.closing}"


def _is_call(group: Group) -> bool:
    """Collections get a comma after the last item when they are broken, calls only when each argument is."""
    return len(group.opening) > 1


def call(name: str, *items: Piece, **named: object) -> Group:
    """Return the call of `name` with positional pieces and keyword values."""
    keywords = (Prefixed(f"{key}=", literal(value)) for key, value in named.items())
    return Group(f"{name}(", (*items, *keywords), ")")


def literal(value: object) -> Piece:
    """Return checked plain data as a Python literal. Raises TypeError for anything that has none."""
    match value:
        case str():
            return quoted(value)
        case tuple():
            return Group("(", tuple(literal(item) for item in value), ")")
        case list():
            return Group("[", tuple(literal(item) for item in value), "]")
        case Mapping():
            pairs = (Prefixed(f"{flat(literal(key))}: ", literal(item)) for key, item in value.items())
            return Group("{", tuple(pairs), "}")
        case None | bool() | int() | float():
            return repr(value)
        case _:
            raise TypeError(f"{type(value).__name__} has no literal")


def quoted(text: str) -> str:
    """Return `text` as a string literal in double quotes, as ruff writes it, unless that needs more escapes."""
    plain = repr(text)
    if plain.startswith('"') or '"' in text:
        return plain
    return f'"{plain[1:-1]}"'
