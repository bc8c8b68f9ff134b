"""Both forms of a module of kernels, so that a test can state the same of both."""

import importlib
import importlib.machinery
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from klamm.records.kernels import MODULES, layout


def interpreted(kernels: ModuleType) -> ModuleType:
    """The Python source as a module of its own, whichever form `kernels` has."""
    source = _folder(kernels) / f"{_name(kernels)}.py"
    return _load(importlib.machinery.SourceFileLoader(f"{_name(kernels)}_interpreted", str(source)))


def compiled(kernels: ModuleType) -> ModuleType:
    """The compiled form. Where there is a compiler it must be there; without one, there is nothing to compare."""
    if kernels.COMPILED:
        return kernels
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = _folder(kernels) / f"{_name(kernels)}{suffix}"
        if path.exists():
            return _load(importlib.machinery.ExtensionFileLoader(_name(kernels), str(path)))
    if any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.fail("there is a C compiler but the kernels are not compiled: python setup.py build_ext --inplace")
    pytest.skip("no C compiler on this machine, so the kernels have one form only")


def record_kernels(form: str) -> SimpleNamespace:
    """All functions of the record kernels in one form, `compiled` or `interpreted`, and the constants they share."""
    names = {name: value for name, value in vars(layout).items() if name.isupper()}
    for name in MODULES:
        module = importlib.import_module(f"klamm.records.kernels.{name}")
        loaded = interpreted(module) if form == "interpreted" else compiled(module)
        names |= {key: value for key, value in vars(loaded).items() if not key.startswith("_")}
    return SimpleNamespace(**names)


def _name(kernels: ModuleType) -> str:
    return kernels.__name__.rpartition(".")[2]


def _folder(kernels: ModuleType) -> Path:
    assert kernels.__file__ is not None
    return Path(kernels.__file__).parent


def _load(loader: importlib.machinery.SourceFileLoader | importlib.machinery.ExtensionFileLoader) -> ModuleType:
    spec = importlib.util.spec_from_file_location(loader.name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
