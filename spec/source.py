"""A text as lines: from offsets to positions, and from lines to what stands on them."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from draftc.spec.span import Position, Span

_BREAK = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Source:
    """The text of `file`. Lines end at CR, LF or CRLF only, as in YAML 1.2."""

    file: str
    text: str
    starts: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        starts = (0, *(found.end() for found in _BREAK.finditer(self.text)))
        object.__setattr__(self, "starts", starts)

    def position(self, offset: int) -> Position:
        """Return the place of the character `offset`, counted from 0; the end of the text for offsets beyond it."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self.starts, offset)
        return Position(line, offset - self.starts[line - 1] + 1, offset)

    def span(self, start: int, end: int) -> Span:
        """Return the span of the characters `start` up to, not including, `end`."""
        return Span(self.file, self.position(start), self.position(max(start, end)))

    def line(self, number: int) -> str:
        """Return line `number`, counted from 1, without its line break; empty for lines that do not exist."""
        if not 1 <= number <= len(self.starts):
            return ""
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return self.text[self.starts[number - 1] : end].rstrip("\r\n")

    def line_start(self, offset: int) -> int:
        """Return the offset of the first character of the line that holds `offset`."""
        return offset - self.position(offset).column + 1

    def byte_offset(self, offset: int) -> int:
        """Return how many bytes of UTF-8 stand before the character `offset`."""
        return len(self.text[:offset].encode("utf-8", "surrogatepass"))
