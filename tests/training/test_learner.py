"""One forward for all families: slices, packing and recomputation change nothing; weights keep their precision."""

import pytest
import torch
from torch import Tensor

from draftc.runtime.batch import Document, batch_of
from draftc.runtime.objectives.acceptance import acceptance_report
from draftc.runtime.packing import Packing, PackingError, first_fit, one_per_row, trimmed
from draftc.runtime.rows import DraftInputError
from draftc.runtime.train.errors import TrainingError
from draftc.runtime.train.frozen import FrozenVocabulary, OutputHead, TokenTable
from draftc.runtime.train.learner import DraftLearner
from tests.runtime.headed import FAMILIES, headed
from tests.training.material import LENGTHS, documents, features, learner, shape_of, step, vocabulary

SOME = ("dflash", "dflash2", "domino-shifted-prefix", "dspark-rnn", "dspark-own-gated")


def acceptance(trained: DraftLearner, given: list[Document], packing: Packing | None = None) -> Tensor:
    """The acceptance counts of `given`."""
    with torch.no_grad():
        batch = batch_of(given, shape_of(trained.draft), packing)
        return trained.eval()(batch, features(trained.draft, given))[1]


def assert_same(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float = 1e-11) -> None:
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        assert torch.allclose(got[name], gradient, rtol=tolerance, atol=tolerance * gradient.abs().max().item()), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, 5, 100])
def test_slices_add_up_to_the_whole(family: str, size: int) -> None:
    whole, sliced = learner(family), learner(family, chunk_blocks=size)
    given = documents(whole.draft)
    states = features(whole.draft, given)
    want, got = step(whole, given, states), step(sliced, given, states)
    assert got[0].item() == pytest.approx(want[0].item(), rel=1e-12)
    assert_same(got[1], want[1])
    assert torch.allclose(acceptance(sliced, given), acceptance(whole, given), rtol=1e-12)


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("width", [20, 32])
@pytest.mark.parametrize("stack", [("context", "near"), ("scan", "context"), ("scan", "scan")], ids="-".join)
def test_packed_rows_are_padded_rows(family: str, width: int, stack: tuple[str, ...]) -> None:
    trained = learner(family, *stack)
    given = documents(trained.draft)
    states = features(trained.draft, given)
    plan = trimmed(first_fit(LENGTHS, width, gap=trained.draft.document_gap))
    assert plan.is_shared
    padded, packed = step(trained, given, states), step(trained, given, states, plan)
    assert packed[0].item() == pytest.approx(padded[0].item(), rel=1e-12)
    assert_same(packed[1], padded[1])
    assert torch.allclose(acceptance(trained, given, plan), acceptance(trained, given), rtol=1e-12)
    offsets = plan.offsets.tolist()
    for row, numbers in enumerate(plan.rows):
        wanted = [
            anchor + offsets[number]
            for number in numbers
            for anchor in padded[3].anchors[number].tolist()
            if anchor >= 0
        ]
        assert packed[3].anchors[row, : len(wanted)].tolist() == wanted
        assert (packed[3].anchors[row, len(wanted) :] == -1).all()


@pytest.mark.parametrize("stack", [("context", "near"), ("scan", "context")], ids="-".join)
def test_a_document_of_the_same_row_is_not_seen(stack: tuple[str, ...]) -> None:
    trained = learner("dflash", *stack)
    given = documents(trained.draft)
    plan = first_fit(LENGTHS, 32, gap=trained.draft.document_gap)
    batch = batch_of(given, shape_of(trained.draft), plan)
    states = features(trained.draft, given)
    before = trained.hidden(batch, states)
    states.taps[0] += 1.0
    after = trained.hidden(batch, states)
    offset = plan.offsets[0].item()
    own = (batch.starts[0] == offset).repeat_interleave(trained.draft.slots.size)
    assert own.any()
    assert not own.all()
    assert torch.equal(before[0, ~own], after[0, ~own])
    assert (before[0, own] != after[0, own]).any()


def test_a_scanning_layer_refuses_documents_without_a_gap() -> None:
    trained = learner("dflash", "scan")
    given = documents(trained.draft)
    with pytest.raises(DraftInputError, match="leave as many empty"):
        step(trained, given, features(trained.draft, given), first_fit(LENGTHS, 32))


@pytest.mark.parametrize("family", SOME)
def test_static_shapes_change_nothing(family: str) -> None:
    trained = learner(family, "context", "scan")
    given = documents(trained.draft)
    states = features(trained.draft, given)
    usual, wide = step(trained, given, states), step(trained, given, states, one_per_row(LENGTHS, 16, 3))
    assert wide[3].source.shape == (4, 16)
    assert wide[3].anchors.shape == (4, 3)
    assert wide[0].item() == pytest.approx(usual[0].item(), rel=1e-12)
    assert_same(wide[1], usual[1])


def test_a_document_that_fits_no_row_is_refused() -> None:
    for lay in (one_per_row, first_fit):
        with pytest.raises(PackingError, match="11 tokens"):
            lay(LENGTHS, 10)


def test_anchors_belong_to_the_document() -> None:
    draft = headed(FAMILIES["dflash"])
    given = documents(draft)
    together = batch_of(given, shape_of(draft)).anchors
    for number, document in enumerate(given):
        alone = batch_of([document], shape_of(draft)).anchors[0]
        assert together[number, : len(alone)].tolist() == alone.tolist()


@pytest.mark.parametrize("family", ["dflash", "domino", "dspark-gated"])
def test_checkpointed_layers_change_no_bit(family: str) -> None:
    plain, again = learner(family, "context", "scan"), learner(family, "context", "scan", chunk_blocks=2)
    plain.chunk_blocks = 2
    again.checkpoint_layers()
    given = documents(plain.draft)
    states = features(plain.draft, given)
    want, got = step(plain, given, states), step(again, given, states)
    assert torch.equal(want[0], got[0])
    assert all(torch.equal(want[1][name], got[1][name]) for name in want[1])


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("family", ["dflash", "domino", "dspark-rnn", "dflash2"])
def test_narrow_arithmetic_over_wide_weights(family: str, recomputes: bool) -> None:
    def trained(dtype: torch.dtype, compute: torch.dtype | None) -> DraftLearner:
        found = learner(family, "context", "scan")
        draft = found.draft.to(dtype)
        tables = found.vocabulary.to("cpu", compute or dtype)
        return DraftLearner(draft, tables, found.objective, 2, compute).train()

    wide = trained(torch.float32, torch.bfloat16)
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.copy_(parameter.bfloat16())
    if recomputes:
        wide.checkpoint_layers()
    narrow = trained(torch.bfloat16, None)
    given = documents(wide.draft)
    states = features(wide.draft, given)
    parameters = dict(wide.named_parameters())
    got, want = step(wide, given, states), step(narrow, given, states)
    assert torch.equal(got[0], want[0])
    assert dict(wide.named_parameters()).keys() == parameters.keys()
    assert all(parameter is parameters[name] for name, parameter in wide.named_parameters())
    assert all(gradient.dtype == torch.float32 for gradient in got[1].values())
    for name, gradient in want[1].items():
        scale = gradient.abs().max().item()
        assert torch.allclose(got[1][name].bfloat16(), gradient, rtol=0.05, atol=0.05 * scale + 1e-12), name


def test_a_reduced_vocabulary_trains_on_what_it_has() -> None:
    draft = headed(FAMILIES["dflash"], draft_vocab_size=10)
    trained = DraftLearner(draft, vocabulary(draft), learner("dflash").objective, 2).train()
    given = documents(draft)
    loss, gradients, _, batch = step(trained, given, features(draft, given))
    steps = trained.steps(batch)
    known = draft.t2d[batch.labels.flatten(0, 1)]
    assert (steps.weights > 0).equal((batch.weights.flatten(0, 1) > 0) & known)
    assert not (steps.weights > 0).equal(steps.supervised)
    assert torch.isfinite(loss)
    assert gradients["draft.lm_head.weight"].any()


def test_acceptance_is_the_run_of_right_tokens() -> None:
    trained = learner("dflash").eval()
    given = documents(trained.draft)
    states = features(trained.draft, given)
    batch = batch_of(given, shape_of(trained.draft))
    with torch.no_grad():
        _, counts = trained(batch, states)
        scores = trained.draft.block_scores(trained.hidden(batch, states), batch.previous, trained.vocabulary.lm_head)
    chosen, right, runs, blocks, supervised = scores.scores.argmax(-1), 0, 0, 0, 0
    held, known = [0] * chosen.shape[2], [0] * chosen.shape[2]
    for row in range(chosen.shape[0]):
        for block in range(chosen.shape[1]):
            going = whole = True
            for k in range(chosen.shape[2]):
                counted = batch.weights[row, block, k] > 0
                hit = bool(counted) and chosen[row, block, k] == batch.labels[row, block, k]
                going = going and bool(hit)
                supervised, right, runs = supervised + int(counted), right + int(hit), runs + int(going)
                whole = whole and bool(counted)
                held[k], known[k] = held[k] + int(going), known[k] + int(whole)
            blocks += bool((batch.weights[row, block] > 0).any())
    assert counts[:4].tolist() == [right, supervised, runs, blocks]
    assert counts[5:].tolist() == [*held, *known]
    report = acceptance_report(counts, knows_target=True)
    assert report.survival == tuple(a / b for a, b in zip(held, known, strict=True))
    assert report.acceptance_length == 1 + runs / blocks
    assert 1 <= report.expected_length <= 1 + trained.draft.slots.steps


@pytest.mark.parametrize("family", FAMILIES)
def test_evaluation_accepts_what_decoding_would_draft(family: str) -> None:
    trained = learner(family, "context", "scan").eval()
    draft, given = trained.draft, documents(trained.draft, (14, 12), seed=7)
    states = features(draft, given)
    embed, lm_head = trained.vocabulary.embed, trained.vocabulary.lm_head
    with torch.no_grad():
        batch = batch_of(given, shape_of(draft, 1))
        drafted = draft.draft_tokens(trained.hidden(batch, states), batch.tokens[:, 0, 0], lm_head, embed).tokens
        plant(given, batch.anchors[:, 0].tolist(), drafted)
        batch = batch_of(given, shape_of(draft, 1))
        _, counts = trained(batch, states)
    wanted = batch.labels[:, 0, : draft.slots.drafted]
    supervised = batch.weights[:, 0, : draft.slots.drafted] > 0
    runs = ((drafted == wanted) & supervised).long().cumprod(-1).sum(-1)
    assert runs.sum() > 0
    assert counts[2].item() == runs.sum().item()
    assert len(counts) == 5 + 2 * draft.slots.drafted
    assert acceptance_report(counts, knows_target=True).acceptance_length <= 1 + draft.slots.drafted


def plant(given: list[Document], anchors: list[int], drafted: Tensor) -> None:
    """Write `drafted [D, T]` behind the anchors of `given`, as far as the documents go."""
    for document, anchor, tokens in zip(given, anchors, drafted, strict=True):
        room = min(len(tokens), len(document.input_ids) - anchor - 1)
        document.input_ids[anchor + 1 : anchor + 1 + room] = tokens[:room]


def test_training_counts_nothing() -> None:
    trained = learner("dflash")
    given = documents(trained.draft)
    assert step(trained, given, features(trained.draft, given))[2].shape == (0,)


def test_a_target_of_another_size_is_refused() -> None:
    draft = headed(FAMILIES["dflash"])
    other = FrozenVocabulary(TokenTable(torch.zeros(7, 8)), OutputHead(torch.zeros(7, 8)))
    with pytest.raises(TrainingError, match="7 tokens of width 8"):
        DraftLearner(draft, other, learner("dflash").objective)
