"""Every term against its formula, written as loops over floats in float64; and against speculators where it agrees."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftc.runtime.objectives.cross_entropy import CrossEntropy
from draftc.runtime.objectives.domino import BaseCrossEntropy, domino_objective
from draftc.runtime.objectives.dpace import Dpace
from draftc.runtime.objectives.dspark import ConfidenceLoss, TeacherDistance, dspark_objective
from draftc.runtime.objectives.lk import AcceptanceLoss
from draftc.runtime.objectives.selector import SelectorCrossEntropy
from draftc.runtime.objectives.steps import ObjectiveError, Scored, Steps
from draftc.runtime.objectives.term import Ramp, Term, objective_of
from draftc.runtime.objectives.weights import Fading, PrefixFading

BLOCKS, STEPS, WORDS, TOP = 5, 4, 9, 3
GAMMA = 2.5


def random_steps(seed: int = 0) -> Steps:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, WORDS, (BLOCKS, STEPS), generator=generator)
    values = torch.tensor([0.0, 0.4, 0.7, 1.0], dtype=torch.float64)
    weights = values[torch.randint(0, 4, (BLOCKS, STEPS), generator=generator)]
    weights[0] = 1.0
    return Steps(labels, weights, weights > 0, None, 3)


def random_scores(steps: Steps, seed: int = 1) -> Scored:
    generator = torch.Generator().manual_seed(seed)
    logits, base, teacher = torch.randn(3, BLOCKS, STEPS, WORDS, generator=generator, dtype=torch.float64) * 2
    top = logits.topk(TOP, dim=-1)
    scores = top.values + torch.randn(top.values.shape, generator=generator, dtype=torch.float64)
    confidence = torch.randn(BLOCKS, STEPS, generator=generator, dtype=torch.float64)
    return Scored(
        logits.requires_grad_(), base.requires_grad_(), scores.requires_grad_(), top.indices,
        confidence.requires_grad_(), teacher,
    )  # fmt: skip


def softmax(row: Tensor) -> list[float]:
    exps = [math.exp(x) for x in row.tolist()]
    return [e / sum(exps) for e in exps]


def faded(steps: Steps, m: int, k: int) -> float:
    return steps.weights[m, k].item() * math.exp(-k / GAMMA)


def prefixed(steps: Steps, m: int, k: int) -> float:
    return float(all(steps.weights[m, i].item() > 0.5 for i in range(k + 1))) * math.exp(-k / GAMMA)


def q_label(logits: Tensor, steps: Steps, m: int, k: int) -> float:
    return softmax(logits[m, k])[steps.labels[m, k]]


def summed(value: Callable[[int, int], float]) -> float:
    return sum(value(m, k) for m in range(BLOCKS) for k in range(STEPS))


def by_hand(name: str, steps: Steps, scored: Scored) -> tuple[float, float]:
    """Numerator and denominator of the term called `name`."""
    pair = {
        "overlap": lambda m, k: sum(map(min, softmax(scored.logits[m, k]), softmax(scored.teacher[m, k]))),
        "kl": lambda m, k: sum(
            p * math.log(p / q)
            for p, q in zip(softmax(scored.teacher[m, k]), softmax(scored.logits[m, k]), strict=True)
        ),
        "l1": lambda m, k: sum(
            abs(p - q) for p, q in zip(softmax(scored.teacher[m, k]), softmax(scored.logits[m, k]), strict=True)
        ),
    }
    weigh, loss = {
        "ce": (faded, lambda m, k: -math.log(q_label(scored.logits, steps, m, k))),
        "base": (faded, lambda m, k: -math.log(q_label(scored.base, steps, m, k))),
        "l1": (prefixed, pair["l1"]),
        "confidence": (prefixed, lambda m, k: bce(scored.confidence[m, k].item(), 1 - pair["l1"](m, k) / 2)),
        "selector": (faded, lambda m, k: selector(steps, scored, m, k)),
        "tv": (faded, lambda m, k: 1 - pair["overlap"](m, k)),
        "alpha": (faded, lambda m, k: -math.log(pair["overlap"](m, k))),
        "lambda": (faded, lambda m, k: mixed(pair["kl"](m, k), pair["overlap"](m, k))),
        "tv-label": (faded, lambda m, k: 1 - q_label(scored.logits, steps, m, k)),
        "alpha-label": (faded, lambda m, k: -math.log(q_label(scored.logits, steps, m, k))),
        "lambda-label": (
            faded,
            lambda m, k: mixed(-math.log(q_label(scored.logits, steps, m, k)), q_label(scored.logits, steps, m, k)),
        ),
    }[name]
    top = summed(lambda m, k: weigh(steps, m, k) * loss(m, k) if weigh(steps, m, k) else 0.0)
    return top, summed(lambda m, k: weigh(steps, m, k))


def bce(logit: float, target: float) -> float:
    p = 1 / (1 + math.exp(-logit))
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))


def mixed(kl: float, rate: float) -> float:
    share = 0.8 * math.exp(-2.0 * rate)
    return share * kl + (1 - share) * (1 - rate)


def selector(steps: Steps, scored: Scored, m: int, k: int) -> float:
    candidates, label = scored.candidates[m, k].tolist(), steps.labels[m, k].item()
    if label not in candidates:
        return 0.0
    return -math.log(softmax(scored.scores[m, k])[candidates.index(label)])


FADING, PREFIXED = Fading(GAMMA), PrefixFading(GAMMA)
TERMS: dict[str, Term] = {
    "ce": CrossEntropy(FADING),
    "base": BaseCrossEntropy(FADING),
    "l1": TeacherDistance(PREFIXED),
    "confidence": ConfidenceLoss(PREFIXED),
    "selector": SelectorCrossEntropy(FADING),
    **{form: AcceptanceLoss(form, True, 0.8, 2.0, FADING) for form in ("tv", "alpha", "lambda")},
    **{f"{form}-label": AcceptanceLoss(form, False, 0.8, 2.0, FADING) for form in ("tv", "alpha", "lambda")},
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_their_formulas(name: str) -> None:
    steps = random_steps()
    scored = random_scores(steps)
    top, bottom = by_hand(name, steps, scored)
    assert TERMS[name].numerator(steps, scored).item() == pytest.approx(top, rel=1e-12)
    assert TERMS[name].denominator(steps).item() == pytest.approx(bottom, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in TERMS if not name.startswith("lambda")])
def test_gradients_are_differences(name: str) -> None:
    steps = random_steps()
    scored = random_scores(steps)
    moved = {"base": "base", "confidence": "confidence", "selector": "scores"}.get(name, "logits")
    leaf = getattr(scored, moved)
    (gradient,) = torch.autograd.grad(TERMS[name].numerator(steps, scored), leaf)
    step = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64) * 1e-6
    with torch.no_grad():
        up, down = (
            TERMS[name].numerator(steps, Scored(**{**fields_of(scored), moved: leaf + s})) for s in (step, -step)
        )
    assert ((up - down) / 2).item() == pytest.approx((gradient * step).sum().item(), rel=1e-5, abs=1e-13)


def fields_of(scored: Scored) -> dict[str, Tensor]:
    return {name: getattr(scored, name) for name in Scored.__dataclass_fields__}


def test_the_share_of_kl_is_no_path_for_gradients() -> None:
    steps = random_steps()
    scored = random_scores(steps)
    (got,) = torch.autograd.grad(TERMS["lambda"].numerator(steps, scored), scored.logits)
    q, p = scored.logits.softmax(-1), scored.teacher.softmax(-1)
    rate = torch.minimum(p, q).sum(-1)
    share = 0.8 * torch.exp(-2.0 * rate.detach())
    kl = (p * (p.log() - q.log())).sum(-1)
    (want,) = torch.autograd.grad((FADING(steps) * (share * kl + (1 - share) * (1 - rate))).sum(), scored.logits)
    assert torch.allclose(got, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("credit", ["dpace", "dpace-cumulative-confidence-only", "dpace-continuation-value-only"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_dpace_is_its_formula(credit: str, alpha: float) -> None:
    steps = random_steps()
    scored = random_scores(steps)
    total = 0.0
    for m in range(BLOCKS):
        valid = [steps.weights[m, k].item() > 0 for k in range(STEPS)]
        s = [(1 - alpha) * q_label(scored.logits, steps, m, k) + alpha if valid[k] else 1.0 for k in range(STEPS)]
        reached = [math.prod(s[: k + 1]) for k in range(STEPS)]
        for k in range(STEPS):
            beyond = sum(reached[i] * valid[i] for i in range(k, STEPS))
            weight = {
                "dpace": beyond,
                "dpace-cumulative-confidence-only": reached[k],
                "dpace-continuation-value-only": beyond / reached[k],
            }[credit]
            total += steps.weights[m, k].item() * weight * -math.log(q_label(scored.logits, steps, m, k))
    term = Dpace(credit, alpha)
    assert term.numerator(steps, scored).item() == pytest.approx(total, rel=1e-12)
    assert term.denominator(steps).item() == 3


def test_the_confidence_of_dpace_is_no_path_for_gradients() -> None:
    steps = random_steps()
    scored = random_scores(steps)
    (got,) = torch.autograd.grad(Dpace("dpace").numerator(steps, scored), scored.logits)
    log_q = scored.logits.log_softmax(-1).gather(-1, steps.labels[..., None]).squeeze(-1)
    s = torch.where(steps.weights > 0, 0.5 * log_q.detach().exp() + 0.5, 1)
    reached = s.cumprod(-1)
    credit = (reached * (steps.weights > 0)).flip(-1).cumsum(-1).flip(-1)
    (want,) = torch.autograd.grad(-(steps.weights * credit * log_q).sum(), scored.logits)
    assert torch.allclose(got, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("progress", "lam"), [(0.0, 0.8), (0.25, 0.4), (0.5, 0.0), (0.9, 0.0)])
def test_domino_shares_the_loss_by_its_schedule(progress: float, lam: float) -> None:
    steps = random_steps()
    scored = random_scores(steps)
    objective = domino_objective(GAMMA, start=0.8, decay_ratio=0.5)
    loss = objective.combine(objective.numerators(steps, scored), objective.denominators(steps), progress)
    final, base = (by_hand(name, steps, scored) for name in ("ce", "base"))
    assert loss.item() == pytest.approx((1 - lam) * final[0] / final[1] + lam * base[0] / base[1], rel=1e-12)


def test_dspark_is_the_weighted_sum_of_its_terms() -> None:
    steps = random_steps()
    scored = random_scores(steps)
    objective = dspark_objective(GAMMA, has_confidence=True)
    loss = objective.combine(objective.numerators(steps, scored), objective.denominators(steps), 0.3)
    l1, confidence = (by_hand(name, steps, scored) for name in ("l1", "confidence"))
    ce = summed(lambda m, k: prefixed(steps, m, k) * -math.log(q_label(scored.logits, steps, m, k)))
    assert loss.item() == pytest.approx((0.1 * ce + 0.9 * l1[0] + confidence[0]) / l1[1], rel=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_how_a_batch_is_split_changes_neither_loss_nor_gradients(parts: int) -> None:
    steps = random_steps()
    objective = objective_of(*((term, 1 + n / 3) for n, term in enumerate([*TERMS.values(), Dpace()])))
    whole = random_scores(steps)
    loss = objective.combine(objective.numerators(steps, whole), objective.denominators(steps), 0.1)
    (want,) = torch.autograd.grad(loss, whole.logits)
    bounds = [BLOCKS * i // parts for i in range(parts + 1)]
    documents = [3 if i == 0 else 0 for i in range(parts)]
    pieces = [
        (Steps(*(getattr(steps, n)[a:b] for n in ("labels", "weights", "supervised")), None, d), a, b)
        for a, b, d in zip(bounds[:-1], bounds[1:], documents, strict=True)
    ]
    totals = sum(objective.denominators(piece) for piece, _, _ in pieces)
    split = random_scores(steps)
    losses = [
        objective.combine(
            objective.numerators(piece, Scored(*(value[a:b] for value in fields_of(split).values()))), totals, 0.1
        )
        for piece, a, b in pieces
    ]
    (got,) = torch.autograd.grad(sum(losses), split.logits)
    assert sum(losses).item() == pytest.approx(loss.item(), rel=1e-12)
    assert torch.allclose(got, want, rtol=1e-11, atol=1e-15)


def test_what_cannot_be_evaluated_is_said() -> None:
    steps = random_steps()
    bare = Scored(random_scores(steps).logits, random_scores(steps).base)
    for name in ("l1", "confidence", "selector", "tv"):
        with pytest.raises(ObjectiveError, match="needs"):
            TERMS[name].numerator(steps, bare)
    empty = steps.with_weights(torch.zeros_like(steps.weights))
    objective = objective_of((CrossEntropy(), 1.0))
    with pytest.raises(ObjectiveError, match="ce"):
        objective.combine(torch.zeros(1), objective.denominators(empty), 0.0)
    for wrong in (
        lambda: Fading(0.0),
        lambda: Dpace("pace"),
        lambda: Dpace(alpha=1.5),
        lambda: AcceptanceLoss("beta"),
        lambda: AcceptanceLoss(kl_scale=1.2),
        lambda: AcceptanceLoss(kl_decay=-1),
        lambda: domino_objective(None, start=1.2),
        lambda: dspark_objective(None, True, ce=-0.1),
        lambda: dspark_objective(None, False, ce=0, l1=0),
    ):
        with pytest.raises(ObjectiveError):
            wrong()


def test_a_ramp_waits_climbs_and_stays() -> None:
    ramp = Ramp(0.0, 2.0, 0.25, 0.75)
    assert [ramp(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert Ramp(1.0, 0.0, 0.0, 0.0)(0.0) == 0.0


def test_speculators_agree() -> None:
    eager = pytest.importorskip("speculators.losses.eager", reason="speculators or what it imports is missing")
    steps = random_steps()
    scored = random_scores(steps)
    logits, teacher = (x.detach().float()[:1] for x in (scored.logits, scored.teacher))
    one = Steps(*(getattr(steps, n)[:1] for n in ("labels", "weights", "supervised")), None, 1)
    for theirs, ours in (
        (eager.tv_loss, AcceptanceLoss("tv")),
        (eager.neg_log_acceptance_loss, AcceptanceLoss("alpha")),
        (eager.lk_hybrid_loss, AcceptanceLoss("lambda", kl_scale=1.0, kl_decay=3.0)),
    ):
        want = (theirs(logits, teacher) * one.weights).sum()
        got = ours.numerator(one, Scored(logits, logits, teacher=teacher))
        assert got.item() == pytest.approx(want.item(), rel=1e-5)
