"""DFlash2: convolutions that stay inside a block, and a fresh draft that is DFlash."""

import numpy as np
import pytest
import torch
from torch import nn

from draftc.compiler.build import reference
from draftc.runtime.kda.math import BlockSizeError
from draftc.runtime.residual.convolved import ConvolvedResidual, convolve_blocks
from draftc.spec.layout import Dflash, Dflash2
from tests.compiler.support import layout
from tests.runtime.headed import FAMILIES, headed, hidden_states, tables

STACK = ("context", "near", "latent", "recurrent", "scan")


def direct(rows: np.ndarray, kernel: np.ndarray, delta: np.ndarray, size: int) -> np.ndarray:
    """The sum over taps as it is written, row by row and channel by channel."""
    out = np.zeros_like(rows)
    groups = delta.shape[-1]
    for i in range(len(rows)):
        for t in range(min(len(kernel), i % size + 1)):
            change = np.repeat(delta[i, t], rows.shape[1] // groups)
            out[i] += (kernel[t] + change) * rows[i - t]
    return out


@pytest.mark.parametrize(("taps", "groups", "size"), [(1, 1, 4), (2, 3, 4), (4, 12, 4), (3, 4, 6)])
def test_the_convolution_is_its_sum(taps: int, groups: int, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    rows, kernel, delta = draw(2, 12, 12), draw(taps, 12), draw(2, 12, taps, groups)
    got = convolve_blocks(rows, kernel, delta, size)
    for row in range(2):
        want = direct(rows[row].numpy(), kernel.numpy(), delta[row].numpy(), size)
        np.testing.assert_allclose(got[row].numpy(), want, rtol=1e-12, atol=1e-12)
    leaves = [x.clone().requires_grad_() for x in (rows[:1, :size], kernel, delta[:1, :size])]
    assert torch.autograd.gradcheck(lambda r, k, d: convolve_blocks(r, k, d, size), leaves)


def test_rows_that_are_no_whole_blocks() -> None:
    with pytest.raises(BlockSizeError):
        convolve_blocks(torch.zeros(1, 6, 4), torch.zeros(2, 4), torch.zeros(1, 6, 2, 2), 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_rows_are_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(dtype)  # noqa: E731
    rows, kernel, delta = draw(1, 8, 12), draw(3, 12), draw(1, 8, 3, 4)
    want = convolve_blocks(rows.double(), kernel.double(), delta.double(), 4).to(dtype)
    torch.testing.assert_close(convolve_blocks(rows, kernel, delta, 4), want, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("names", [STACK, ("context",), ("scan", "near")])
@pytest.mark.parametrize("family", [Dflash2(2, 8, 5, 7), Dflash2(4, 1, 5, 100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fresh_draft_is_dflash_bit_for_bit(names: tuple[str, ...], family: Dflash2, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = reference(layout(*names)).eval()
    fresh = reference(layout(*names, family=family)).eval()
    left = fresh.load_state_dict(plain.state_dict(), strict=False)
    assert not left.unexpected_keys
    parts = ("attention_conv", "mlp_conv", "candidate_selector")
    assert all(any(part in key for part in parts) for key in left.missing_keys)
    plain, fresh = plain.to(dtype), fresh.to(dtype)
    noise, taps = torch.randn(2, 12, 24).to(dtype), torch.randn(2, 9, 48).to(dtype)
    anchors = torch.tensor([[2, 5, -1], [9, 1, 0]])
    with torch.no_grad():
        for given in ({"anchors": anchors}, {}):
            rows = noise if given else noise[:, :4]
            want, got = (model(rows, taps, **given).hidden_states[-1] for model in (plain, fresh))
            assert torch.equal(got, want)
        embed, lm_head = (part.to(dtype) for part in tables(plain))
        first = torch.tensor([4, 8])
        drafted = [model.draft_tokens(want, first, lm_head, embed).tokens for model in (plain, fresh)]
    assert torch.equal(*drafted)


def test_first_weights() -> None:
    fresh = reference(layout("context", family=Dflash2(3, 8, 5, 7)))
    for part in (fresh.layers[0].attention_conv, fresh.layers[0].mlp_conv):
        assert part.base_kernel.shape == (2, 3, 24)
        assert (part.base_kernel[:, 0] == 1).all()
        assert (part.base_kernel[:, 1:] == 0).all()
        assert part.kernel_projection.weight.shape == (2 * 3 * 3, 24)
        assert (part.kernel_projection.weight == 0).all()
    selector = fresh.candidate_selector
    assert (selector.successor_codebook == 0).all()
    assert 0.01 < selector.predecessor_codebook.std() < 0.03
    assert 0.01 < selector.hidden_projection.weight.std() < 0.03


@pytest.mark.parametrize("names", [("context",), ("recurrent", "near"), ("scan", "latent")])
def test_nothing_crosses_the_end_of_a_block(names: tuple[str, ...]) -> None:
    draft = headed(FAMILIES["dflash2-one-candidate"], *names)
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(1, 12, 24, generator=generator, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(1, 9, 48, generator=generator, dtype=torch.float64)
    anchors = torch.tensor([[4, 4, 7]])
    out = draft(noise, taps, anchors=anchors).last_hidden_state
    for block in range(3):
        (moved,) = torch.autograd.grad(out[:, block * 4 : block * 4 + 4].square().sum(), noise, retain_graph=True)
        reached = moved.abs().amax(-1)[0] > 0
        assert reached.view(3, 4).any(-1).tolist() == [n == block for n in range(3)]
    with torch.no_grad():
        for block, anchor in enumerate(anchors[0].tolist()):
            alone = draft(noise[:, block * 4 : block * 4 + 4], taps[:, :anchor]).last_hidden_state
            torch.testing.assert_close(alone, out[:, block * 4 : block * 4 + 4], rtol=1e-11, atol=1e-11)


def test_a_dropped_block_leaves_no_trace_in_gradients() -> None:
    draft = headed(FAMILIES["dflash2"], "context")
    noise = torch.randn(1, 8, 24, dtype=torch.float64)
    taps = torch.randn(1, 9, 48, dtype=torch.float64)
    both = draft(noise, taps, anchors=torch.tensor([[3, -1]])).last_hidden_state
    one = draft(noise[:, :4], taps, anchors=torch.tensor([[3]])).last_hidden_state
    torch.testing.assert_close(both[:, :4], one, rtol=1e-12, atol=1e-12)
    assert torch.isfinite(both).all()


def test_the_walk_is_a_lattice_of_candidates() -> None:
    """A greedy path through scores that are written out for every pair of candidates of neighbouring slots."""
    draft = headed(FAMILIES["dflash2"])
    _, lm_head = tables(draft)
    hidden = hidden_states(draft, batch=1)
    drafted = draft.draft_tokens(hidden, torch.tensor([11]), lm_head)
    head = {name: value.detach().numpy() for name, value in draft.candidate_selector.named_parameters()}
    previous, path = 11, []
    for slot in (1, 2, 3):
        h = hidden[0, slot].numpy()
        logits = lm_head.weight.detach().numpy() @ h
        best = np.sort(np.argsort(-logits)[:7])
        gate = head["predecessor_codebook"][previous] * (head["hidden_projection.weight"] @ h)
        scores = [logits[c] + gate @ head["successor_codebook"][c] for c in best]
        previous = int(best[int(np.argmax(scores))])
        path.append(previous)
        np.testing.assert_array_equal(drafted.candidates[0, slot - 1].numpy(), best)
        np.testing.assert_allclose(drafted.scores[0, slot - 1].detach().numpy(), scores, rtol=1e-11)
    assert drafted.tokens[0].tolist() == path


def test_kernels_that_cannot_be() -> None:
    def make(taps: int, group: int) -> ConvolvedResidual:
        return ConvolvedResidual(24, 1e-6, nn.Identity(), nn.Identity(), taps, group, 4)

    with pytest.raises(ValueError, match="groups of 7 channels"):
        make(2, 7)
    for taps in (0, 5):
        with pytest.raises(ValueError, match=f"{taps} taps"):
            make(taps, 8)


def test_plain_drafts_have_no_heads() -> None:
    plain = reference(layout("context", family=Dflash()))
    assert not [name for name, _ in plain.named_parameters() if "conv" in name or "selector" in name]
