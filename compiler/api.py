"""Compile a layout: build, trace, run the passes, write out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftc.compiler import write
from draftc.compiler.emit import bundle_files
from draftc.compiler.naming import names_of
from draftc.compiler.passes.driver import run_passes
from draftc.compiler.program import Options, PassReport, Program, assemble
from draftc.spec.layout import Layout

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class CompiledDraft:
    """A compiled layout: the program after all passes, what each pass reported, and the text files of the bundle."""

    layout: Layout
    program: Program
    reports: tuple[PassReport, ...]
    files: Mapping[str, str] = field(repr=False)

    def model(self, device: "str | torch.device" = "cpu", dtype: "torch.dtype | None" = None) -> Any:
        """Return the model, with fresh weights, as the class that the bundle holds.

        `dtype` is that of the layout unless given; `A_log` and `dt_bias` are never narrower than float32. Device `meta`
        takes no memory. Raises OSError when the cache of bundles cannot be written.
        """
        import torch

        from draftc import bundles
        from draftc.compiler.weights import tensor_dtype

        names = names_of(self.layout.name)
        module = bundles.install(names.identifier, self.files)
        model_class = getattr(module, names.model_class)
        config = model_class.config_class.from_dict(json.loads(self.files[write.CONFIG]))
        wanted = dtype or getattr(torch, self.layout.dtype)
        with torch.device(device):
            model = model_class._from_config(config, dtype=wanted)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(tensor_dtype(name, wanted))
        return model

    def write(self, folder: str | Path, *, weights: "str | Path | Mapping[str, Tensor] | None" = None) -> None:
        """Write the bundle to `folder`, whole or not at all; an older bundle there is replaced.

        `weights` is `random`, a safetensors file or a folder of them, or a state dict; without it the weights of a
        replaced bundle stay. Raises BundleError when `folder` is something else than a bundle, WeightsError when
        weights, given or already there, do not fit the layout.
        """
        target = Path(folder).resolve()
        write.require_replaceable(target)
        if weights is None:
            self._require_fitting_weights(target)
            write.write_folder(target, self.files)
        else:
            given = weights
            write.write_folder(target, self.files, fill=lambda fresh: self._write_weights(given, fresh))

    def stale(self, folder: str | Path) -> tuple[str, ...]:
        """Return why the bundle in `folder` is not this one, one reason per file; empty when it is."""
        return write.stale(Path(folder), self.files)

    def _write_weights(self, weights: "str | Path | Mapping[str, Tensor]", fresh: Path) -> None:
        from draftc.compiler import weights as stored

        if weights == stored.RANDOM:
            stored.require_drawable(self.program)
            stored.write_state(stored.random_state(self.model), self.program, fresh)
        elif isinstance(weights, str | Path):
            stored.write_from_file(Path(weights), self.program, fresh)
        else:
            stored.write_state(weights, self.program, fresh)

    def _require_fitting_weights(self, folder: Path) -> None:
        """Raise WeightsError when `folder` holds weights of another architecture, which this bundle could not load."""
        if not any(folder.glob("*.safetensors")):
            return
        from draftc.compiler.weights import require_fitting, shapes_in, weight_files

        require_fitting(shapes_in(weight_files(folder)), self.program, f"{folder.name}, which are kept,")


def compile(layout: Layout, options: Options | None = None, *, text: str | None = None) -> CompiledDraft:  # noqa: A001
    """Compile `layout`; nothing is instantiated and no tensor operation runs.

    `text` is the layout as it was written, for the bundle. Equal arguments give equal bytes.
    Raises CompileError: a family that cannot be built yet, a backend that a layer refuses, an unknown pass.
    """
    program = assemble(layout, options or Options())
    reports = run_passes(program)
    return CompiledDraft(layout, program, reports, bundle_files(program, text))
