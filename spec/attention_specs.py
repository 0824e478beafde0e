"""From expanded attentions to their frozen specs: defaults, and the rope that each one turns by."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from typing import Any

from draftc.spec.attentions import Expanded, Key
from draftc.spec.diagnostic import Diagnostic
from draftc.spec.layout import AttentionSpec, Gqa, Kda, Mla, Rope
from draftc.spec.nodes import plain
from draftc.spec.resolution_codes import CAUSALITY_UNSTATED, ROPE_MISSING
from draftc.spec.rope import rope_of, rope_origins
from draftc.spec.schema_facts import filled, properties
from draftc.spec.span import Origin

TOP_ROPE = "top-level rope"


@dataclass(frozen=True, slots=True)
class Specs:
    """The specs of the attentions that are whole, by name, the origins of their values, and what they lack."""

    specs: MappingOf[str, AttentionSpec] = field(default_factory=dict)
    origins: MappingOf[str, Origin] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class TopRope:
    """The rope at top level: absent, broken, or `key`."""

    key: Key | None = None
    broken: bool = False


def resolve_attentions(used: tuple[Expanded, ...], top: TopRope, theta: float | None) -> Specs:
    """Fill in defaults. Reports DC262 where a window stands without `is_causal` and DC270 where no rope is found.

    `theta` is the rope_theta of the target, for the help text alone. Attentions of one `extends` chain that lack the
    same thing give one report.
    """
    roped = [_with_rope(one, top) for one in used]
    diagnostics = [*_causality_unstated(used), *_ropes_missing(roped, top, theta)]
    specs = {one.name: _spec(one) for one in roped if not _lacks_causality(one) and not _lacks_rope(one)}
    whole = [one for one in roped if one.name in specs]
    origins = dict(pair for one in whole for pair in _origins(one, specs[one.name].rope))
    return Specs(specs, origins, tuple(diagnostics))


def _with_rope(one: Expanded, top: TopRope) -> Expanded:
    if top.key is None or not _lacks_rope(one):
        return one
    return replace(one, keys={**one.keys, "rope": Key(top.key.node, Origin(TOP_ROPE, top.key.origin.span))})


def _lacks_rope(one: Expanded) -> bool:
    return one.kind != "kda" and "rope" not in one.keys


def _lacks_causality(one: Expanded) -> bool:
    window = one.keys.get("sliding_window")
    return window is not None and plain(window.node) is not None and "is_causal" not in one.keys


def _causality_unstated(used: tuple[Expanded, ...]) -> Iterator[Diagnostic]:
    windows = {one.keys["sliding_window"].node.span: one for one in reversed(used) if _lacks_causality(one)}
    for span, one in windows.items():
        yield Diagnostic(
            CAUSALITY_UNSTATED,
            f"{one.name} slides over {plain(one.keys['sliding_window'].node)} tokens and does not state is_causal",
            span,
            help="state `is_causal: true` (what z-lab, vLLM and SGLang assume for sliding layers) or `false` "
            "(what transformers' own draft does)",
        )


def _ropes_missing(used: list[Expanded], top: TopRope, theta: float | None) -> Iterator[Diagnostic]:
    if top.broken:
        return
    roots = {(one.name, *one.chain)[-1]: one for one in reversed(used) if _lacks_rope(one)}
    for one in roots.values():
        yield Diagnostic(
            ROPE_MISSING,
            f"{one.name} states no rope and the layout has none at top level",
            one.place,
            help=f"add {_advised(theta)}, or `rope: none`",
        )


def _advised(theta: float | None) -> str:
    if theta is None:
        return "`rope: {style: half, rope_theta: ...}` with the theta of the target"
    shown = int(theta) if theta.is_integer() else theta
    return f"`rope: {{style: half, rope_theta: {shown}}}` (the theta of the target)"


def _spec(one: Expanded) -> AttentionSpec:
    values: dict[str, Any] = filled(one.kind, one.stated())
    del values["kind"]
    if one.kind == "kda":
        return Kda(**values)
    values = {"is_causal": False, **values, "rope": rope_of(values["rope"])}
    if one.kind == "mla":
        return Mla(**values)
    return Gqa(**{"num_key_value_heads": values["num_attention_heads"], **values})


def _origins(one: Expanded, rope: Rope | None) -> Iterator[tuple[str, Origin]]:
    place = f"/attentions/{one.name}"
    yield place, Origin("layout", one.place)
    for key in properties(one.kind):
        yield f"{place}/{key}", one.keys[key].origin if key in one.keys else Origin("default")
    if "rope" in one.keys:
        node = one.keys["rope"]
        yield from rope_origins(f"{place}/rope", node.node, rope, node.origin.via)
