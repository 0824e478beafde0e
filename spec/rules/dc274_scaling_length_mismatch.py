"""A scaled rope reaches factor times its original length, which should be the length that the draft is built for."""

from collections.abc import Iterator

from draftc.spec.diagnostic import Code, Diagnostic, Severity
from draftc.spec.parts import Parts
from draftc.spec.rules.base import distinct, finding, integer, number, top
from draftc.spec.rules.ropes import Scaled, scaled

CODE = Code("DC274", "scaling-length-mismatch", Severity.WARNING)


def check(parts: Parts) -> Iterator[Diagnostic]:
    """Find yarn and longrope scalings of another length; llama3 scales beyond its length on purpose."""
    longest = integer(parts, "max_position_embeddings")
    if longest is not None:
        each_scaled = scaled(parts, "yarn", "longrope")
        yield from distinct(found for each in each_scaled for found in _mismatches(parts, each, longest))


def _mismatches(parts: Parts, each: Scaled, longest: int) -> Iterator[Diagnostic]:
    factor, original = each.given("factor"), each.given("original_max_position_embeddings")
    if factor is None or original is None or original >= longest or round(factor * original) == longest:
        return
    yield finding(
        CODE,
        f"factor {number(factor)} x original_max_position_embeddings {original} = {number(factor * original)},"
        f" max_position_embeddings is {longest}",
        each.scaling_fact("factor"),
        [each.scaling_fact("original_max_position_embeddings"), top(parts, "max_position_embeddings")],
        f"make factor x original equal max_position_embeddings: factor {number(_factor(longest, int(original)))}",
    )


def _factor(longest: int, original: int) -> float:
    """The shortest decimal that meets the length."""
    candidates = (round(longest / original, digits) for digits in range(16))
    return next((each for each in candidates if round(each * original) == longest), longest / original)
