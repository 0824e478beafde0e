"""Valid layouts of every kind and family, small and with the target's facts inline; and ways to break one of them."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Facts = dict[str, Any]

KDA_KEYS = ("num_heads", "head_dim", "short_conv_kernel_size", "gate_lower_bound", "output_gate", "context_state")
BLOCKS = {
    "dflash2": {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 16, "selector_top_k": 4},
    "domino": {"gru_hidden_dim": 32, "emb_dim": 16, "pure_draft_prefix_len": 1, "shift_label": True},
    "dspark": {
        "sample_from_anchor": True,
        "markov_rank": 8,
        "markov_head_type": "gated",
        "enable_confidence_head": True,
        "confidence_head_with_markov": False,
    },
}


def text_of(layout: Facts) -> str:
    return json.dumps(layout, indent=1)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Nothing, or one value: most keys may be left out."""
    return st.lists(strategy, max_size=1)


@st.composite
def some_of(draw: st.DrawFn, **options: st.SearchStrategy[Any]) -> Facts:
    """A mapping in which each key may be left out."""
    drawn = {key: draw(maybe(strategy)) for key, strategy in options.items()}
    return {key: values[0] for key, values in drawn.items() if values}


numbers = st.one_of(st.integers(2, 10**7), st.floats(1.5, 1e7))
factors = st.one_of(st.integers(1, 64), st.floats(1.0, 64.0))


def scalings(pairs: int) -> st.SearchStrategy[Any]:
    positions = st.integers(64, 4096)
    listed = st.lists(st.floats(1.0, 8.0), min_size=pairs, max_size=pairs)
    yarn = st.builds(
        lambda factor, original, more: {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            **more,
        },
        factors,
        positions,
        some_of(
            beta_fast=st.integers(8, 64),
            beta_slow=st.floats(0.5, 4.0),
            attention_factor=st.floats(0.5, 2.0),
            mscale=st.floats(0.5, 1.0),
            mscale_all_dim=st.floats(0.5, 1.0),
            truncate=st.booleans(),
        ),
    )
    longrope = st.fixed_dictionaries(
        {
            "rope_type": st.just("longrope"),
            "factor": factors,
            "original_max_position_embeddings": positions,
            "short_factor": listed,
            "long_factor": listed,
        }
    )
    llama3 = st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "factor": factors,
            "original_max_position_embeddings": positions,
            "low_freq_factor": st.floats(0.5, 1.5),
            "high_freq_factor": st.integers(2, 8),
        }
    )
    simple = st.builds(lambda kind, factor: {"rope_type": kind, "factor": factor}, st.sampled_from(["linear"]), factors)
    bare = st.just({"rope_type": "proportional"})
    dynamic = st.builds(lambda factor: {"rope_type": "dynamic", "factor": factor}, factors)
    return st.one_of(st.none(), simple, bare, dynamic, yarn, longrope, llama3)


@st.composite
def ropes(draw: st.DrawFn, width: int, partial: bool = True) -> Any:
    if draw(st.booleans()) and draw(st.booleans()):
        return "none"
    share = draw(st.sampled_from([1, 0.5, 1.0])) if partial and draw(st.booleans()) else None
    pairs = int(width * (share or 1)) // 2
    rope: Facts = {"style": draw(st.sampled_from(["half", "interleaved"])), "rope_theta": draw(numbers)}
    if share is not None:
        rope["partial_rotary_factor"] = share
    if draw(st.booleans()):
        rope["scaling"] = draw(scalings(pairs))
    return rope


@st.composite
def masks(draw: st.DrawFn) -> Facts:
    """Window and causality: a window is at least as long as any block here, and states is_causal."""
    window = draw(st.one_of(st.none(), st.integers(16, 64)))
    if window is not None:
        return {"sliding_window": window, "is_causal": draw(st.booleans())}
    return draw(some_of(sliding_window=st.none(), is_causal=st.booleans()))


@st.composite
def dense(draw: st.DrawFn, kind: str, has_top_rope: bool) -> Facts:
    width = 16
    facts: Facts = {"kind": kind, "num_attention_heads": draw(st.sampled_from([4, 8])), "head_dim": width}
    if kind == "gqa":
        facts["num_key_value_heads"] = draw(st.sampled_from([1, 2]))
    if not has_top_rope or draw(st.booleans()):
        facts["rope"] = draw(ropes(width))
    flags = {
        "qk_norm": st.booleans(),
        "attention_bias": st.booleans(),
        "output_gate": st.sampled_from(["none", "full"]),
    }
    return {**facts, **draw(masks()), **draw(some_of(**flags))}


@st.composite
def latent(draw: st.DrawFn) -> Facts:
    turned = draw(st.sampled_from([0, 8, 16]))
    return {
        "kind": "mla",
        "num_attention_heads": draw(st.integers(1, 8)),
        "q_lora_rank": draw(st.one_of(st.none(), st.integers(4, 64))),
        "kv_lora_rank": draw(st.integers(4, 64)),
        "qk_nope_head_dim": draw(st.sampled_from([8, 16])),
        "qk_rope_head_dim": turned,
        "v_head_dim": draw(st.integers(4, 16)),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5, 0.1])),
        "rope": draw(ropes(turned, partial=False)) if turned else "none",
        **draw(masks()),
        **draw(some_of(attention_bias=st.booleans(), output_gate=st.sampled_from(["none", "full"]))),
    }


@st.composite
def recurrent(draw: st.DrawFn) -> Facts:
    return {
        "kind": "kda",
        "num_heads": draw(st.integers(1, 8)),
        "head_dim": draw(st.integers(4, 16)),
        "short_conv_kernel_size": draw(st.integers(1, 5)),
        "gate_lower_bound": draw(st.one_of(st.none(), st.integers(-8, -1), st.floats(-8, -0.5))),
        **draw(
            some_of(output_gate=st.sampled_from(["full", "low_rank"]), context_state=st.sampled_from(["reset", "scan"]))
        ),
    }


def attentions(has_top_rope: bool) -> st.SearchStrategy[Facts]:
    return st.one_of(dense("gqa", has_top_rope), dense("mha", has_top_rope), latent(), recurrent())


@st.composite
def targets(draw: st.DrawFn) -> Facts:
    vocab = draw(st.integers(64, 1000))
    ids = st.integers(0, vocab - 1)
    facts: Facts = {
        "hidden_size": draw(st.sampled_from([32, 64, 128])),
        "num_hidden_layers": draw(st.integers(24, 40)),  # `auto` has 19 distinct layers, for the deepest stack
        "vocab_size": vocab,
    }
    options = some_of(
        intermediate_size=st.integers(8, 256),
        max_position_embeddings=st.integers(128, 10**6),
        rms_norm_eps=st.sampled_from([1e-6, 1e-5]),
        dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
        hc_mult=st.integers(1, 4),
        model_type=st.sampled_from(["qwen3", "llama"]),
        name_or_path=st.text(min_size=1, max_size=12).filter(_is_yaml),
        bos_token_id=ids,
        eos_token_id=st.one_of(ids, st.lists(ids, min_size=1, max_size=3, unique=True)),
        pad_token_id=ids,
        special_token_ids=st.dictionaries(st.sampled_from(["image_token_id", "x_token_id"]), ids),
        rope_theta=numbers,
    )
    return {**facts, **draw(options)}


def _is_yaml(text: str) -> bool:
    """Whether JSON escapes of the text survive YAML: pairs of surrogates do not."""
    return all(ord(letter) < 0x10000 for letter in text)


@st.composite
def blocks(draw: st.DrawFn, family: str) -> Facts:
    block = deepcopy(BLOCKS.get(family, {}))
    if family == "dspark" and draw(st.booleans()):
        block |= {"markov_rank": 0, "enable_confidence_head": draw(st.booleans())}
    if family == "domino":
        block["shift_label"] = draw(st.booleans())
    return {family: block} if block else {}


@st.composite
def stacks(draw: st.DrawFn, names: list[str], reader: str) -> list[Any]:
    """Layers of every spelling; `reader` is an attention that lets context in and always takes part."""
    plain = st.one_of(st.sampled_from(names), st.builds(lambda name: {"attention": name}, st.sampled_from(names)))
    in_place = st.builds(lambda name: {"attention": {"extends": name}}, st.sampled_from(names))
    entry = st.one_of(plain, in_place)
    repeat = st.builds(
        lambda n, of: {"repeat": n, "of": of}, st.integers(2, 3), st.lists(entry, min_size=1, max_size=2)
    )
    return [*draw(st.lists(st.one_of(entry, repeat), max_size=3)), reader]


@st.composite
def tops(draw: st.DrawFn, target: Facts, family: str) -> Facts:
    """Top-level values; those that the target lacks are stated."""
    whole = family in ("dflash2", "domino")
    options: dict[str, st.SearchStrategy[Any]] = {
        "description": st.text(max_size=20).filter(_is_yaml),
        "hidden_act": st.sampled_from(["silu", "gelu", "gelu_pytorch_tanh"]),
        "draft_vocab_size": st.just(target["vocab_size"]) if whole else st.integers(2, target["vocab_size"]),
        "input_embedding_scale": numbers,
        "output_multiplier": st.floats(0.1, 10),
        "final_logit_softcapping": st.one_of(st.none(), st.integers(1, 50)),
        "attention_dropout": st.sampled_from([0, 0.1]),
        "initializer_range": st.sampled_from([1, 0.02]),
        "dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
        "final_tap": st.sampled_from(["pre_norm", "post_norm"]),
        "serve_on": st.lists(st.just({"consumer": "transformers", "tensor_parallel_size": 1}), max_size=0),
    }
    needed = {"intermediate_size": 48, "max_position_embeddings": 512, "rms_norm_eps": 1e-6}
    stated = {key: value for key, value in needed.items() if key not in target or draw(st.booleans())}
    if target.get("hc_mult", 1) > 1 or draw(st.booleans()):
        stated["target_stream_contraction"] = "mean"
    return {**stated, **draw(some_of(**options))}


@st.composite
def layouts(draw: st.DrawFn) -> Facts:
    """A layout without errors. Warnings are welcome: they must survive the resolved form as well."""
    family = draw(st.sampled_from(["dflash", "dflash2", "domino", "dspark"]))
    target = draw(targets())
    top_rope = draw(maybe(ropes(16)))
    base = draw(dense("gqa", bool(top_rope)))
    named = {
        "reader": base,
        **{f"a{i}": one for i, one in enumerate(draw(st.lists(attentions(bool(top_rope)), max_size=3)))},
    }
    if draw(st.booleans()):
        named["nearer"] = {"extends": "reader", "sliding_window": 20, "is_causal": True}
    taps = st.lists(st.integers(0, target["num_hidden_layers"] - 1), min_size=1, max_size=4, unique=True)
    return {
        "draftc": 1,
        "name": draw(st.sampled_from(["a", "b-1.c", "x_y"])),
        "family": family,
        "target": target,
        "target_layer_ids": draw(st.one_of(st.just("auto"), taps)),
        "block_size": draw(st.integers(4, 16)),
        "mask_token_id": draw(st.integers(0, target["vocab_size"] - 1)),
        **draw(tops(target, family)),
        **({"rope": top_rope[0]} if top_rope else {}),
        "attentions": named,
        "layers": draw(stacks(sorted(named), "reader")),
        **draw(blocks(family)),
    }


Mutation = Callable[[Facts], None]


def drop(*path: str) -> Mutation:
    def apply(layout: Facts) -> None:
        del _holder(layout, path)[path[-1]]

    return apply


def put(value: Any, *path: str) -> Mutation:
    def apply(layout: Facts) -> None:
        _holder(layout, path)[path[-1]] = value

    return apply


def _holder(layout: Facts, path: tuple[str, ...]) -> Facts:
    for step in path[:-1]:
        layout = layout[step]
    return layout


REQUIRED = (
    "draftc",
    "name",
    "family",
    "target",
    "target_layer_ids",
    "block_size",
    "mask_token_id",
    "attentions",
    "layers",
)
READER = ("attentions", "reader")


def _mutations() -> Iterator[Mutation]:
    yield from (drop(key) for key in REQUIRED)
    yield from (drop("target", key) for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    yield from (drop(*READER, key) for key in ("kind", "num_attention_heads", "num_key_value_heads", "head_dim"))
    yield from (put(value, "block_size") for value in (1, 5000, 8.0, "8", True, None, [], {}))
    yield from (put(value, "target_layer_ids") for value in ([], [1, 1], [500], "all", [-1], [1.0], 5))
    yield from (put(value, "mask_token_id") for value in (-1, 1000, 10**30, "1"))
    yield from (put(value, "layers") for value in ([], "reader", ["nobody"], [{}], [{"repeat": 1, "of": ["reader"]}]))
    yield from (put(value, "layers") for value in ([{"repeat": 200, "of": ["reader", "reader"]}], [["reader"]], [None]))
    yield from (put(value, "target") for value in ("qwen3-5b", {"config": "nowhere.json"}, [], None, 7))
    yield from (put(value, "attentions") for value in ({}, [], "reader", {"Reader": {}}, {"reader": "gqa"}))
    yield put({"reader": {"extends": "other"}, "other": {"extends": "reader"}}, "attentions")
    yield put({"reader": {"extends": "reader"}}, "attentions")
    yield put({"reader": {"extends": "nobody"}}, "attentions")
    yield from (put(value, "rope") for value in ({}, "half", None, {"style": "half", "rope_theta": 1}))
    yield from (put(value, *READER, "sliding_window") for value in (1, 0, -4, "none", 2.5))
    yield from (put(value, *READER, "rope") for value in (None, {"style": "neox", "rope_theta": 1e4}, 5))
    yield from (put(value, *READER, "num_key_value_heads") for value in (3, 64, 0))
    yield from (put(1, *where, "zzzz") for where in ((), ("target",), READER))
    yield from (put(value, "family") for value in ("eagle", 3, None, ["dflash"]))
    yield from (put(value, "name") for value in ("A b", "", "a--b", 7, "x" * 65))
    yield from (put(value, "rms_norm_eps") for value in (0, 1, "1e-6", None, 10**400))
    yield from (put(value, "max_position_embeddings") for value in (1, 0, 1e5))
    yield from (put(value, "draft_vocab_size") for value in (1, 10**6))
    yield from (put(value, "allow") for value in (["DC298", "DC298"], ["DC203"], ["x"], "DC251"))
    yield put({"kind": "gqa"}, "x_y")


MUTATIONS = tuple(_mutations())


@st.composite
def broken_layouts(draw: st.DrawFn) -> Facts:
    """A valid layout with one mutation, so that it has at least one error."""
    layout = deepcopy(draw(layouts()))
    draw(st.sampled_from(MUTATIONS))(layout)
    return layout


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.text(max_size=6).filter(_is_yaml),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6).filter(_is_yaml), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def disturbed_layouts(draw: st.DrawFn) -> Facts:
    """A valid layout with anything at all in one place; it may still be valid."""
    layout = deepcopy(draw(layouts()))
    here: Any = layout
    while True:
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else list(range(len(here)))))
        below = here[key]
        if not isinstance(below, (dict, list)) or not below or draw(st.booleans()):
            here[key] = draw(anything)
            return layout
        here = below
