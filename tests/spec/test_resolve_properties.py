"""Any valid layout resolves to a fixed point; any broken one is refused with words; nothing ends in a traceback."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftc.spec.check import CheckReport, check_text
from draftc.spec.diagnostic import Severity
from draftc.spec.resolved import origins, resolved, resolved_json
from tests.spec.strategies import Facts, broken_layouts, disturbed_layouts, layouts, text_of

QUICK = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def check(layout: Facts) -> CheckReport:
    return check_text(text_of(layout), "layout.json", Path("/nonexistent"))


def errors(report: CheckReport) -> list[str]:
    found = [*report.diagnostics, *report.allowed]
    return [f"{one.code.number} {one.message}" for one in found if one.severity is Severity.ERROR]


@QUICK
@given(layouts())
def test_generated_layouts_are_valid(layout: Facts) -> None:
    report = check(layout)
    assert errors(report) == []
    assert report.layout is not None


@QUICK
@given(layouts())
def test_resolving_the_resolved_form_gives_the_same_bytes(layout: Facts) -> None:
    first = check(layout).require()
    text = resolved_json(first)
    again = check_text(text.encode(), "layout.resolved.json", None).require()
    assert resolved_json(again) == text
    assert again == first


@QUICK
@given(layouts(), st.data())
def test_allow_is_reduced_to_what_still_occurs(layout: Facts, data: st.DataObject) -> None:
    warned = sorted({one.code.number for one in check(layout).diagnostics})
    layout["allow"] = data.draw(st.permutations([*warned, *({"DC132", "DC204", "DC295"} - {*warned})]))
    first = check(layout).require()
    form = check_text(resolved_json(first), "layout.resolved.json", None)
    assert not {one.code.number for one in form.diagnostics} & {"DC130", "DC131", "DC132"}
    assert resolved_json(form.require()) == resolved_json(first)


@QUICK
@given(layouts())
def test_every_value_has_an_origin(layout: Facts) -> None:
    first = check(layout).require()
    assert set(pointers(resolved(first))) == set(origins(first))


def pointers(form: object, above: str = "") -> list[str]:
    if not isinstance(form, dict):
        return []
    own = [f"{above}/{key}" for key in form if above != "/target/special_token_ids"]
    layers = [f"/layers/{index}" for index, _ in enumerate(form.get("layers", ()))]
    return [*own, *layers, *(one for key, value in form.items() for one in pointers(value, f"{above}/{key}"))]


@settings(QUICK, max_examples=100)
@given(broken_layouts())
def test_every_mutation_is_reported(layout: Facts) -> None:
    report = check(layout)
    assert report.diagnostics
    assert report.layout is None
    assert errors(report)
    assert list(report.diagnostics) == sorted(report.diagnostics, key=lambda one: one.order)


@settings(QUICK, max_examples=100)
@given(disturbed_layouts())
def test_nothing_ends_in_a_traceback(layout: Facts) -> None:
    report = check(layout)
    assert (report.layout is None) == bool(errors(report))
    if report.layout is not None:
        assert check_text(resolved_json(report.layout), "x.json", None).layout == report.layout


@QUICK
@given(layouts(), st.data())
def test_a_text_cut_short_is_refused(layout: Facts, data: st.DataObject) -> None:
    text = text_of(layout)
    report = check_text(text[: data.draw(st.integers(0, len(text) - 2))], "layout.json", None)
    assert report.layout is None
    assert errors(report)
