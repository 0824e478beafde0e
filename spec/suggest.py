"""Did you mean: the nearest of the words that would have been right."""

from collections.abc import Iterable

NEAR = 85.0  # WRatio from which a word counts as a misspelling of another
ROUGHLY = 75.0  # the same for short words, and for long names that are remembered by parts


def score(word: str, other: str) -> float:
    """Return how alike two words are, 0 to 100, letter case aside (rapidfuzz `WRatio`)."""
    from rapidfuzz import fuzz

    return float(fuzz.WRatio(word.casefold(), other.casefold()))


def is_near_miss(word: str, other: str) -> bool:
    """Whether `word` looks like a misspelling of `other`."""
    return bool(word) and word != other and score(word, other) >= NEAR


def nearest(word: str, known: Iterable[str], cutoff: float = NEAR) -> str | None:
    """Return the word of `known` that is most like `word`, or None when none reaches `cutoff`."""
    if not word:
        return None
    best = max(known, key=lambda other: (score(word, other), _plain_score(word, other)), default=None)
    return best if best is not None and score(word, best) >= cutoff else None


def did_you_mean(word: str, known: Iterable[str], cutoff: float = NEAR) -> str:
    """Return the sentence "did you mean `x`?" for a `help`, empty when nothing is near."""
    best = nearest(word, known, cutoff)
    return f"did you mean `{best}`?" if best is not None else ""


def _plain_score(word: str, other: str) -> float:
    from rapidfuzz import fuzz

    return float(fuzz.ratio(word.casefold(), other.casefold()))
