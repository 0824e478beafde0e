"""What each family adds to a stack of layers: classes of `runtime/`, fields of the configuration, tensors, slots.

Nothing here is built: heads are ordinary Python of `runtime/`, linked into the bundle as it is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import assert_never

from draftc.compiler.sources import Symbol
from draftc.runtime.heads.slots import SlotRule, domino_slots, dspark_slots, own_slots
from draftc.spec.layout import Dflash, Dflash2, Domino, Dspark, Layout
from draftc.spec.nodes import Value

MODEL = Symbol("draftc.runtime.draft", "DraftModel")
CONFIG = Symbol("draftc.runtime.config", "DraftConfig")
FAMILIES = "draftc.runtime.families"
MARKOV = "draftc.runtime.heads.markov"
# The vanilla head is the one that a DSpark draft has unless it is told another.
MARKOV_CLASSES = {"gated": "GatedMarkovHead", "rnn": "RecurrentMarkovHead"}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FamilyForm:
    """The heads of a layout's family.

    `model` and `config` are the classes that those of the bundle derive from, `parts` further class attributes of the
    model. `fields` are those of the configuration, `nested` what readers of the public formats find in `dflash_config`.
    `tensors` are the heads' by name, `products` the widths `(in, out)` of what they multiply for each predicted token.
    """

    slots: SlotRule
    model: Symbol = MODEL
    config: Symbol = CONFIG
    parts: Mapping[str, Symbol] = field(default_factory=dict)
    fields: Mapping[str, Value] = field(default_factory=dict)
    nested: Mapping[str, Value] = field(default_factory=dict)
    tensors: Mapping[str, Shape] = field(default_factory=dict)
    products: tuple[tuple[int, int], ...] = ()


def family_form(layout: Layout) -> FamilyForm:
    """Return what the family of `layout` adds to its stack."""
    match layout.family:
        case Dflash():
            return FamilyForm(own_slots(layout.block_size))
        case Dflash2() as family:
            return _dflash2(family, layout)
        case Domino() as family:
            return _domino(family, layout)
        case Dspark() as family:
            return _dspark(family, layout)
        case _:
            assert_never(layout.family)


def _dflash2(family: Dflash2, layout: Layout) -> FamilyForm:
    rows, rank = layout.target.vocab_size, family.selector_rank
    return FamilyForm(
        slots=own_slots(layout.block_size),
        model=Symbol(f"{FAMILIES}.dflash2", "Dflash2Draft"),
        config=Symbol(f"{FAMILIES}.dflash2", "Dflash2Config"),
        fields=asdict(family),
        nested=asdict(family),
        tensors={
            "candidate_selector.predecessor_codebook": (rows, rank),
            "candidate_selector.successor_codebook": (rows, rank),
            "candidate_selector.hidden_projection.weight": (rank, layout.hidden_size),
        },
        products=((layout.hidden_size, rank), (rank, family.selector_top_k)),
    )


def _domino(family: Domino, layout: Layout) -> FamilyForm:
    state, target = family.gru_hidden_dim, layout.target
    products = {
        "prefix_gru.weight_ih_l0": (target.hidden_size, 3 * state),
        "prefix_gru.weight_hh_l0": (state, 3 * state),
        "embed_proj.0.weight": (layout.hidden_size + state, family.emb_dim),
        "embed_proj.2.weight": (family.emb_dim, target.vocab_size),
    }
    return FamilyForm(
        slots=domino_slots(layout.block_size, family.shift_label),
        model=Symbol(f"{FAMILIES}.domino", "DominoDraft"),
        config=Symbol(f"{FAMILIES}.domino", "DominoConfig"),
        fields=asdict(family),
        nested={"projector_type": "domino", **asdict(family)},
        tensors={name: (out, width) for name, (width, out) in products.items()},
        products=tuple(products.values()),
    )


def _dspark(family: Dspark, layout: Layout) -> FamilyForm:
    fields = asdict(family) | {"confidence_head_with_markov": bool(family.confidence_head_with_markov)}
    products = {**_markov_products(family, layout), **_confidence_products(family, layout)}
    kind = family.markov_head_type
    return FamilyForm(
        slots=dspark_slots(layout.block_size, family.sample_from_anchor),
        model=Symbol(f"{FAMILIES}.dspark", "DsparkDraft"),
        config=Symbol(f"{FAMILIES}.dspark", "DsparkConfig"),
        parts={"markov_class": Symbol(MARKOV, MARKOV_CLASSES[kind])} if kind in MARKOV_CLASSES else {},
        fields=fields,
        nested={"projector_type": "dspark", **fields},
        tensors=dict(_dspark_tensors(family, layout, products)),
        products=tuple(products.values()),
    )


def _dspark_tensors(
    family: Dspark, layout: Layout, products: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, Shape]]:
    """The heads' tensors in the order of their modules; all but the projection to the vocabulary have a bias."""
    if family.markov_rank:
        yield "markov_head.markov_w1.weight", (layout.target.vocab_size, family.markov_rank)
    for name, (width, out) in products.items():
        yield f"{name}.weight", (out, width)
        if not name.endswith("markov_w2"):
            yield f"{name}.bias", (out,)


def _markov_products(family: Dspark, layout: Layout) -> Mapping[str, tuple[int, int]]:
    """Widths `(in, out)` of the linear layers of the Markov head, in the order of its modules."""
    rank, width = family.markov_rank, layout.hidden_size
    if not rank:
        return {}
    last = {"markov_head.markov_w2": (rank, layout.draft_vocab_size)}
    if family.markov_head_type == "gated":
        return last | {"markov_head.gate_proj": (width + rank, rank)}
    if family.markov_head_type == "rnn":
        return last | {"markov_head.joint_proj": (2 * rank + width, 3 * rank)}
    return last


def _confidence_products(family: Dspark, layout: Layout) -> Mapping[str, tuple[int, int]]:
    if not family.enable_confidence_head:
        return {}
    rank = family.markov_rank if family.confidence_head_with_markov else 0
    return {"confidence_head.proj": (layout.hidden_size + rank, 1)}
