"""The skeletons of generated files: templates without logic, filled with finished text."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    loader = PackageLoader("draftc.compiler", "templates")
    # What is written is Python and Markdown: escaping for HTML would corrupt it, and values are validated before.
    return Environment(
        loader=loader, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=False
    )


def render(template: str, **values: object) -> str:
    """Return `template` filled with `values`; a missing one raises `UndefinedError`."""
    return _environment().get_template(template).render(**values)
