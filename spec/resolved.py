"""The resolved form: a layout of the language again, with nothing implied, equal bytes for equal layouts."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from draftc.spec.check import check_text
from draftc.spec.layout import AttentionSpec, Gqa, Kda, Layout, Rope, RopeScaling, Target
from draftc.spec.nodes import Value
from draftc.spec.schema_facts import properties

# Characters that JSON may hold as they are and that YAML refuses or folds.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def resolved(layout: Layout) -> dict[str, Value]:
    """Return the resolved form of a layout: keys in the schema's order, defaults and target written out.

    `allow` keeps the codes that occur when the resolved form itself is checked.
    """
    return {**_without_allow(layout), "allow": list(_occurring(layout))}


def resolved_json(layout: Layout) -> str:
    """Return the resolved form as JSON text, two spaces deep, with a final line break.

    Checking that text gives a layout whose resolved form has the same bytes.
    """
    return _text(resolved(layout))


def origins(layout: Layout) -> dict[str, dict[str, Value]]:
    """Return where each value of the resolved form came from, by JSON pointer: `via`, and line and column if written.

    Places are those of the layout's own text; the text is not named, so that the answer does not depend on where it
    was read from.
    """
    pointers = (*_pointers(_without_allow(layout)), *(f"/layers/{layer.index}" for layer in layout.layers), "/allow")
    return {pointer: dict(_origin(layout, pointer)) for pointer in pointers if pointer in layout.origins}


def _pointers(form: dict[str, Value], above: str = "") -> Iterator[str]:
    for key, value in form.items():
        yield f"{above}/{key}"
        if isinstance(value, dict):
            yield from _pointers(value, f"{above}/{key}")


def _origin(layout: Layout, pointer: str) -> Iterator[tuple[str, Value]]:
    origin = layout.origins[pointer]
    yield "via", origin.via
    if origin.span is not None:
        yield "line", origin.span.start.line
        yield "column", origin.span.start.column


def _text(form: dict[str, Value]) -> str:
    text = json.dumps(form, indent=2, ensure_ascii=False, allow_nan=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"


def _occurring(layout: Layout) -> tuple[str, ...]:
    """Return the codes of `allow` that still occur; dropping one may silence another, so until nothing changes."""
    allow = layout.allow
    while allow:
        form: dict[str, Value] = {**_without_allow(layout), "allow": list(allow)}
        report = check_text(_text(form), "layout.resolved.json", None)
        occurring = {found.code.number for found in report.allowed}
        kept = tuple(code for code in allow if code in occurring)
        if kept == allow:
            break
        allow = kept
    return allow


def _without_allow(layout: Layout) -> dict[str, Value]:
    values: dict[str, Any] = dict(_top_level(layout))
    return {key: values[key] for key in properties() if key in values}


def _top_level(layout: Layout) -> Iterator[tuple[str, Value]]:
    yield "draftc", 1
    yield "family", layout.family.name
    yield "target", _target(layout.target)
    yield "target_layer_ids", list(layout.target_layer_ids)
    yield "intermediate_size", layout.layers[0].mlp.intermediate_size
    yield "hidden_act", layout.layers[0].mlp.hidden_act
    yield "attentions", {name: _attention(spec) for name, spec in layout.attentions.items()}
    yield "layers", [layer.name for layer in layout.layers]
    yield (
        "serve_on",
        [{"consumer": one.name, "tensor_parallel_size": one.tensor_parallel_size} for one in layout.serve_on],
    )
    yield from _family(layout)
    yield from _scalars(layout)


def _family(layout: Layout) -> Iterator[tuple[str, Value]]:
    block = {one.name: getattr(layout.family, one.name) for one in fields(layout.family)}
    if block:
        yield layout.family.name, {key: value for key, value in block.items() if value is not None}


def _scalars(layout: Layout) -> Iterator[tuple[str, Value]]:
    for name in ("name", "block_size", "mask_token_id", "hidden_size", "rms_norm_eps", "max_position_embeddings"):
        yield name, getattr(layout, name)
    for name in ("draft_vocab_size", "input_embedding_scale", "output_multiplier", "final_logit_softcapping"):
        yield name, getattr(layout, name)
    yield "initializer_range", layout.initializer_range
    yield "dtype", layout.dtype
    for name in ("final_tap", "target_stream_contraction"):
        if getattr(layout, name) is not None:
            yield name, getattr(layout, name)
    if layout.description:
        yield "description", layout.description
    if any(not isinstance(layer.attention, Kda) for layer in layout.layers):
        yield "attention_dropout", layout.attention_dropout


def _target(target: Target) -> dict[str, Value]:
    ends = list(target.eos_token_id)
    facts = {
        **{one.name: getattr(target, one.name) for one in fields(target)},
        "eos_token_id": (ends if len(ends) > 1 else ends[0]) if ends else None,
        "special_token_ids": dict(target.special_token_ids) or None,
    }
    return {key: facts[key] for key in properties("targetInline") if facts[key] is not None}


def _attention(spec: AttentionSpec) -> dict[str, Value]:
    values = {one.name: getattr(spec, one.name) for one in fields(spec)}
    if not isinstance(spec, Kda):
        values["rope"] = _rope(spec.rope, partial=isinstance(spec, Gqa))
    return {"kind": spec.kind, **{key: values[key] for key in properties(spec.kind) if key != "kind"}}


def _rope(rope: Rope | None, partial: bool) -> Value:
    if rope is None:
        return "none"
    values: dict[str, Value] = {"style": rope.style, "rope_theta": rope.rope_theta}
    if partial:
        values["partial_rotary_factor"] = rope.partial_rotary_factor
    return {**values, "scaling": _scaling(rope.scaling)}


def _scaling(scaling: RopeScaling | None) -> Value:
    if scaling is None:
        return None
    listed: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value for key, value in scaling.parameters
    }
    return {"rope_type": scaling.rope_type, **listed}
