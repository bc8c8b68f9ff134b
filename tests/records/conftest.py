"""Both forms of the kernels, so that every kernel test runs compiled and interpreted."""

from types import ModuleType

import pytest

from harness import forms
from klamm.records import kernels


@pytest.fixture(scope="session")
def interpreted() -> ModuleType:
    return forms.interpreted(kernels)


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return forms.compiled(kernels)


@pytest.fixture(scope="session", params=["compiled", "interpreted"])
def form(request: pytest.FixtureRequest) -> ModuleType:
    """One of the two forms of the kernels; a test that takes it runs once with each."""
    module: ModuleType = request.getfixturevalue(request.param)
    return module
