"""Both forms of the kernels, so that every kernel test runs compiled and interpreted."""

from types import SimpleNamespace

import pytest

from harness import forms


@pytest.fixture(scope="session")
def interpreted() -> SimpleNamespace:
    return forms.record_kernels("interpreted")


@pytest.fixture(scope="session")
def compiled() -> SimpleNamespace:
    return forms.record_kernels("compiled")


@pytest.fixture(scope="session", params=["compiled", "interpreted"])
def form(request: pytest.FixtureRequest) -> SimpleNamespace:
    """One of the two forms of the kernels; a test that takes it runs once with each."""
    return forms.record_kernels(request.param)
