"""Names of attentions across the whole layout: unused, the same twice, and colliding as class names."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf

from draftc.spec.attentions import chain_of
from draftc.spec.diagnostic import Diagnostic, Label
from draftc.spec.layers import Stack, Written
from draftc.spec.layout import AttentionSpec
from draftc.spec.resolution_codes import ATTENTION_REPEATED, ATTENTION_UNUSED, CLASS_NAME_COLLISION


def class_stem(attention: str) -> str:
    """Return what the class names of an attention begin with: `a_b` gives `AB`, as in `ABAttention`."""
    return "".join(part.capitalize() for part in attention.split("_"))


def unused(written: MappingOf[str, Written], stack: Stack) -> Iterator[Diagnostic]:
    """Yield DC124 for attentions that no layer reaches, directly or as a base; nothing while a name is unknown."""
    chains = [chain_of(name, written) for name in stack.names]
    reached = {name for chain in chains for name in chain}
    if not stack.is_named or any(name not in written for name in reached):
        return
    for name, one in written.items():
        if name not in reached:
            yield Diagnostic(
                ATTENTION_UNUSED, f"no layer uses {name}", one.place, help="name it in `layers`, or delete it"
            )


def repeated(specs: MappingOf[str, AttentionSpec], written: MappingOf[str, Written]) -> Iterator[Diagnostic]:
    """Yield DC125 for each attention that resolves to the same values as an earlier one."""
    first: dict[AttentionSpec, str] = {}
    for name, spec in specs.items():
        earlier = first.setdefault(spec, name)
        if earlier != name:
            yield Diagnostic(
                ATTENTION_REPEATED,
                f"{name} and {earlier} are the same attention",
                written[name].place,
                (Label(written[earlier].place, f"{earlier} is here"),),
                help="use one name in `layers`",
            )


def colliding(written: MappingOf[str, Written], stack: Stack) -> Iterator[Diagnostic]:
    """Yield DC126 for each name in use whose class name an earlier name has taken."""
    first: dict[str, str] = {}
    for name in stack.names:
        earlier = first.setdefault(class_stem(name), name)
        if earlier != name and name in written and earlier in written:
            yield Diagnostic(
                CLASS_NAME_COLLISION,
                f"{earlier} and {name} would both become class {class_stem(name)}Attention",
                written[name].place,
                (Label(written[earlier].place, f"{earlier} is here"),),
                help="rename one of them",
            )
