"""The catalogue of codes, and a page for each: what it is, why it hurts, a bad and a good example."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from draftc.spec.codes import READING_CODES, SHAPE_CODES
from draftc.spec.compiling_codes import COMPILING_CODES
from draftc.spec.diagnostic import Code
from draftc.spec.resolution_codes import RESOLUTION_CODES
from draftc.spec.rules import RULES, dc132_allow_unused
from draftc.spec.suggest import ROUGHLY, nearest

EXAMPLE = re.compile(r"^```([a-z]+) (bad|good)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class UnknownCodeError(LookupError):
    """No diagnostic has this number or name; `near` is what may have been meant."""

    def __init__(self, asked: str, near: Code | None) -> None:
        self.asked = asked
        self.near = near
        super().__init__(f"no diagnostic is called {asked}" + (f"; did you mean {near}?" if near else ""))


@dataclass(frozen=True, slots=True)
class Page:
    """The explanation of one code.

    `text` is Markdown. A layout among its examples is whole if it has a `draftc` key, and else a change to the base
    layout; the text of a page with changes ends with how they read. What no layout shows, commands (`console`) or a
    module (`python`) do.
    """

    code: Code
    text: str

    @property
    def bad(self) -> tuple[str, ...]:
        """The layouts that give the code."""
        return self.examples("bad")

    @property
    def good(self) -> tuple[str, ...]:
        """The layouts that do not give it."""
        return self.examples("good")

    @property
    def has_changes(self) -> bool:
        """Whether some example is a change, so that a reader needs the base layout."""
        return any(is_change(example) for example in (*self.bad, *self.good))

    def examples(self, word: str, language: str = "yaml") -> tuple[str, ...]:
        """The `bad` or the `good` examples in a language: `yaml`, `console` or `python`."""
        return tuple(body for found, kind, body in EXAMPLE.findall(self.text) if (found, kind) == (language, word))


def is_change(example: str) -> bool:
    """Whether an example of a page changes the base layout, rather than being a layout of its own."""
    return re.search(r"^['\"{]?draftc\b", example, re.MULTILINE) is None


def page(code_or_name: str) -> Page:
    """Return the page of a code, asked for as `DC203`, `203` or `kv-heads-not-divisor`, in any case.

    Raises UnknownCodeError, with the nearest name if one is near.
    """
    asked = code_or_name.strip()
    code = _by_word().get(asked.lower())
    if code is None:
        raise UnknownCodeError(asked, _near(asked.lower()))
    text = _read(f"{code.number}.md")
    return Page(code, f"{text}\n{changes()}" if Page(code, text).has_changes else text)


def changes() -> str:
    """Return the text (Markdown) on how the short examples of the pages read: the base layout and what changes it."""
    return _read("changes.md")


@cache
def catalogue() -> tuple[Code, ...]:
    """Return every code, in the order of their numbers: those of the language, of compiling and of bundles."""
    rules = (*(rule.CODE for rule in RULES), dc132_allow_unused.CODE)
    codes = (*READING_CODES, *SHAPE_CODES, *RESOLUTION_CODES, *rules, *COMPILING_CODES)
    return tuple(sorted(codes, key=lambda code: code.number))


@cache
def known_codes() -> Mapping[str, Code]:
    """Return every code by its number."""
    return {code.number: code for code in catalogue()}


@cache
def _by_word() -> Mapping[str, Code]:
    """Every spelling under which a code can be asked for, in lower case."""
    spellings = ((spelling, code) for code in catalogue() for spelling in _spellings(code))
    return dict(spellings)


def _spellings(code: Code) -> tuple[str, ...]:
    digits = code.number.removeprefix("DC")
    full = code.number.lower()
    return (full, digits, str(int(digits)), code.name, f"{full} {code.name}")


def _near(asked: str) -> Code | None:
    if re.fullmatch(r"(dc)?\d+", asked):
        return None  # a number that looks like another means nothing like it
    best = nearest(asked, _by_word(), ROUGHLY)
    return _by_word()[best] if best is not None else None


def _read(name: str) -> str:
    return (files("draftc.spec") / "pages" / name).read_text(encoding="utf-8")
