"""Dim is the ring of integer polynomials, and prints sizes the way their authors speak of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftc.compiler.dims import Dim, Lengths, as_dim, product, shown, symbols, total

B, N, Q, C, P = symbols(16)
words = st.sampled_from(["", "B", "N", "C", "P", "BN", "BC", "NN", "BCN"])
polynomials = st.dictionaries(words, st.integers(-9, 9), max_size=4).map(lambda terms: Dim.of(terms, 16))
lengths = st.builds(Lengths, *(st.integers(0, 11) for _ in range(4)))


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (Q, "Q"),
        (C + Q, "C+Q"),
        (Q + P + C, "P+C+Q"),
        (B * N, "BN"),
        (B * Q, "BQ"),
        (C + 3, "C+3"),
        (C - 1, "C-1"),
        (2 * Q, "2Q"),
        (8 * N, "8N"),
        (N * 17, "17N"),
        (-C, "-C"),
        (as_dim(2560), "2560"),
        (C - C, "0"),
        (2 * B * N * 16 * C, "2BQC"),
    ],
)
def test_print(dim: Dim, text: str) -> None:
    assert str(dim) == text


def test_shapes_print_like_comments() -> None:
    assert shown((B, Q, as_dim(2560))) == "[B, Q, 2560]"


@given(polynomials, polynomials, lengths)
def test_arithmetic_agrees_with_numbers(left: Dim, right: Dim, at: Lengths) -> None:
    a, b = left.evaluate(at), right.evaluate(at)
    assert (left + right).evaluate(at) == a + b
    assert (left - right).evaluate(at) == a - b
    assert (left * right).evaluate(at) == a * b
    assert (3 - left * 2).evaluate(at) == 3 - 2 * a


@given(polynomials, polynomials, polynomials)
def test_equal_polynomials_are_equal_and_hash_alike(x: Dim, y: Dim, z: Dim) -> None:
    assert (x + y) * z == z * x + y * z
    assert hash((x + y) * z) == hash(z * x + y * z)
    assert x - x == 0
    assert hash(x - x) == hash(0)


@given(polynomials, words.filter(bool), st.integers(1, 9))
def test_a_quotient_times_its_divisor_is_the_dividend(x: Dim, word: str, count: int) -> None:
    divisor = Dim.of({word: count})
    assert (x * divisor).divided(divisor) == x


@given(polynomials, polynomials)
def test_every_quotient_found_is_exact(x: Dim, y: Dim) -> None:
    quotient = x.divided(y)
    assert quotient is None or quotient * y == x


def test_quotients() -> None:
    assert (B * Q).divided(as_dim(16)) == B * N
    assert (3 * (C + Q)).divided(C + Q) == 3
    assert (C + 1).divided(C) is None
    assert (C + Q).divided(as_dim(0)) is None
    assert (5 * C).divided(as_dim(2)) is None
    assert C.divided(B) is None


def test_equal_sizes_are_equal_however_they_are_written() -> None:
    assert Q == 16 * N
    assert C != Q
    assert as_dim(7) == 7
    assert C != "C"


def test_totals_and_products() -> None:
    assert total([B, C, 1 * C]) == B + 2 * C
    assert total([]) == 0
    assert product([B, Q, as_dim(4)]) == 64 * B * N
    assert product([]) == 1


def test_constants() -> None:
    assert as_dim(7).constant == 7
    assert (C - C).constant == 0
    assert (C + 1).constant is None
