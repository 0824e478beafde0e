"""The objective of each family, and the others that it can be trained with instead."""

from dataclasses import dataclass

from draftc.runtime.objectives.cross_entropy import CrossEntropy
from draftc.runtime.objectives.domino import domino_objective
from draftc.runtime.objectives.dpace import CREDITS, Dpace
from draftc.runtime.objectives.dspark import ConfidenceLoss, dspark_objective
from draftc.runtime.objectives.lk import LK_FORMS, AcceptanceLoss
from draftc.runtime.objectives.selector import SelectorCrossEntropy
from draftc.runtime.objectives.steps import ObjectiveError
from draftc.runtime.objectives.term import Objective, Ramp, Term, objective_of
from draftc.runtime.objectives.weights import Fading, PrefixFading

OWN = "own"
CE = "ce"
OF_LABELS = "-labels"
LOSSES = (OWN, CE, *CREDITS, *(f"lk-{form}" for form in LK_FORMS), *(f"lk-{form}{OF_LABELS}" for form in LK_FORMS))
USUAL_GAMMA = {"dflash": 7.0, "dflash2": 7.0, "domino": 7.0, "dspark": 4.0}  # what public recipes train with


@dataclass(frozen=True, slots=True)
class ObjectiveOptions:
    """What can be chosen about an objective.

    `loss` is one of `LOSSES`: the family's own; cross-entropy; D-PACE or a variant; an LK loss against the target's
    distribution, or (`-labels`) against the tokens of the data. `gamma` fades steps; None: as usual for the family,
    0: not at all. `lambda_start` and `lambda_decay_ratio` are Domino's, `ce`, `l1` and `confidence` DSpark's,
    `selector` is DFlash2's, which begins after `selector_warmup` of the steps and grows for `selector_ramp` of them.
    """

    loss: str = OWN
    gamma: float | None = None
    dpace_alpha: float = 0.5
    kl_scale: float = 1.0
    kl_decay: float = 3.0
    lambda_start: float = 1.0
    lambda_decay_ratio: float = 0.5
    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    selector: float = 1.0
    selector_warmup: float = 0.0
    selector_ramp: float = 0.0


def objective_for(family: str, has_confidence: bool, options: ObjectiveOptions) -> Objective:
    """The objective of a draft of `family`; `has_confidence`: it has a confidence head.

    Raises `ObjectiveError` for a loss that does not exist, or a number that does not fit.
    """
    gamma = USUAL_GAMMA[family] if options.gamma is None else options.gamma or None
    if family == "dspark" and options.loss == OWN:
        return dspark_objective(gamma, has_confidence, options.ce, options.l1, options.confidence)
    term = main_term(family, gamma, options)
    if family == "domino":
        return domino_objective(gamma, options.lambda_start, options.lambda_decay_ratio, term)
    if family == "dflash2" and options.selector:
        begin, end = options.selector_warmup, options.selector_warmup + options.selector_ramp
        return objective_of((term, 1.0), (SelectorCrossEntropy(Fading(gamma)), Ramp(0.0, options.selector, begin, end)))
    if family == "dspark" and has_confidence and options.confidence:
        return objective_of((term, 1.0), (ConfidenceLoss(PrefixFading(gamma)), options.confidence))
    return objective_of((term, 1.0))


def main_term(family: str, gamma: float | None, options: ObjectiveOptions) -> Term:
    """The term of the final logits that `options.loss` names."""
    weigh = PrefixFading(gamma) if family == "dspark" else Fading(gamma)
    if options.loss in (OWN, CE):
        return CrossEntropy(weigh)
    if options.loss in CREDITS:
        return Dpace(options.loss, options.dpace_alpha)
    if options.loss in LOSSES:
        form = options.loss.removeprefix("lk-").removesuffix(OF_LABELS)
        of_target = not options.loss.endswith(OF_LABELS)
        return AcceptanceLoss(form, of_target, options.kl_scale, options.kl_decay, weigh)
    raise ObjectiveError(f"there is no loss {options.loss}; there are {', '.join(LOSSES)}")
