"""Tabs and no-break spaces where indentation is asked for (DC003, DC004)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from draftc.spec.codes import NO_BREAK_SPACE, TAB_IN_INDENTATION
from draftc.spec.diagnostic import Diagnostic
from draftc.spec.source import Source

NO_BREAK_SPACES = "\u00a0\u2007\u202f"
_LEADING = re.compile(rf"[ \t{NO_BREAK_SPACES}]+")
_UNWANTED = re.compile(rf"[\t{NO_BREAK_SPACES}]")
_EDGE = re.compile(rf"^[{NO_BREAK_SPACES}]|[{NO_BREAK_SPACES}]$|^([\w.-]*:|-)[{NO_BREAK_SPACES}]")


_GLUED = re.compile(rf"^ *(?:- +)*[\w.-]+:(?=[{NO_BREAK_SPACES}])", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A tab or no-break space in the leading white space of a line; `quiet` when only a comment or nothing follows."""

    offset: int
    character: str
    quiet: bool


def suspects(source: Source) -> tuple[Suspect, ...]:
    """Return the first tab or no-break space of the leading white space of every line that has one."""
    if not _UNWANTED.search(source.text):
        return ()
    return tuple(_suspects(source))


def edge(text: str) -> int | None:
    """Return where a no-break space in the plain scalar `text` takes the place of a separating space, if anywhere."""
    found = _EDGE.search(text)
    return None if found is None else found.end() - 1


def glued(source: Source, end: int) -> tuple[int, ...]:
    """Return where, before `end`, a no-break space follows the colon of a key, which then is no key."""
    return tuple(found.end() for found in _GLUED.finditer(source.text, 0, end))


def diagnose(source: Source, offset: int) -> Diagnostic:
    """Return the diagnostic of the unwanted character at `offset`."""
    place = source.span(offset, offset + 1)
    character = source.text[offset]
    if character == "\t":
        return Diagnostic(TAB_IN_INDENTATION, "a tab stands in the indentation", place, help="indent with spaces")
    return Diagnostic(
        NO_BREAK_SPACE,
        f"a no-break space (U+{ord(character):04X}) stands where a space is meant",
        place,
        help="write an ordinary space; no-break spaces come from copied web pages",
    )


def misplaced(found: tuple[Suspect, ...], excused: Callable[[Suspect], bool]) -> tuple[Suspect, ...]:
    """Return the suspects that are followed by content and not `excused`."""
    return tuple(suspect for suspect in found if not suspect.quiet and not excused(suspect))


def _suspects(source: Source) -> Iterator[Suspect]:
    for start in source.starts:
        leading = _LEADING.match(source.text, start)
        unwanted = leading and _UNWANTED.search(leading.group())
        if leading and unwanted:
            rest = source.text[leading.end() : leading.end() + 1]
            yield Suspect(start + unwanted.start(), unwanted.group(), rest in ("", "#", "\n", "\r"))
