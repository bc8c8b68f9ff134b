"""Both forms of a module of kernels, so that what is said of one can be said of the other."""

import importlib.machinery
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest


def interpreted(kernels: ModuleType) -> ModuleType:
    """The Python source as a module of its own, whichever form `kernels` has."""
    source = _folder(kernels) / "kernels.py"
    return _load(importlib.machinery.SourceFileLoader("kernels_interpreted", str(source)))


def compiled(kernels: ModuleType) -> ModuleType:
    """The compiled form. Where there is a compiler it must be there; without one, there is nothing to compare."""
    if kernels.COMPILED:
        return kernels
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = _folder(kernels) / f"kernels{suffix}"
        if path.exists():
            return _load(importlib.machinery.ExtensionFileLoader("kernels", str(path)))
    if any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.fail("there is a C compiler but the kernels are not compiled: python setup.py build_ext --inplace")
    pytest.skip("no C compiler on this machine, so the kernels have one form only")


def _folder(kernels: ModuleType) -> Path:
    assert kernels.__file__ is not None
    return Path(kernels.__file__).parent


def _load(loader: importlib.machinery.SourceFileLoader | importlib.machinery.ExtensionFileLoader) -> ModuleType:
    spec = importlib.util.spec_from_file_location(loader.name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
