"""DSpark's heads and DFlash2's pieces equal those of the speculators package, outputs and gradients.

Where they differ: its recurrent Markov head, trained with `sample_from_anchor` false, runs its state over the anchor's
slot as well, which predicts nothing and which decoding does not visit. Ours starts behind that slot in both phases, and
equals theirs there when theirs is not shown the anchor's slot.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftc.runtime.draft import DraftModel
from draftc.runtime.heads.confidence import ConfidenceHead
from draftc.runtime.heads.markov import GatedMarkovHead, MarkovHead, RecurrentMarkovHead
from draftc.runtime.heads.selector import CandidateSelector
from draftc.runtime.residual.convolved import DynamicKernels, convolve_blocks
from draftc.spec.layout import Dspark
from tests.oracles.outside import assert_equal, assert_same_gradients
from tests.runtime.drafts import gradients, scrambled
from tests.runtime.headed import headed, hidden_states, tables

REASON = "speculators or what it imports is missing"
dspark = pytest.importorskip("speculators.models.dspark.model_definitions", reason=REASON)
dflash2 = pytest.importorskip("speculators.models.dflash2.model_definitions", reason=REASON)

KINDS = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RecurrentMarkovHead}
V, V_DRAFT, RANK, H, N, T = 50, 30, 6, 24, 3, 5


def markov_pair(kind: str) -> tuple[MarkovHead, nn.Module]:
    theirs = dspark.MarkovHead(
        verifier_vocab_size=V, draft_vocab_size=V_DRAFT, markov_rank=RANK, hidden_size=H, head_type=kind
    )
    torch.manual_seed(1)
    theirs = scrambled(theirs.double())
    ours = KINDS[kind](V, V_DRAFT, RANK, H).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours, theirs


def block() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(N, T, H, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, torch.randint(0, V, (N, T), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_markov_heads(kind: str) -> None:
    ours, theirs = markov_pair(kind)
    hidden, previous = block()
    got = ours.markov_w2(ours.features(hidden, previous))
    want = theirs.block_bias(prev_token_ids=previous, hidden_states=hidden)
    assert_equal(got, want)
    leaves = () if kind == "vanilla" else (hidden,)
    assert_same_gradients(gradients(got, ours, *leaves), gradients(want, theirs, *leaves))


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_step_by_step(kind: str) -> None:
    ours, theirs = markov_pair(kind)
    hidden, previous = block()
    state, found = None, []
    for step in range(T):
        features, state = ours.step_features(hidden[:, step], previous[:, step], state)
        found.append(ours.markov_w2(features))
    assert_equal(torch.stack(found, dim=1), theirs.block_bias(prev_token_ids=previous, hidden_states=hidden))


def test_the_confidence_head() -> None:
    torch.manual_seed(1)
    theirs = scrambled(dspark.ConfidenceHead(H + RANK).double())
    ours = ConfidenceHead(H + RANK).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    rows = torch.randn(N, T, H + RANK, dtype=torch.float64).requires_grad_()
    got, want = ours(rows), theirs(rows)
    assert_equal(got, want)
    assert_same_gradients(gradients(got, ours, rows), gradients(want, theirs, rows))
    assert ours.bfloat16()(rows.bfloat16()).dtype == torch.float32


def whole_head(
    draft: DraftModel, hidden: Tensor, tokens: Tensor, lm_head: nn.Module, skipped: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Corrected logits and confidence `[N, b, ..]` as their model assembles them from blocks of `tokens [N, b]`.

    The Markov head is not shown the first `skipped` slots.
    """
    config = draft.config
    markov = dspark.MarkovHead(
        verifier_vocab_size=config.vocab_size,
        draft_vocab_size=config.draft_vocab_size,
        markov_rank=config.markov_rank,
        hidden_size=config.hidden_size,
        head_type=config.markov_head_type,
    ).double()
    markov.load_state_dict(draft.markov_head.state_dict(), strict=True)
    before = tokens if config.sample_from_anchor else torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
    bias = markov.block_bias(prev_token_ids=before[:, skipped:], hidden_states=hidden[:, skipped:])
    logits = lm_head(hidden) + F.pad(bias, (0, 0, skipped, 0))
    if draft.confidence_head is None:
        return logits, None
    head = dspark.ConfidenceHead(draft.confidence_head.proj.in_features).double()
    head.load_state_dict(draft.confidence_head.state_dict(), strict=True)
    rows = torch.cat([hidden, markov.prev_embeddings(before)], dim=-1) if config.confidence_head_with_markov else hidden
    return logits, head(rows)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    ("kind", "confidence", "with_markov"),
    [("vanilla", True, True), ("gated", True, False), ("rnn", True, True), ("vanilla", False, None)],
)
def test_whole_blocks(ahead: bool, kind: str, confidence: bool, with_markov: bool | None) -> None:
    draft = headed(Dspark(ahead, 6, kind, confidence, with_markov))
    _, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=1, blocks=3)
    tokens = torch.randint(0, 100, (3, 4), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        found = draft.block_scores(hidden, tokens[None, :, : draft.slots.steps], lm_head)
        want, sure = whole_head(draft, hidden.view(3, 4, -1), tokens, lm_head)
    if not ahead and kind == "rnn":
        assert (found.scores[0] - want[:, 1:]).abs().max() > 1e-3
        with torch.no_grad():
            want, sure = whole_head(draft, hidden.view(3, 4, -1), tokens, lm_head, skipped=1)
    assert_equal(found.scores[0], want[:, draft.slots.first :])
    assert (found.confidence is None) == (sure is None)
    if sure is not None:
        assert_equal(found.confidence[0], sure[:, draft.slots.first :])


@pytest.mark.parametrize(("taps", "group"), [(1, 24), (2, 8), (4, 1)])
def test_convolutions_around_a_sublayer(taps: int, group: int) -> None:
    theirs = dflash2.GroupedDynamicCausalConv(H, kernel_size=taps, group_size=group, block_size=4)
    torch.manual_seed(1)
    theirs = scrambled(theirs.double())
    ours = DynamicKernels(H, taps, group).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    generator = torch.Generator().manual_seed(2)
    normed = torch.randn(2, 12, H, generator=generator, dtype=torch.float64).requires_grad_()
    out = torch.randn(2, 12, H, generator=generator, dtype=torch.float64).requires_grad_()
    before, after = ours(normed)
    got = torch.stack(
        [convolve_blocks(normed, ours.base_kernel[0], before, 4), convolve_blocks(out, ours.base_kernel[1], after, 4)]
    )
    prepared, kernel = theirs.prepare(normed)
    want = torch.stack([prepared, theirs.finish(out, kernel)])
    assert_equal(got, want)
    assert_same_gradients(gradients(got, ours, normed, out), gradients(want, theirs, normed, out))


def test_scores_of_candidates() -> None:
    theirs = dflash2.CandidateSelector(vocab_size=V, hidden_size=H, rank=RANK, top_k=7)
    torch.manual_seed(1)
    theirs = scrambled(theirs.double())
    ours = CandidateSelector(V, H, RANK, 7).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    hidden, previous = block()
    logits = torch.randn(N, T, V, dtype=torch.float64).requires_grad_()
    unary = ours.candidates(logits)
    got = unary.scores + ours.transition(ours.features(hidden, previous), unary.candidates)
    candidates, _ = theirs.select(logits, hidden, previous)
    assert torch.equal(candidates.sort(-1).values, unary.candidates)
    want = theirs.score_candidates(logits, hidden, previous, unary.candidates)
    assert_equal(got, want)
    assert_same_gradients(gradients(got, ours, hidden, logits), gradients(want, theirs, hidden, logits))
