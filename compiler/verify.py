"""Does a bundle compute what the reference modules compute? Asked of a fresh process that has no draftc."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from draftc.compiler import build, probe
from draftc.compiler.errors import CompileError, UnknownNameError
from draftc.compiler.passes.select import BACKENDS
from draftc.compiler.write import MANIFEST, BundleError, is_bundle
from draftc.spec.check import check_text
from draftc.spec.compiling_codes import BUNDLE_DOES_NOT_RUN
from draftc.spec.diagnostic import LayoutError
from draftc.spec.layout import Layout

RESOLVED = "layout.resolved.json"
AGAIN = "`draftc compile` writes the files of a bundle anew"
# Largest difference, relative to the largest reference entry, between two orders of summation in that dtype.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}
FORWARD_ONLY_ON_CPU = ("flex",)


class VerifyError(CompileError):
    """The bundle could not be run."""

    code = BUNDLE_DOES_NOT_RUN


@dataclass(frozen=True, slots=True)
class Difference:
    """One compared value: the largest absolute difference, and the same relative to the largest reference entry."""

    what: str
    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What running a bundle on one backend showed. `backend` None: as the bundle chooses by itself."""

    backend: str | None
    device: str
    dtype: str
    tolerance: float
    differences: tuple[Difference, ...]

    @property
    def largest(self) -> Difference:
        """The value that differs most."""
        return max(self.differences, key=lambda difference: difference.relative)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the bundle does not pass; empty when it does. A NaN on either side never passes."""
        return tuple(
            f"{found.what} differs by {found.relative:.2e} of its scale, more than {self.tolerance:.0e}"
            for found in self.differences
            if not found.relative <= self.tolerance
        )


def verify(
    folder: Path,
    backends: tuple[str | None, ...] = (None,),
    dtype: str = "float32",
    device: str = "cpu",
    whole: bool = False,
) -> Iterator[Verdict]:
    """Compare the bundle in `folder` with the reference modules of its layout, one verdict per backend.

    Weights and inputs are drawn in `dtype`, not loaded. One layer of each class is run, or the `whole` stack. The
    reference always runs on eager, `kda_recurrent` and opt 0. Raises BundleError when `folder` is no bundle,
    UnknownNameError for a backend or device that does not exist here, and VerifyError when the bundle's code fails.
    """
    require_known(backends)
    require_device(device)
    layout = layout_of(folder)
    layers = list(range(len(layout.layers))) if whole else first_of_each(layout)
    reference = reference_run(layout, layers, dtype, device)
    for backend in backends:
        with_gradients = not (device == "cpu" and backend in FORWARD_ONLY_ON_CPU)
        found = bundle_run(folder, layers, dtype, device, backend, with_gradients)
        yield Verdict(backend, device, dtype, TOLERANCE[dtype], tuple(compared(reference, found)))


def require_known(backends: tuple[str | None, ...]) -> None:
    """Raise UnknownNameError for a name that no backend has; several names may be joined by commas."""
    known = {backend.name for backends in BACKENDS.values() for backend in backends}
    for name in (word.strip() for names in backends for word in (names or "").split(",")):
        if name and name not in known:
            raise UnknownNameError(f"there is no backend {name}", help=f"backends are {', '.join(sorted(known))}")


def require_device(device: str) -> None:
    """Raise UnknownNameError unless tensors can live on `device` here."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UnknownNameError("there is no CUDA device here", help="verify on cpu, or on a machine with a card")


def layout_of(folder: Path) -> Layout:
    """Return the layout of a bundle from its resolved form; raises BundleError when `folder` is no bundle."""
    if not is_bundle(folder) or not (folder / RESOLVED).is_file():
        raise BundleError(f"{folder} is no bundle: it has no {MANIFEST} with {RESOLVED}", help="compile a layout first")
    report = check_text((folder / RESOLVED).read_bytes(), str(folder / RESOLVED), folder)
    try:
        return report.require()
    except LayoutError as error:
        raise BundleError(f"the layout of {folder} is broken", notes=(str(error),), help=AGAIN) from None


def first_of_each(layout: Layout) -> list[int]:
    """Return the first layer of each distinct one, by attention and feed-forward part."""
    seen: dict[object, int] = {}
    for layer in layout.layers:
        seen.setdefault((layer.attention, layer.mlp), layer.index)
    return list(seen.values())


def reference_run(layout: Layout, layers: list[int], dtype: str, device: str) -> dict[str, Tensor]:
    """Run the reference modules of `layers` on the plain backends."""
    picked = tuple(replace(layout.layers[i], index=n) for n, i in enumerate(layers))
    model = build.reference(replace(layout, layers=picked))
    precision = getattr(torch, dtype)
    for name, parameter in model.named_parameters():
        kept = name.rpartition(".")[2] in model._keep_in_fp32_modules_strict
        parameter.data = parameter.data.to(torch.promote_types(precision, torch.float32) if kept else precision)
    return probe.measure(model, precision, device, with_gradients=True)


def bundle_run(
    folder: Path, layers: list[int], dtype: str, device: str, backend: str | None, with_gradients: bool
) -> dict[str, Tensor]:
    """Run the bundle in a process of its own; raises VerifyError with the end of what it printed when it fails."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as scratch:
        request, result = Path(scratch, "request.json"), Path(scratch, "result.safetensors")
        asked = {
            "folder": str(folder.resolve()),
            "layers": layers,
            "dtype": dtype,
            "device": device,
            "backend": backend,
            "gradients": with_gradients,
        }
        request.write_text(json.dumps(asked), encoding="utf-8")
        environment = os.environ | {"HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        # -I keeps the working folder and PYTHONPATH, and with them draftc's sources, off the path.
        command = [sys.executable, "-I", str(Path(probe.__file__).resolve()), str(request), str(result)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = ran.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            said = [line for line in ran.stderr.splitlines() if line.strip(" ^~")]
            raise VerifyError(f"the bundle in {folder.name} fails: {last[0]}", notes=tuple(said[-9:-1]), help=AGAIN)
        return load_file(result)


def compared(reference: dict[str, Tensor], found: dict[str, Tensor]) -> Iterator[Difference]:
    """Yield the difference of every value of `found`; a value that the reference lacks differs infinitely."""
    for what, value in found.items():
        expected = reference.get(what)
        if expected is None or expected.shape != value.shape:
            yield Difference(what, float("inf"), float("inf"))
            continue
        absolute = float((value.double() - expected.double()).abs().max()) if value.numel() else 0.0
        scale = float(expected.double().abs().max()) if value.numel() else 0.0
        yield Difference(what, absolute, absolute / scale if scale else absolute)
