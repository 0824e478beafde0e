"""Places in source text, and where a value came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text: `line` and `column` count from 1, `offset` counts characters from 0."""

    line: int
    column: int
    offset: int


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The text of `file` from `start` up to, not including, `end`."""

    file: str
    start: Position
    end: Position

    def __str__(self) -> str:
        return f"{self.file}:{self.start.line}:{self.start.column}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value of a Layout came from.

    `via` says it in words: `layout`, `preset qwen3-4b: hidden_size`, `config.json: n_embd`, `default`,
    `extends context`.
    `span` is the place where the value is written, None for presets and defaults.
    """

    via: str
    span: Span | None = None

    def __str__(self) -> str:
        return self.via if self.span is None else f"{self.span} ({self.via})"
