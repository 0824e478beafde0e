"""What `inspect` says: numbers are those of formulas written down by hand, for every shipped layout."""

import math
import re

import pytest
from jsonschema import Draft202012Validator

import draftc
from draftc.compiler import api, graphs, report, report_json
from draftc.compiler.api import CompiledDraft
from draftc.compiler.part_costs import TRAINING_BLOCKS, part_costs
from draftc.compiler.program import Options
from draftc.schemas import load
from draftc.spec.layout import Dflash, Dflash2, Gqa, Kda, Layout, Mla
from draftc.spec.sources import list_layouts
from tests.compiler.support import ATTENTIONS, layout

SHIPPED = list_layouts()
CONTEXT = 4096
ITEM = 2  # bytes of a bfloat16


@pytest.fixture(scope="module")
def shipped() -> dict[str, CompiledDraft]:
    return {name: draftc.compile(name) for name in SHIPPED}


def attention_parameters(spec: Gqa | Mla | Kda, width: int) -> int:
    """Weights of the public attention of each kind, counted matrix by matrix."""
    match spec:
        case Gqa():
            q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
            biases = (q + 2 * kv + width) * spec.attention_bias
            return (
                width * q * 2
                + width * kv * 2
                + 2 * spec.head_dim * spec.qk_norm
                + biases
                + gate(spec.output_gate, width, q, spec.head_dim)
            )
        case Mla():
            turned = spec.qk_nope_head_dim + spec.qk_rope_head_dim
            heads, rank, latent = spec.num_attention_heads, spec.q_lora_rank, spec.kv_lora_rank
            query = width * rank + rank + rank * heads * turned if rank else width * heads * turned
            down = width * (latent + spec.qk_rope_head_dim) + latent
            up = latent * heads * (spec.qk_nope_head_dim + spec.v_head_dim)
            out = heads * spec.v_head_dim * width
            return query + down + up + out + gate(spec.output_gate, width, heads * spec.v_head_dim, spec.v_head_dim)
        case Kda():
            inner, d = spec.num_heads * spec.head_dim, spec.head_dim
            convolutions = 3 * inner * spec.short_conv_kernel_size
            decay = width * d + d * inner + spec.num_heads + inner  # low rank, then A_log and dt_bias
            beta = width * spec.num_heads
            return 4 * width * inner + convolutions + decay + beta + d + gate(spec.output_gate, width, inner, d)


def gate(kind: str, width: int, inner: int, rank: int) -> int:
    return {"none": 0, "full": width * inner, "low_rank": width * rank + rank * inner}[kind]


def layer_parameters(made: Layout, index: int) -> int:
    spec = made.layers[index]
    width = made.hidden_size
    return attention_parameters(spec.attention, width) + 3 * width * spec.mlp.intermediate_size + 2 * width


@pytest.mark.parametrize("name", SHIPPED)
def test_parameters_of_layers_are_those_of_the_formulas(shipped: dict[str, CompiledDraft], name: str) -> None:
    draft = shipped[name]
    made = draft.layout
    if isinstance(made.family, Dflash2):
        pytest.skip("test_families counts its convolutions")
    headings, rows, _ = report.layer_rows(draft)
    column = headings.index("parameters")
    assert [int(row[column].replace(",", "")) for row in rows] == [
        layer_parameters(made, index) for index in range(len(made.layers))
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_parameters_of_a_dflash_draft(shipped: dict[str, CompiledDraft], name: str) -> None:
    made = shipped[name].layout
    total = int(re.search(r"([\d,]+) parameters", report.summary(shipped[name])).group(1).replace(",", ""))
    layers = sum(layer_parameters(made, index) for index in range(len(made.layers)))
    outside = made.context_width * made.hidden_size + 2 * made.hidden_size
    if isinstance(made.family, Dflash):
        assert total == layers + outside
    else:
        assert total > layers + outside


def test_the_summary_of_a_draft() -> None:
    """Five layers of 192,946,432, a projection of five taps of 4096 to 4096, two norms."""
    total = 5 * 192_946_432 + 5 * 4096 * 4096 + 2 * 4096
    assert report.summary(draftc.compile("qwen3-8b-dflash")) == (
        f"qwen3-8b-dflash: dflash, 5 layers, {total:,} parameters, reads 5 taps of 4096"
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_cache_bytes(shipped: dict[str, CompiledDraft], name: str) -> None:
    """Dense attention keeps keys and values, latent attention its latent and the turned key, a window W - 1 rows."""
    draft = shipped[name]
    parts = part_costs(draft.program, CONTEXT)
    for layer, part in zip(draft.layout.layers, parts, strict=False):
        match layer.attention:
            case Gqa() as spec:
                row = 2 * spec.num_key_value_heads * spec.head_dim * ITEM
            case Mla() as spec:
                row = (spec.kv_lora_rank + spec.qk_rope_head_dim) * ITEM
            case Kda():
                row = 0
        assert part.cache_bytes_per_token == row
        if not isinstance(layer.attention, Kda):
            window = layer.attention.sliding_window
            assert part.cache_bytes == row * min(CONTEXT, window - 1 if window else CONTEXT)
    assert parts[-1].cache_bytes == sum(part.cache_bytes for part in parts[:-1])


def test_flops_of_a_dense_layer() -> None:
    """Products of one block of 16 behind 4096 rows, one of them new; what is element-wise stays below two percent."""
    draft = draftc.compile("qwen3-4b-dflash")
    h, q, kv, mlp, b = 2560, 4096, 1024, 9728, 16
    step = 2 * (b * h * q * 2 + (b + 1) * h * 2 * kv + b * 3 * h * mlp) + 4 * b * q * (CONTEXT + b)
    found = part_costs(draft.program, CONTEXT)
    assert step < found[0].step_flops < 1.02 * step
    slots = TRAINING_BLOCKS * b
    row = 2 * (slots * h * q * 2 + (slots + CONTEXT) * h * 2 * kv + slots * 3 * h * mlp) + 4 * slots * q * (CONTEXT + b)
    assert row < found[0].training_row_flops < 1.02 * row
    assert found[5].part == "outside the layers"
    assert found[5].step_flops == 2 * (5 * h) * h
    assert found[5].training_row_flops == 2 * CONTEXT * (5 * h) * h
    assert found[-1].step_flops == sum(part.step_flops for part in found[:-1])


def test_heads_have_a_row_of_their_own() -> None:
    names = [part.part for part in part_costs(draftc.compile("qwen3-4b-dspark").program, 10)]
    assert names[-3:] == ["outside the layers", "heads", "draft at 10 context rows"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1 k"), (999_499, "999 k"), (999_500, "1 M"), (16_777_216, "16.8 M")],
)
def test_quantities(value: int, text: str) -> None:
    assert report.quantity(value) == text


@pytest.mark.parametrize("name", SHIPPED)
def test_json_is_described_by_its_schema(shipped: dict[str, CompiledDraft], name: str) -> None:
    Draft202012Validator.check_schema(load("inspect-1"))
    written = report_json.as_json(shipped[name], CONTEXT)
    Draft202012Validator(load("inspect-1")).validate(written)
    assert len(written["backends"]) == 4 * len(written["layers"])
    assert written["graphs"].keys() == {unit.name for unit in shipped[name].program.units}
    assert all(math.isfinite(one["seconds"]) for one in written["passes"])


def test_backends_and_why_better_ones_were_passed_over() -> None:
    draft = draftc.compile("qwen3-4b-kda-gqa")
    headings, rows, _ = report.backend_rows(draft)
    assert headings == ("attention", "training on cpu", "training on cuda", "decoding on cpu", "decoding on cuda")
    assert ("context", "sdpa", "flex", "sdpa", "sdpa") in rows
    lines = list(report.refusal_lines(draft))
    assert any(line.startswith("context, decoding on cuda: not flash: needs flash-attn") for line in lines)
    assert len(lines) == len(set(lines))


def test_an_override_is_said() -> None:
    draft = api.compile(layout("context"), Options(backend="eager"))
    assert "context, decoding on cuda: eager, forced by --backend eager" in list(report.refusal_lines(draft))


def test_graphs_show_shapes_and_dtypes() -> None:
    lines = list(graphs.graph_lines(api.compile(layout("context", "latent")).program))
    assert lines[0] == "ContextAttention (attention, layers 0)"
    assert "  rope = placeholder()  # rope: [[B, C+Q, 8], [B, C+Q, 8]] float32, float32" in lines
    assert "  q_proj = Linear(block)  # q: [B, Q, 32] float32" in lines
    assert sum(" = " not in line for line in lines) == len(api.compile(layout("context", "latent")).program.units)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_kind_has_a_whole_report(name: str) -> None:
    draft = api.compile(layout(name), Options(opt=2))
    for headings, rows, numbers in (
        report.layer_rows(draft),
        report.cost_rows(draft, 0),
        report.backend_rows(draft),
        report.pass_rows(draft),
    ):
        assert rows
        assert all(len(row) == len(headings) for row in rows)
        assert set(numbers) <= set(headings)


def test_what_passes_change_in_graphs() -> None:
    made = layout("context")
    assert list(graphs.graph_changes(made, Options(opt=1))) == []
    lines = list(graphs.graph_changes(made, Options(opt=2)))
    assert lines[0] == "4 fuse in ContextAttention:"
    assert "-k_proj = Linear(cat)" in lines
    assert "+k_proj_weight = k_proj.weight" in lines
    notes = list(report.pass_notes(api.compile(made, Options(opt=2))))
    assert "4 fuse: - 4 Linear" in notes
    assert "4 fuse: + 2 linear" in notes


def test_without_the_pass_cost_there_are_no_costs() -> None:
    draft = api.compile(layout("context"), Options(disable=("cost",)))
    assert part_costs(draft.program, CONTEXT) == ()
    assert report.layer_rows(draft)[1][0][6] == report.layer_rows(api.compile(layout("context")))[1][0][6]
    assert report_json.as_json(draft, CONTEXT)["costs"] == []
