"""The few switches read from the environment before any configuration exists.

They are here because the packages above are pure and never read the environment themselves.
"""

import importlib.machinery
import importlib.util
import os
import sys


def interpreted_kernels() -> bool:
    """Whether KLAMM_INTERPRETED selects the Python form of the kernels although a compiled one exists."""
    return os.environ.get("KLAMM_INTERPRETED", "") not in ("", "0")


def load_interpreted(package: str, folder: str, module: str) -> None:
    """Register the Python form of a kernel in `sys.modules`; to be called before anything imports it."""
    name = f"{package}.{module}"
    loader = importlib.machinery.SourceFileLoader(name, f"{folder}/{module}.py")
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    kernel = importlib.util.module_from_spec(spec)
    sys.modules[name] = kernel
    loader.exec_module(kernel)
