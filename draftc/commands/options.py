"""Arguments and options that several commands share, and what `compile` and `inspect` make of theirs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from draftc.commands.failure import CommandError

if TYPE_CHECKING:
    from draftc.compiler.program import Options

LAYOUT_HELP = "A layout file, `-` for standard input, or the name of a shipped layout."
Layouts = Annotated[list[str], typer.Argument(help=LAYOUT_HELP, metavar="LAYOUT...")]
OneLayout = Annotated[str, typer.Argument(help=LAYOUT_HELP, metavar="LAYOUT")]
Opt = Annotated[int, typer.Option(min=0, max=2, help="0 plain, 1 keeps the numbers, 2 may reorder sums.")]
Disable = Annotated[list[str] | None, typer.Option(help="Pass to leave out, repeatable.", metavar="PASS")]
BackendName = Annotated[str | None, typer.Option(help="Backend for every layer whose operation it implements.")]
Capability = Annotated[
    str | None, typer.Option(help="CUDA capability to select for, e.g. 9.0, or `detect`. Any by default.")
]
Package = Annotated[
    list[str] | None, typer.Option(help="Optional package to select for, repeatable: flash-attn, fla-core.")
]


@dataclass(frozen=True)
class Selection:
    """The options that decide what is built, as they were typed."""

    opt: int
    disable: list[str] | None
    backend: str | None
    capability: str | None
    package: list[str] | None

    def options(self) -> "Options":
        """Return them as the compiler takes them; raises CommandError or CompileError for what means nothing."""
        from draftc.compiler.passes.select import with_packages
        from draftc.compiler.program import Options

        packages = with_packages(self.package) if self.package else None
        capability = capability_of(self.capability)
        return Options(self.opt, tuple(self.disable or ()), self.backend, capability, packages)


def capability_of(text: str | None) -> tuple[int, int] | None:
    """Read a compute capability such as `9.0`; `detect` asks the card. Raises CommandError for anything else."""
    if text is None:
        return None
    if text == "detect":
        from draftc.compiler.passes.select import detected_capability

        return detected_capability()
    major, _, minor = text.partition(".")
    if not major.isdigit() or (minor and not minor.isdigit()):
        raise CommandError(f"--capability {text} is not a compute capability", "write it like 9.0, or detect")
    return int(major), int(minor or 0)
