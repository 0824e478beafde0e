"""Levels of optimisation and backends change no number: printed classes of one level against those of another."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftc.compiler import api
from draftc.compiler.program import Options
from draftc.spec.layout import Dflash2, Domino, Dspark, Family
from tests.compiler.bundles import STACK
from tests.compiler.support import layout

EXACT = 1e-12  # of the largest entry: another order of sums in float64
PLAIN = "eager,kda_recurrent"
JOINED = "joined = F.linear(keyed, torch.cat([self.k_proj.weight, self.v_proj.weight]))"
FAMILIES: dict[str, Family] = {
    "dflash2": Dflash2(2, 4, 4, 3),
    "domino": Domino(8, 8, 1, False),
    "dspark": Dspark(False, 4, "gated", True, True),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DRAFTC_CACHE", str(tmp_path))


def draft_at(opt: int, *names: str, backend: str | None = None, **changes: object) -> api.CompiledDraft:
    return api.compile(layout(*(names or STACK), **changes), Options(opt=opt, backend=backend))


def measured(draft: api.CompiledDraft) -> dict[str, Tensor]:
    """Outputs of training blocks and of two decoding steps, and all gradients, of the model that compile returns."""
    model = draft.model(dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return {**training(model, generator), **decoding(model, generator)}


def training(model, generator: torch.Generator) -> dict[str, Tensor]:
    config = model.config
    anchors = torch.tensor([[2, 7, -1], [0, 5, 9]])
    noise = noise_of(generator, 2, 3 * config.block_size, config.target_hidden_size).requires_grad_()
    taps = noise_of(generator, 2, 10, config.context_width).requires_grad_()
    out = model(noise_embeds=noise, context_hidden_states=taps, anchors=anchors).last_hidden_state
    (out * noise_of(generator, *out.shape)).sum().backward()
    grads = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"out": out.detach(), "noise": noise.grad, "taps": taps.grad, **grads}


@torch.no_grad()
def decoding(model, generator: torch.Generator) -> dict[str, Tensor]:
    from transformers import DynamicCache

    config, cache, found = model.config, DynamicCache(config=model.config), {}
    for rows in (5, 2):
        noise = noise_of(generator, 1, config.block_size, config.target_hidden_size)
        taps = noise_of(generator, 1, rows, config.context_width)
        found[f"step {rows}"] = model(noise_embeds=noise, context_hidden_states=taps, cache=cache).last_hidden_state
        cache.crop(-config.block_size)
    return found


def noise_of(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def require_equal(expected: dict[str, Tensor], found: dict[str, Tensor], tolerance: float) -> None:
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance * max(scale, 1e-30), msg=name)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, Tensor]:
    """What level 0 computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTC_CACHE", str(tmp_path_factory.mktemp("cache")))
        return measured(draft_at(0))


def test_level_1_is_level_0_on_other_backends(expected) -> None:
    plain, chosen = draft_at(0).program, draft_at(1)
    assert [plain.backend(layer, "training", "cpu") for layer in (0, 3)] == ["eager", "kda_recurrent"]
    assert [chosen.program.backend(layer, "training", "cpu") for layer in (0, 3)] == ["sdpa", "kda_block"]
    require_equal(expected, measured(chosen), EXACT)


@pytest.mark.parametrize("options", [{"backend": PLAIN}, {"disable": ("select",)}], ids=["forced", "select disabled"])
def test_level_1_on_the_plain_backends_is_level_0_bit_for_bit(expected, options) -> None:
    draft = api.compile(layout(*STACK), Options(opt=1, **options))
    assert {draft.program.backend(i, "training", "cuda") for i in range(len(STACK))} == set(PLAIN.split(","))
    for name, value in measured(draft).items():
        # Latent attention may decode in its absorbed form, whose sums come in another order.
        require_equal({name: expected[name]}, {name: value}, EXACT if name.startswith("step") else 0.0)


def test_level_2_reorders_sums_at_most(expected) -> None:
    draft = draft_at(2)
    assert JOINED in modeling(draft)[1]
    require_equal(expected, measured(draft), EXACT)


def test_level_2_without_fuse_is_level_1() -> None:
    name, text = modeling(api.compile(layout(*STACK), Options(opt=2, disable=("fuse",))))
    assert text == draft_at(1).files[name]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_levels_agree_in_every_family(family: Family) -> None:
    plain = measured(draft_at(0, "context", "near", family=family))
    for opt in (1, 2):
        require_equal(plain, measured(draft_at(opt, "context", "near", family=family)), EXACT)


def test_the_comparison_sees_a_fusion_whose_parts_change_places() -> None:
    plain, fused = measured(draft_at(0, "multi")), draft_at(2, "multi")
    name, text = modeling(fused)
    assert "k, v = joined.split" in text
    wrong = replace(fused, files={**fused.files, name: text.replace("k, v = joined.split", "v, k = joined.split")})
    with pytest.raises(AssertionError):
        require_equal(plain, measured(wrong), EXACT)


def modeling(draft: api.CompiledDraft) -> tuple[str, str]:
    return next((name, text) for name, text in draft.files.items() if name.startswith("modeling"))
