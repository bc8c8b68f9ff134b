"""Both forms of the kernels, so that every kernel test runs compiled and interpreted."""

import importlib.machinery
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import klamm.records
from klamm.records import kernels

ROOM = Path(klamm.records.__file__).parent


def load_interpreted() -> ModuleType:
    """The Python source as a module of its own, whichever form `klamm.records.kernels` has."""
    loader = importlib.machinery.SourceFileLoader("kernels_interpreted", str(ROOM / "kernels.py"))
    spec = importlib.util.spec_from_file_location(loader.name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_compiled() -> ModuleType:
    """The compiled form; a machine that can compile it must have it, so it is not skipped there."""
    if kernels.COMPILED:
        return kernels
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = ROOM / f"kernels{suffix}"
        if path.exists():
            loader = importlib.machinery.ExtensionFileLoader("kernels", str(path))
            spec = importlib.util.spec_from_file_location("kernels", path, loader=loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            return module
    if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        pytest.fail("there is a C compiler but the kernels are not compiled: python setup.py build_ext --inplace")
    pytest.skip("no C compiler on this machine")


@pytest.fixture(scope="session")
def interpreted() -> ModuleType:
    return load_interpreted()


@pytest.fixture(scope="session")
def compiled() -> ModuleType:
    return load_compiled()


@pytest.fixture(scope="session", params=["compiled", "interpreted"])
def form(request: pytest.FixtureRequest) -> ModuleType:
    """One of the two forms of the kernels; a test that takes it runs once with each."""
    module: ModuleType = request.getfixturevalue(request.param)
    return module
