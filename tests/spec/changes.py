"""Test support: the small layouts of the language page and of the explain pages, written as changes to a base layout.

Scalars keep their spelling (`1e-6`, `"5"`, `010`), so that a change says what a file would say.
"""

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
LANGUAGE = ROOT / "docs" / "layout_language.md"
TOP_LEVEL = tuple(json.loads((ROOT / "schemas" / "layout-1.schema.json").read_text("utf-8"))["properties"])
FACTS = ("hidden_size", "num_hidden_layers", "vocab_size")
SHORTHANDS = {
    "MLA": "{kind: mla, num_attention_heads: 32, q_lora_rank: null, kv_lora_rank: 512, qk_nope_head_dim: 128,"
    " qk_rope_head_dim: 64, v_head_dim: 128, rms_norm_eps: 1e-6, rope: {style: interleaved, rope_theta: 10000}}",
    "KDA": "{kind: kda, num_heads: 16, head_dim: 128, short_conv_kernel_size: 4, gate_lower_bound: -5.0}",
}

Tree = str | list["Tree"] | dict[str, "Tree"]


def base_of(text: str) -> str:
    """Return the first layout of a Markdown text that begins with `draftc: 1` and is called base."""
    return next(body for body in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "name: base\n" in body)


def changed(base: str, snippet: str) -> str:
    """Return the text of `base` with the change of `snippet`; a snippet with a `draftc` key is a layout of its own.

    A top-level key replaces the base's. Under `target` it is merged, unless it is a preset or a config or states the
    three required fields; `rope: null` takes the rope away. Any other key is an attention: merged into the base's of
    that name, or added at the end of `attentions` and of `layers` (unless the snippet states those layers). Attentions
    of the base that nothing names any more go. MLA and KDA stand for the required keys of that kind.
    """
    if re.search(r"^['\"{]?draftc\b", snippet, re.MULTILINE):
        return snippet
    layout, change = _tree(base), _tree(snippet)
    named = {key: value for key, value in change.items() if key not in TOP_LEVEL}
    for key, value in change.items():
        if key in TOP_LEVEL:
            layout[key] = {**layout["target"], **value} if key == "target" and _is_partial(value) else value
    if layout["rope"] == "null":
        del layout["rope"]
    for name, value in named.items():
        if name not in layout["attentions"] and "layers" not in change:
            layout["layers"] = [*layout["layers"], name]
        layout["attentions"] = {**layout["attentions"], name: _merged(layout["attentions"].get(name, {}), value)}
    if "attentions" not in change:
        layout["attentions"] = _named_only(layout)
    return "".join(f"{key}: {_emit(value)}\n" for key, value in layout.items())


def _is_partial(target: Tree) -> bool:
    return isinstance(target, dict) and "config" not in target and not all(fact in target for fact in FACTS)


def _merged(old: Tree, new: Tree) -> Tree:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    flat: dict[str, Tree] = {}
    for key, value in new.items():
        flat.update(_tree(SHORTHANDS[key]) if key in SHORTHANDS else {key: value})
    return {**old, **flat}


def _named_only(layout: dict[str, Tree]) -> dict[str, Tree]:
    """Attentions that a layer or another attention names; an own word of the snippet stays in any case."""
    attentions = layout["attentions"]
    used = _emit(layout["layers"]) + "".join(_emit(each) for each in attentions.values())
    return {name: each for name, each in attentions.items() if name != "context" or re.search(r"\bcontext\b", used)}


def _tree(text: str) -> dict[str, Tree]:
    return _plain(yaml.compose(text, yaml.SafeLoader))


def _plain(node: yaml.Node) -> Tree:
    if isinstance(node, yaml.MappingNode):
        return {str(_plain(key)): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return json.dumps(node.value) if node.style in ("'", '"') else node.value or "null"


def _emit(value: Tree) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_emit(each)}" for key, each in value.items()) + "}"
    return "[" + ", ".join(map(_emit, value)) + "]" if isinstance(value, list) else value
