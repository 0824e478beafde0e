"""The driver runs what was asked for, in order, and notices a pass that breaks a program."""

import logging
from dataclasses import dataclass, field

import pytest

from draftc.compiler.errors import InternalError, UnknownNameError
from draftc.compiler.passes import PASSES
from draftc.compiler.passes.annotate import Annotate
from draftc.compiler.passes.driver import run_passes
from draftc.compiler.passes.verify import verify
from draftc.compiler.program import Options, PassReport, Program, Unit, assemble
from draftc.spec.span import Origin
from tests.compiler.support import ATTENTIONS, layout


def names(opt: int, *disable: str) -> list[str]:
    options = Options(opt=opt, disable=disable)
    return [report.name for report in run_passes(assemble(layout("context"), options))]


def test_levels_and_order() -> None:
    assert names(0) == ["annotate", "verify", "select", "cost"]
    assert names(1) == ["annotate", "verify", "select", "cost"]
    assert names(2) == ["annotate", "verify", "select", "fuse", "cost"]


def test_disabled_passes_do_not_run() -> None:
    assert names(2, "fuse", "verify") == ["annotate", "select", "cost"]
    assert names(1, "annotate", "cost") == ["verify", "select"]


def test_without_select_the_plain_backends_run() -> None:
    program = assemble(layout("recurrent", "context"), Options(disable=("select",)))
    run_passes(program)
    assert program.choices == {}
    assert set(program.table.values()) == {("kda_recurrent", "eager")}


@pytest.mark.parametrize(
    ("options", "message", "way_out"),
    [
        (Options(disable=("fuze",)), "there is no pass fuze to disable", "did you mean `fuse`?"),
        (Options(disable=("everything",)), "there is no pass everything", "annotate, verify, select, fuse, cost"),
        (Options(disable=("annotate",)), "pass cost requires annotate, which is disabled", "disable cost as well"),
        (Options(opt=3), "optimisation level 3 is none of 0, 1, 2", ""),
    ],
)
def test_options_that_name_nothing(options: Options, message: str, way_out: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        run_passes(assemble(layout("context"), options))
    assert message in caught.value.message
    assert way_out in caught.value.help


def test_reports_are_numbered_timed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="draftc.compiler.passes.driver"):
        reports = run_passes(assemble(layout("context"), Options(opt=2)))
    assert [report.number for report in reports] == [1, 2, 3, 4, 5]
    assert all(report.seconds > 0 for report in reports)
    fuse = reports[3]
    assert fuse.changed
    assert fuse.before["Linear"] - fuse.after["Linear"] == 4
    assert fuse.after["linear"] == 2
    assert [report.changed for report in reports] == [False, False, False, True, False]
    assert [record.message.split(":")[0] for record in caplog.records][3] == "pass 4 fuse"


def test_every_pass_states_its_algebra() -> None:
    assert len({entry.name for entry in PASSES}) == len(PASSES)
    for entry in PASSES:
        for word in ("Algebra:", "Requires:", "Ensures:"):
            assert word in type(entry).__doc__, entry.name


@dataclass(frozen=True)
class Breaking:
    """A pass that damages the graph of the first attention."""

    how: str
    name: str = "breaking"
    level: int = 0
    requires: tuple[str, ...] = field(default=())

    def run(self, program: Program) -> PassReport:
        damage(program.units[0], self.how)
        return PassReport(self.name)


def damage(unit: Unit, how: str) -> None:
    nodes = {node.name: node for node in unit.graph.nodes}
    if how == "unused":
        with unit.graph.inserting_after(nodes["cat"]):
            unit.graph.call_method("contiguous", (nodes["cat"],)).meta.update(statement=-1, roles=())
    elif how == "target":
        nodes["q_proj"].target = "p_proj"
    elif how == "statement":
        del nodes["q_proj"].meta["statement"]
    elif how == "note":
        nodes["q_proj"].meta["mine"] = 1
    elif how == "shape":
        nodes["transpose"].args = (nodes["unflatten"], 1, 3)
    elif how == "dims":
        nodes["q_proj"].meta["dims"] = nodes["k_proj"].meta["dims"]
    elif how == "order":
        nodes["cat"].prepend(nodes["k_proj"])
    elif how == "inputs":
        with unit.graph.inserting_after(nodes["memory"]):
            unit.graph.placeholder("extra")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("unused", "nobody uses contiguous"),
        ("target", "p_proj"),
        ("statement", "q_proj belongs to no statement"),
        ("note", "q_proj carries mine"),
        ("dims", "q_proj of ContextAttention is noted as"),
        ("order", "used before it has been defined"),
        ("inputs", "its graph takes"),
        ("shape", "transpose of ContextAttention is noted as"),
    ],
)
def test_a_broken_program_is_a_fault_that_names_the_pass(how: str, reason: str) -> None:
    program = assemble(layout("context"))
    with pytest.raises(InternalError, match=reason) as caught:
        run_passes(program, (Annotate(), Breaking(how)))
    assert "ContextAttention" in caught.value.message


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_kind_passes_all_passes(name: str) -> None:
    for opt in (0, 1, 2):
        program = assemble(layout(name), Options(opt=opt))
        run_passes(program)
        verify(program, after="all passes")


def test_attention_operations_carry_their_spec_and_origin() -> None:
    origin = Origin("layout")
    made = layout("context", "scan", origins={"/attentions/scan": origin})
    program = assemble(made)
    Annotate().run(program)
    marked = {
        node.target.__name__: (node.meta["spec"], node.meta["origin"])
        for unit in program.units
        for node in unit.graph.nodes
        if "spec" in node.meta
    }
    assert marked == {
        "attend": (ATTENTIONS["context"], None),
        "kda": (ATTENTIONS["scan"], origin),
        "kda_states": (ATTENTIONS["scan"], origin),
    }
