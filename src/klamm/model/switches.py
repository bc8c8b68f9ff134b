"""Switches from the environment, which are read before any configuration exists.

They are here because the packages that use them are pure and must not read the environment.
"""

import importlib.machinery
import importlib.util
import os
import sys


def interpreted_kernels() -> bool:
    """Whether KLAMM_INTERPRETED selects the Python form of the kernels although a compiled one exists."""
    return os.environ.get("KLAMM_INTERPRETED", "") not in ("", "0")


def load_interpreted(package: str, folder: str, module: str) -> None:
    """Register the Python form of a kernel in `sys.modules`; must be called before the first import of it."""
    name = f"{package}.{module}"
    # By path: the import system prefers the compiled module beside the source file.
    loader = importlib.machinery.SourceFileLoader(name, f"{folder}/{module}.py")
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    kernel = importlib.util.module_from_spec(spec)
    sys.modules[name] = kernel  # before it runs: kernels import each other
    loader.exec_module(kernel)
