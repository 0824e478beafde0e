"""Selection takes the best backend that refuses nothing, keeps every refusal, and obeys overrides or says why not."""

from dataclasses import replace

import pytest

from draftc.compiler.errors import BackendError, UnknownNameError
from draftc.compiler.passes.driver import run_passes
from draftc.compiler.passes.select import BACKENDS, PLAIN_PACKAGES, ranked, with_packages
from draftc.compiler.program import DEVICES, PHASES, Options, Program, assemble
from draftc.runtime.request import BackendRequest
from draftc.spec.layout import Layout
from tests.compiler.support import ATTENTIONS, KDA, layout, qwen3_8b

NONE = {"torch": "2.13.0", "triton": None, "flash-attn": None, "fla-core": None}
ALL = {"torch": "2.13.0", "triton": "3.5.0", "flash-attn": "2.8.0", "fla-core": "0.6.0"}


def selected(made: Layout, **options: object) -> Program:
    program = assemble(made, Options(**{"packages": NONE, **options}))
    run_passes(program)
    return program


def recurrent(**changes: object) -> Layout:
    return replace(layout("recurrent", attentions={"recurrent": replace(KDA, **changes)}), dtype="bfloat16")


def test_dense_layers_without_packages() -> None:
    program = selected(qwen3_8b())
    assert {key: set(names) for key, names in program.table.items()} == {
        ("training", "cpu"): {"sdpa"},
        ("training", "cuda"): {"flex"},
        ("decoding", "cpu"): {"sdpa"},
        ("decoding", "cuda"): {"sdpa"},
    }


def test_packages_bring_their_backends() -> None:
    assert selected(qwen3_8b(), packages=ALL).backend(0, "decoding", "cuda") == "flash"


def test_kda_takes_the_fastest_kernel_that_refuses_nothing() -> None:
    wide = replace(recurrent(head_dim=128), block_size=16)
    packages = {**ALL, "triton": "3.6.0"}
    assert selected(wide, packages=packages, capability=(9, 0)).backend(0, "training", "cuda") == "kda_gluon"
    assert selected(wide, packages=packages, capability=(8, 0)).backend(0, "training", "cuda") == "kda_triton"
    assert selected(wide, packages=packages).backend(0, "training", "cuda") == "kda_triton"
    long = replace(wide, block_size=48)
    assert selected(long, packages=packages).backend(0, "training", "cuda") == "kda_fla"
    assert selected(long).backend(0, "training", "cuda") == "kda_block"
    assert selected(wide, packages=packages, capability=(9, 0)).backend(0, "training", "cpu") == "kda_block"


def test_kda_takes_a_slower_kernel_by_name() -> None:
    wide = replace(recurrent(head_dim=128), block_size=16)
    fitting = {"packages": {**ALL, "triton": "3.6.0"}, "capability": (9, 0)}
    assert selected(wide, **fitting, backend="kda_fla").backend(0, "training", "cuda") == "kda_fla"
    assert selected(wide, **fitting, backend="kda_triton").backend(0, "training", "cpu") == "kda_block"


@pytest.mark.parametrize(
    ("backend", "changes", "options", "says"),
    [
        ("kda_gluon", {}, {}, "the card is not known; compute capability 9.0 is needed"),
        ("kda_gluon", {}, {"capability": (8, 6)}, "compute capability 8.6 is below 9.0"),
        ("kda_gluon", {"dtype": "float16"}, {"capability": (9, 0)}, "compute in bfloat16, not float16"),
        ("kda_gluon", {"block_size": 12}, {"capability": (9, 0)}, "block_size 12 is none of"),
        ("kda_triton", {"block_size": 48}, {}, "block_size 48 is outside [2, 32]"),
        ("kda_triton", {}, {"capability": (7, 5)}, "compute capability 7.5 is below 8.0"),
    ],
)
def test_kernels_refuse_with_numbers(backend: str, changes: dict, options: dict, says: str) -> None:
    made = replace(recurrent(head_dim=128), **{"block_size": 16, **changes})
    with pytest.raises(BackendError) as refused:
        selected(made, packages={**ALL, "triton": "3.6.0"}, backend=backend, **options)
    assert any(says in note for note in refused.value.notes)


def test_every_layer_phase_and_device_has_a_choice() -> None:
    program = selected(layout(*ATTENTIONS))
    assert set(program.choices) == {(i, p, d) for i in range(len(ATTENTIONS)) for p in PHASES for d in DEVICES}


def test_refusals_of_better_backends_are_kept_with_their_numbers() -> None:
    choice = selected(recurrent(gate_lower_bound=-12.0), packages=ALL).choices[0, "training", "cuda"]
    passed_over = dict(choice.refusals)
    assert choice.backend == "kda_block"
    assert list(passed_over) == ["kda_gluon", "kda_triton", "kda_fla"]
    assert all(any("-12" in refusal.reason for refusal in reasons) for reasons in passed_over.values())


def test_capability_is_asked_of_cuda_only() -> None:
    program = selected(qwen3_8b(), capability=(6, 1), packages=ALL)
    assert program.backend(0, "training", "cuda") == "sdpa"
    reasons = dict(program.choices[0, "decoding", "cuda"].refusals)
    assert any("6.1" in refusal.reason for refusal in reasons["flash"])
    assert not any(
        refusal.word == "capability" for _, found in program.choices[0, "training", "cpu"].refusals for refusal in found
    )


def test_dropout_counts_in_training_only() -> None:
    program = selected(replace(qwen3_8b(), attention_dropout=0.1))
    assert program.backend(0, "training", "cuda") == "sdpa"
    assert any("0.1" in r.reason for r in dict(program.choices[0, "training", "cuda"].refusals)["flex"])
    assert "dropout" not in str(program.choices[0, "decoding", "cuda"].refusals)


def test_opt_0_takes_the_plainest() -> None:
    program = selected(layout("recurrent", "context", dtype="bfloat16"), opt=0, packages=ALL)
    assert set(program.table.values()) == {("kda_recurrent", "eager")}


def test_an_override_wins_where_it_can_run() -> None:
    program = selected(replace(qwen3_8b(), attention_dropout=0.0), backend="flex")
    assert program.choices[0, "decoding", "cuda"].backend == "flex"
    assert program.choices[0, "decoding", "cuda"].forced_by == "--backend flex"
    assert program.choices[0, "training", "cpu"].backend == "sdpa"
    assert program.choices[0, "training", "cpu"].forced_by is None


def test_overrides_fit_operations() -> None:
    program = selected(layout("recurrent", "context"), backend="eager, kda_recurrent")
    assert set(program.table.values()) == {("kda_recurrent", "eager")}
    program = selected(layout("recurrent", "context"), backend="eager")
    assert set(program.table.values()) == {("kda_block", "eager")}


def test_an_override_that_is_refused_everywhere_says_why() -> None:
    with pytest.raises(BackendError, match="backend flash refuses layer 1") as caught:
        selected(layout("recurrent", "context"), backend="flash")
    assert any("float32" in note for note in caught.value.notes)
    assert len(caught.value.notes) == 4


def test_an_override_that_no_layer_can_use() -> None:
    with pytest.raises(BackendError, match="kda_block runs kda, and no layer of tiny does"):
        selected(layout("context"), backend="kda_block")


def test_an_unknown_override() -> None:
    with pytest.raises(UnknownNameError, match="there is no backend sdp") as caught:
        selected(layout("context"), backend="sdp")
    assert caught.value.help == "did you mean `sdpa`?"
    with pytest.raises(UnknownNameError) as caught:
        selected(layout("context"), backend="cutlass")
    assert "sdpa" in caught.value.help


@pytest.mark.parametrize("op", BACKENDS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("device", DEVICES)
def test_one_backend_always_runs(op: str, phase: str, device: str) -> None:
    """The plainest backend refuses nothing, so that selection never fails."""
    request = BackendRequest(op, phase, device, "float64", 7, 5, 3, 1, 2, dropout=0.5, gate_lower_bound=-99.0)
    assert not ranked(request, plain=True)[0].refuse(request)


def test_the_machine_decides_nothing_unless_asked() -> None:
    plain = selected(recurrent(), packages=None).choices
    assert plain == selected(recurrent(), packages=PLAIN_PACKAGES).choices
    assert with_packages(["fla-core"])["fla-core"]
    assert with_packages([]) == PLAIN_PACKAGES


def test_a_package_that_no_backend_needs_is_named() -> None:
    with pytest.raises(UnknownNameError, match="no backend needs a package numpy"):
        with_packages(["numpy"])
