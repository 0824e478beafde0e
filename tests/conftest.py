"""What every test runs under: hypothesis on a loaded machine, and no compiled code left by an earlier test."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("draftc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("draftc")


@pytest.fixture(autouse=True)
def _forget_compiled_code() -> Iterator[None]:
    """Dynamo counts the variants of a function over a whole process, and refuses the ninth."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
