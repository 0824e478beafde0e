"""Sizes of tensors and costs of operations as polynomials with integer coefficients.

The letters are B (batch), N (blocks a row), C (context rows of the call) and P (rows that the memory kept). Q, the
draft rows of a call, is no letter of its own but `block_size * N`, so that equal sizes are equal polynomials.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

LETTERS = "PCQNB"
FACTORS = "BNQPC"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers for the letters: batch, blocks a row, context rows of the call, rows kept by the memory."""

    batch: int
    blocks: int
    context: int
    past: int = 0

    @property
    def letters(self) -> dict[str, int]:
        """The numbers by letter."""
        return {"B": self.batch, "N": self.blocks, "C": self.context, "P": self.past}


@dataclass(frozen=True, slots=True, eq=False)
class Dim:
    """A polynomial: `terms` maps products of letters (`BN`, sorted; empty for the constant) to non-zero coefficients.

    `block` is the number of slots for which Q stands as `block * N`, 0 where nobody said; it decides the print only.
    """

    terms: tuple[tuple[str, int], ...]
    block: int = field(default=0)

    @classmethod
    def of(cls, terms: Mapping[str, int], block: int = 0) -> "Dim":
        """Return the polynomial of `terms`, zero coefficients dropped."""
        return cls(tuple(sorted((letters, count) for letters, count in terms.items() if count)), block)

    @classmethod
    def number(cls, value: int) -> "Dim":
        """Return a constant."""
        return cls.of({"": value})

    @property
    def constant(self) -> int | None:
        """The value of a polynomial without letters, None with letters."""
        coefficients = dict(self.terms)
        return None if coefficients.keys() - {""} else coefficients.get("", 0)

    def __add__(self, other: "Dim | int") -> "Dim":
        other = as_dim(other)
        mine, theirs = dict(self.terms), dict(other.terms)
        total = {letters: mine.get(letters, 0) + theirs.get(letters, 0) for letters in mine.keys() | theirs.keys()}
        return Dim.of(total, self.block or other.block)

    def __mul__(self, other: "Dim | int") -> "Dim":
        other = as_dim(other)
        total: dict[str, int] = {}
        for left, count in self.terms:
            for right, times in other.terms:
                letters = "".join(sorted(left + right))
                total[letters] = total.get(letters, 0) + count * times
        return Dim.of(total, self.block or other.block)

    def __neg__(self) -> "Dim":
        return self * -1

    def __sub__(self, other: "Dim | int") -> "Dim":
        return self + -as_dim(other)

    def __rsub__(self, other: int) -> "Dim":
        return as_dim(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim | int) and self.terms == as_dim(other).terms

    def __hash__(self) -> int:
        value = self.constant
        return hash(self.terms) if value is None else hash(value)

    def divided(self, other: "Dim") -> "Dim | None":
        """Return the exact quotient, None when there is none or when finding it would need more than one division step.

        A divisor of one term divides each term; a divisor of several divides its own multiples.
        """
        if not other.terms:
            return None
        quotients = {_quotient(mine, theirs) for mine, theirs in zip(self.terms, other.terms, strict=False)}
        if len(other.terms) > 1:
            whole = len(self.terms) == len(other.terms) and len(quotients) == 1
            return _polynomial(quotients, self.block) if whole else None
        return _polynomial([_quotient(term, other.terms[0]) for term in self.terms], self.block or other.block)

    def evaluate(self, lengths: Lengths) -> int:
        """Return the number at these lengths."""
        letters = lengths.letters
        return sum(count * prod(letters[letter] for letter in word) for word, count in self.terms)

    def __str__(self) -> str:
        shown = sorted((self._shown(word, count) for word, count in self.terms), key=_order)
        words = [_word(word, count) for word, count in shown]
        return "+".join(words).replace("+-", "-") or "0"

    __repr__ = __str__

    def _shown(self, word: str, count: int) -> tuple[str, int]:
        """Write `block * N` as Q."""
        if self.block and "N" in word and count % self.block == 0:
            return word.replace("N", "Q", 1), count // self.block
        return word, count


class Symbols(NamedTuple):
    """The letters of a layout, and Q."""

    B: Dim
    N: Dim
    Q: Dim
    C: Dim
    P: Dim


def symbols(block_size: int) -> Symbols:
    """Return the letters for blocks of `block_size` slots."""
    b, n, c, p = (Dim.of({letter: 1}, block_size) for letter in "BNCP")
    return Symbols(b, n, n * block_size, c, p)


def as_dim(value: Dim | int) -> Dim:
    """Return `value` as a polynomial."""
    return value if isinstance(value, Dim) else Dim.number(value)


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of `dims`, 1 of none."""
    result = Dim.number(1)
    for dim in dims:
        result = result * dim
    return result


def total(dims: Iterable[Dim]) -> Dim:
    """Return the sum of `dims`, 0 of none."""
    result = Dim.number(0)
    for dim in dims:
        result = result + dim
    return result


def shown(shape: Iterable[Dim]) -> str:
    """Return a shape as it stands in comments: `[B, Q, 2560]`."""
    return f"[{', '.join(str(dim) for dim in shape)}]"


def _quotient(term: tuple[str, int], divisor: tuple[str, int]) -> tuple[str, int] | None:
    (word, count), (letters, times) = term, divisor
    if count % times:
        return None
    for letter in letters:
        if letter not in word:
            return None
        word = word.replace(letter, "", 1)
    return word, count // times


def _polynomial(terms: Collection[tuple[str, int] | None], block: int) -> Dim | None:
    found = [term for term in terms if term is not None]
    return Dim.of(dict(found), block) if len(found) == len(terms) else None


def _order(term: tuple[str, int]) -> tuple[bool, int, int, str]:
    """Order of a sum: P, C, Q, N, B, then products, the constant last."""
    word, _ = term
    return (not word, len(word), LETTERS.index(word[0]) if word else 0, word)


def _word(word: str, count: int) -> str:
    letters = "".join(sorted(word, key=FACTORS.index))
    if not letters:
        return str(count)
    return letters if count == 1 else f"-{letters}" if count == -1 else f"{count}{letters}"
