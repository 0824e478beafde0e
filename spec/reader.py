"""From the text of a layout to nodes with spans: PyYAML parses, the scalars are ours (YAML 1.2 core schema)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import yaml

from draftc.spec.codes import NOT_ONE_MAPPING, NOT_UTF_8, TOO_LARGE, YAML_SYNTAX
from draftc.spec.composer import DEEPEST, Composer, TooLargeError
from draftc.spec.diagnostic import Diagnostic, Label
from draftc.spec.nodes import Mapping, Node, Scalar
from draftc.spec.source import Source
from draftc.spec.whitespace import Suspect, diagnose, glued, misplaced, suspects

MOST_BYTES = 1 << 20
_WORDS_WITHIN = 1 << 16  # characters up to which a second, slow parse for better words is worth its time
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class Document:
    """A text that was read. `root` is None when its structure is unknown; `text` is without a byte order mark."""

    file: str
    text: str
    root: Mapping | None
    diagnostics: tuple[Diagnostic, ...] = ()


def read(data: bytes | str, file: str) -> Document:
    """Return the nodes of a layout and everything that is wrong with its text (DC001 to DC013).

    Never raises on content: whatever cannot be read becomes a diagnostic. A syntax error, a passed limit, or white
    space that hides the structure leave `root` None; after every other finding the nodes are there, those that were
    reported marked `faulty`.
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    source = Source(file, text.removeprefix(_BYTE_ORDER_MARK))
    refused = _refuse_bytes(data, source) or _refuse_characters(source)
    if refused is not None:
        return Document(file, source.text, None, (refused,))
    root, diagnostics = _compose(source)
    return Document(file, source.text, root, tuple(sorted(diagnostics, key=lambda found: found.order)))


def _refuse_bytes(data: bytes | str, source: Source) -> Diagnostic | None:
    raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if len(raw) > MOST_BYTES:
        return Diagnostic(TOO_LARGE, f"the file has {len(raw)} bytes; the limit is {MOST_BYTES}", source.span(0, 0))
    try:
        if isinstance(data, bytes):
            data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_utf_8(raw, error.start, source)
    return None


def _not_utf_8(raw: bytes, at: int, source: Source) -> Diagnostic:
    offset = len(raw[:at].decode("utf-8").removeprefix(_BYTE_ORDER_MARK))
    wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    return Diagnostic(
        NOT_UTF_8,
        f"the file is not UTF-8: byte 0x{raw[at]:02x} at offset {at}",
        source.span(offset, offset + 1),
        help="it looks like UTF-16; save it as UTF-8" if wide else "save it as UTF-8",
        values=(("byte_offset", at),),
    )


def _refuse_characters(source: Source) -> Diagnostic | None:
    found = _UNPRINTABLE.search(source.text)
    if found is None:
        return None
    message = f"character U+{ord(found.group()):04X} is not allowed in YAML"
    return Diagnostic(YAML_SYNTAX, message, source.span(*found.span()), help="delete it")


def _compose(source: Source) -> tuple[Mapping | None, list[Diagnostic]]:
    composer = Composer(source, _events(source.text))
    found = suspects(source)
    try:
        root = composer.document()
    except TooLargeError:
        return None, composer.diagnostics
    except yaml.YAMLError as error:
        return None, [*composer.diagnostics, *_syntax(source, error, found, composer)]
    unwanted = misplaced(found, partial(_is_content, composer))
    composer.diagnostics += [
        diagnose(source, suspect.offset) for suspect in unwanted if not _is_reported(composer, suspect)
    ]
    if root is None or any(suspect.character != "\t" for suspect in unwanted):
        return None, composer.diagnostics
    return _mapping(root, composer.diagnostics)


def _events(text: str) -> Iterator[yaml.Event]:
    loader = yaml.CLoader if yaml.__with_libyaml__ else yaml.Loader
    return yaml.parse(text, Loader=loader)


def _is_content(composer: Composer, suspect: Suspect) -> bool:
    """Whether the character belongs to a scalar, or separates the words of a root in braces, as in JSON."""
    if any(start < suspect.offset < end for start, end in composer.inside):
        return True
    start, end = composer.flow
    return suspect.character == "\t" and start < suspect.offset < end


def _is_reported(composer: Composer, suspect: Suspect) -> bool:
    return any(found.span.start.offset == suspect.offset for found in composer.diagnostics)


def _mapping(root: Node, diagnostics: list[Diagnostic]) -> tuple[Mapping | None, list[Diagnostic]]:
    if isinstance(root, Mapping):
        return root, diagnostics
    if root.faulty:
        return None, diagnostics
    what = _kind(root)
    message = f"a layout is one mapping of keys to values, not {what}"
    return None, [*diagnostics, Diagnostic(NOT_ONE_MAPPING, message, root.span, help="`draftc init` writes one")]


def _kind(root: Node) -> str:
    if not isinstance(root, Scalar):
        return "a list"
    return "an empty document" if root.value is None else "one value"


def _syntax(
    source: Source, error: yaml.YAMLError, found: tuple[Suspect, ...], composer: Composer
) -> Iterator[Diagnostic]:
    """Yield the misplaced white space up to a syntax error, and the error unless the white space explains it."""
    at = _offset(source, error)
    line = source.line_start(at)
    here = [suspect for suspect in found if source.line_start(suspect.offset) == line]
    before = [suspect for suspect in misplaced(found, partial(_is_content, composer)) if suspect.offset < line]
    separators = glued(source, at)
    said = {one.span.start.offset for one in composer.diagnostics}
    unwanted = sorted({*(one.offset for one in (*before, *here)), *separators} - said)
    yield from (diagnose(source, offset) for offset in unwanted)
    if not here and not separators and all(suspect.character == "\t" for suspect in before):
        yield _syntax_error(source, _better_words(source, error))


def _offset(source: Source, error: yaml.YAMLError) -> int:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return mark.index if mark is not None else len(source.text)
    return int(getattr(error, "position", 0))


def _better_words(source: Source, error: yaml.YAMLError) -> yaml.YAMLError:
    """Return the error of the Python parser, whose messages name what was found, when it fails as well."""
    if len(source.text) > _WORDS_WITHIN:
        return error
    try:
        for _ in yaml.parse(source.text, Loader=yaml.Loader):
            pass
    except yaml.YAMLError as worded:
        return worded
    return error


def _syntax_error(source: Source, error: yaml.YAMLError) -> Diagnostic:
    at = _offset(source, error)
    place = source.span(at, at + 1)
    if not isinstance(error, yaml.MarkedYAMLError):
        return Diagnostic(YAML_SYNTAX, str(getattr(error, "reason", "unreadable")), place)
    problem = _readable(error.problem or "unreadable")
    if "maximum nesting depth" in problem:
        return Diagnostic(TOO_LARGE, f"the document is nested more than {DEEPEST} deep", place)
    secondary = _context(source, error, at)
    message = f"{problem} {error.context}" if error.context and not secondary else problem
    return Diagnostic(YAML_SYNTAX, message, place, secondary, help=_syntax_help(problem))


def _readable(problem: str) -> str:
    for token in (r"'\x00'", "'<stream end>'"):
        problem = problem.replace(token, "the end of the file")
    return problem.replace("'<document start>'", "the end of the document")


def _context(source: Source, error: yaml.MarkedYAMLError, at: int) -> tuple[Label, ...]:
    mark = error.context_mark
    if not error.context or mark is None or mark.index == at:
        return ()
    return (Label(source.span(mark.index, mark.index + 1), error.context),)


_SYNTAX_HELP = (
    ("mapping values are not allowed", "put the key on a line of its own, or the value in quotes"),
    ("cannot start any token", "put the value in quotes"),
    ("expected ',' or", "a bracket or brace is not closed, or a comma is missing"),
    ("unexpected end of stream", "close the quotes"),
    ("expected <block end>", "check that keys of one mapping are indented alike"),
    ("could not find expected ':'", "a key needs a colon and a space"),
)


def _syntax_help(problem: str) -> str:
    return next((text for words, text in _SYNTAX_HELP if words in problem), "")
