"""The README of a bundle: what the draft is, how to decode with it, its layers and their backends."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from draftc.compiler.describe import describe_family
from draftc.compiler.families import family_form
from draftc.compiler.naming import names_of
from draftc.compiler.parameters import parameter_count
from draftc.compiler.program import DEVICES, Program
from draftc.compiler.skeleton import render
from draftc.runtime.request import Choice
from draftc.spec.layout import Dflash, Gqa, Kda, LayerSpec, Layout, Mla

FILES = (
    ("config.json", "what transformers reads, and the resolved layout"),
    ("{configuration}.py", "the configuration class"),
    ("{modeling}.py", "the model, complete and readable"),
    ("layout.yaml", "the layout as it was written"),
    ("layout.resolved.json", "the same with nothing implied; `draftc` compiles it as well"),
    ("manifest.json", "hashes, versions, backends with reasons, where values came from"),
    ("model.safetensors", "weights, once there are some"),
)

# transformers' own loop reads slots as DFlash trains them, and knows no heads.
NATIVE = """\
prompt = tokenizer("The first primes are", return_tensors="pt").to(target.device)
text = target.generate(**prompt, assistant_model=draft, speculation_type="dflash", max_new_tokens=128)
print(tokenizer.decode(text[0], skip_special_tokens=True))"""
WITH_HEADS = """\
prompt = tokenizer("The first primes are", return_tensors="pt").to(target.device)
states = target(**prompt, output_hidden_states=True)
token = states.logits[:, -1].argmax(-1)
taps = torch.cat([states.hidden_states[tap + 1] for tap in draft.config.target_layer_ids], dim=-1)
masks = token.new_full((1, draft.config.block_size - 1), draft.config.mask_token_id)
embed = target.get_input_embeddings()
block = draft(embed(torch.cat([token[:, None], masks], dim=1)), taps)
drafted = draft.draft_tokens(block.hidden_states[-1], token, target.get_output_embeddings(), embed)
print(tokenizer.decode(drafted.tokens[0]))  # what may follow the token; `draftc generate` runs the whole loop"""


def forms(program: Program) -> str:
    """Say which classes decode in the place of others; empty where none does."""
    found = {pair: None for device in DEVICES for pair in program.decoding_forms(device).items()}
    named = ", ".join(f"`{form}` takes the place of `{plain}`" for plain, form in found)
    if not named:
        return ""
    return (
        f"A forward without anchors decodes, and then {named}: the same parameters, the same cache, fewer operations. "
        'Before compiling a decoding step with `torch.compile`, call `draft.prepare_decoding("cuda")`.'
    )


def _paragraph(text: str) -> str:
    return f"\n\n{text}" if text else ""


def readme(program: Program, held: tuple[str, ...], version: str) -> str:
    """Return the text of `README.md`. The layout's description reaches this file and no other that is executed."""
    layout = program.layout
    return render(
        "README.md.j2",
        layout_name=layout.name,
        family=layout.family.name,
        base_model=layout.target.name_or_path if is_repository(layout.target.name_or_path) else None,
        description=layout.description or f"Draft model {layout.name} for speculative decoding.",
        target=layout.target.name_or_path or f"a target of width {layout.target.hidden_size}",
        target_path=path_text(layout.target.name_or_path),
        summary=summary(layout),
        parameters=f"{parameter_count(program):,}",
        version=version,
        dtype=layout.dtype,
        taps=", ".join(str(tap) for tap in layout.target_layer_ids),
        drafted=drafted_per_step(layout),
        heads=_paragraph(describe_family(layout.family)),
        use=(NATIVE if isinstance(layout.family, Dflash) else WITH_HEADS),
        layers=layer_table(program),
        backends=backend_table(program),
        held=", ".join(f"`{name}`" for name in held),
        forms=_paragraph(forms(program)),
        files=file_list(layout),
    )


def summary(layout: Layout) -> str:
    """Say depth, width and block size."""
    count = len(layout.layers)
    return f"{count} layer{'s' if count > 1 else ''} of width {layout.hidden_size}, blocks of {layout.block_size} slots"


def drafted_per_step(layout: Layout) -> int:
    """Tokens that a step proposes."""
    return family_form(layout).slots.drafted


def is_repository(name: str | None) -> bool:
    """Whether `name` is a repository id that a model card may name as its base."""
    return name is not None and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def path_text(name: str | None) -> str:
    """Return the target's name for a string literal in the usage example; a placeholder when it has none."""
    return name if name is not None and re.fullmatch(r"[\w./-]+", name) else "PATH/OF/THE/TARGET"


def layer_table(program: Program) -> str:
    """One row per run of equal layers."""
    rows = []
    numbered = list(zip(program.layout.layers, program.stack, strict=True))
    for _, run in groupby(numbered, key=lambda pair: (pair[0].name, pair[1])):
        found = list(run)
        spec, name = found[0]
        rows.append((span(spec.index, found[-1][0].index), spec.name, shape(spec), visible(spec), f"`{name}`"))
    return table(("layers", "attention", "shape", "sees", "class"), rows)


def span(first: int, last: int) -> str:
    """Numbers of a run of layers."""
    return str(first) if first == last else f"{first} to {last}"


def shape(spec: LayerSpec) -> str:
    """Say the kind and the widths of a layer's attention."""
    match spec.attention:
        case Gqa() as gqa:
            return f"{gqa.kind}, {gqa.num_attention_heads}/{gqa.num_key_value_heads} heads of {gqa.head_dim}"
        case Mla() as mla:
            widths = f"{mla.qk_nope_head_dim}+{mla.qk_rope_head_dim}"
            return f"mla, {mla.num_attention_heads} heads of {widths}, latent of {mla.kv_lora_rank}"
        case Kda() as kda:
            return f"kda, {kda.num_heads} heads of {kda.head_dim}, {kda.context_state}"


def visible(spec: LayerSpec) -> str:
    """Say what a query of the layer may see."""
    if isinstance(spec.attention, Kda):
        return "context and own block, in order" if spec.attention.sees_context else "own block, in order"
    window = spec.attention.sliding_window
    order = ", causal in the block" if spec.attention.is_causal else ""
    return ("all" if window is None else f"{window} positions") + order


def backend_table(program: Program) -> str:
    """The chosen backends by phase and device, with the reasons why better ones were passed over."""
    rows = []
    for (phase, device), names in program.table.items():
        made = [program.choices.get((layer, phase, device)) for layer in range(len(names))]
        choices = [choice for choice in made if choice is not None]
        rows.append((phase, device, ", ".join(f"`{name}`" for name in dict.fromkeys(names)), reasons(choices)))
    return table(("phase", "device", "backends", "passed over"), rows)


def reasons(choices: Iterable[Choice]) -> str:
    """Say once for each better backend why some layer could not use it."""
    found = {
        f"`{name}`: {refusal.reason}": None
        for choice in choices
        for name, refusals in choice.refusals
        for refusal in refusals
    }
    return "; ".join(found) or "none"


def file_list(layout: Layout) -> str:
    """One line per file of the bundle."""
    names = names_of(layout.name)
    words = {"configuration": names.configuration, "modeling": names.modeling}
    return "\n".join(f"- `{name.format(**words)}`: {what}" for name, what in FILES)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
