"""The layout that `draftc init` writes: a DFlash draft for a preset, each key with a word on what it decides."""

from collections.abc import Iterator

from draftc.spec.check import check_text
from draftc.spec.layout import Layout, Target
from draftc.spec.sources import SourceError, list_layouts, open_source
from draftc.spec.suggest import did_you_mean
from draftc.spec.target import list_targets, preset_target

HEAD = """# yaml-language-server: $schema={schema}
# Check with `draftc check FILE`, compile with `draftc compile FILE`; `draftc explain CODE` explains what they report.
"""
TAIL = """
attentions:
  context: {{{geometry}}}
  # one more, for layers that see only the latest tokens:
  # local: {{extends: context, sliding_window: 2048, is_causal: true}}

layers: [{layers}]
"""
COLUMN = 38  # where the comments stand


def first_layout(target: str, name: str, depth: int, block_size: int, mask: int | None, schema: str) -> str:
    """Return the text of a layout for the preset `target` with `depth` equal layers.

    `mask` None takes the mask token of a shipped layout for the same target; `schema` is what the modeline points at.
    Raises SourceError for an unknown preset, and when no mask token is known.
    """
    if target not in list_targets():
        known = did_you_mean(target, list_targets()) or f"known: {', '.join(list_targets())}"
        raise SourceError(f"no target preset is called {target}", known)
    facts, shipped = preset_target(target), _shipped(target)
    chosen, reason = (mask, "as given") if mask is not None else _known_mask(target, facts, shipped)
    keys = [
        ("draftc: 1", "version of the language"),
        (f"name: {name}", "names the bundle and its files"),
        ("family: dflash", "heads and decoding rule: dflash, dflash2, domino or dspark"),
        (f"target: {target}", "the model that the draft serves: a preset (`draftc list`), a config.json, or facts"),
        ("target_layer_ids: auto", "layers of the target that the draft reads; `auto` spaces them evenly"),
        (f"block_size: {block_size}", "slots of a block, the anchor included"),
        (f"mask_token_id: {chosen}", f"fills the slots to be predicted; {reason}"),
        *_mlp(facts, shipped),
        (f"rope: {{style: half, rope_theta: {facts.rope_theta or 1e6:.12g}}}", "stated, never inherited"),
    ]
    body = "".join(f"{key:<{COLUMN - 1}} # {comment}\n" for key, comment in keys)
    tail = TAIL.format(geometry=_geometry(facts), layers=", ".join(["context"] * depth))
    return HEAD.format(schema=schema) + body + tail


def _known_mask(target: str, facts: Target, shipped: Layout | None) -> tuple[int, str]:
    if shipped is None:
        raise SourceError(
            f"no shipped layout has a mask token for {target}, and a mask token is never guessed",
            f"give --mask-token-id: a reserved row of the target's embedding, 0..{facts.vocab_size - 1}",
        )
    return shipped.mask_token_id, f"as in {shipped.name}"


def _shipped(target: str) -> Layout | None:
    """Return a shipped layout that names the preset `target`, `<target>-dflash` before others."""
    for name in sorted(list_layouts(), key=lambda name: (name != f"{target}-dflash", name)):
        source = open_source(name)
        if f"\ntarget: {target}\n" in source.data.decode():
            return check_text(source.data, source.file, source.folder).layout
    return None


def _mlp(facts: Target, shipped: Layout | None) -> Iterator[tuple[str, str]]:
    """The MLP's width, where the target has no dense MLP to take it from."""
    if facts.intermediate_size is None:
        width = shipped.layers[0].mlp.intermediate_size if shipped else 3 * facts.hidden_size
        yield f"intermediate_size: {width}", "width of the MLP; the target has no dense one to take it from"


def _geometry(facts: Target) -> str:
    """Head counts like the target's, or heads of 128 channels where the target states none."""
    heads = facts.num_attention_heads or max(1, facts.hidden_size // 128)
    kv_heads = facts.num_key_value_heads or heads
    dim = facts.head_dim or facts.hidden_size // heads
    if kv_heads == heads:
        return f"kind: mha, num_attention_heads: {heads}, head_dim: {dim}"
    return f"kind: gqa, num_attention_heads: {heads}, num_key_value_heads: {kv_heads}, head_dim: {dim}"
