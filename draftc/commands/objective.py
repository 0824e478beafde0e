"""`--objective KEY=VALUE`: numbers of the objective that one family or one loss has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftc.commands.failure import CommandError
from draftc.spec.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the objective: what it means, its largest value, and the family or the losses that have it."""

    meaning: str
    most: float = 1.0
    family: str | None = None
    losses: str = ""

    def unused(self, family: str, loss: str) -> str | None:
        """Why the number would change nothing in a draft of `family` trained by `loss`; None: it does."""
        if self.family not in (None, family):
            return f"it is {self.family}'s, and this layout is of family {family}"
        if not loss.startswith(self.losses):
            return f"it belongs to --loss {self.losses}, and this run has --loss {loss}"
        return None


NUMBERS = {
    "dpace_alpha": Number("floor of D-PACE's confidences", losses="dpace"),
    "lambda_start": Number("share of domino's base term at the start", family="domino"),
    "lambda_decay_ratio": Number("share of the steps in which that falls to 0", family="domino"),
    "ce": Number("coefficient of dspark's cross-entropy", math.inf, "dspark", "own"),
    "l1": Number("coefficient of dspark's distance from the target", math.inf, "dspark", "own"),
    "selector_warmup": Number("share of the steps before dflash2's selector term", family="dflash2"),
    "selector_ramp": Number("share of the steps in which that term grows", family="dflash2"),
}
ELSEWHERE = {
    "loss": "--loss", "gamma": "--gamma", "kl_scale": "--kl-scale", "kl_decay": "--kl-decay",
    "confidence": "--confidence", "selector": "--selector",
}  # fmt: skip
HELP = f"Repeatable. {'; '.join(f'{key}: {number.meaning}' for key, number in NUMBERS.items())}."


def objective_numbers(given: Sequence[str], family: str, loss: str) -> dict[str, float]:
    """Read `key=value` words for a draft of `family` trained by `loss`, as arguments of `ObjectiveOptions`.

    Raises CommandError for a word of another form, an unknown, repeated or unused key, and a value out of its range.
    """
    found: dict[str, float] = {}
    for word in given:
        key, equals, value = (part.strip() for part in word.partition("="))
        number = number_of(key)
        if not equals:
            raise CommandError(f"--objective {word} has no value", f"write --objective {key}=0.5")
        if key in found:
            raise CommandError(f"--objective {key} is given twice", "leave one of them out")
        reason = number.unused(family, loss)
        if reason is not None:
            raise CommandError(f"--objective {key} would change nothing: {reason}", "leave it out")
        found[key] = read(key, value, number.most)
    return found


def number_of(key: str) -> Number:
    """The number called `key`. Raises CommandError for an unknown one, with the nearest name."""
    if key in NUMBERS:
        return NUMBERS[key]
    if key in ELSEWHERE:
        raise CommandError(f"--objective has no {key}, which is an option itself", f"use {ELSEWHERE[key]}")
    way_out = did_you_mean(key, NUMBERS) or f"there are {', '.join(NUMBERS)}"
    raise CommandError(f"--objective has no {key or 'empty key'}", way_out)


def read(key: str, text: str, most: float) -> float:
    """The finite number that `text` writes, from 0 to `most`. Raises CommandError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value <= most and math.isfinite(value)):
        bounds = "at least 0" if math.isinf(most) else f"from 0 to {most:g}"
        raise CommandError(f"--objective {key}={text} is out of range", f"{key} is a number, {bounds}")
    return value
