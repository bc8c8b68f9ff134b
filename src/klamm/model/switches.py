"""The few switches read from the environment before any configuration exists.

They live here because the rooms above are pure and never look at the environment themselves.
"""

import importlib.machinery
import importlib.util
import os
import sys


def interpreted_kernels() -> bool:
    """Whether KLAMM_INTERPRETED asks for the Python form of the kernels although a compiled one exists."""
    return os.environ.get("KLAMM_INTERPRETED", "") not in ("", "0")


def load_interpreted(package: str, folder: str, module: str) -> None:
    """Put the Python form of a kernel where every import of it will find it, before any import does."""
    name = f"{package}.{module}"
    loader = importlib.machinery.SourceFileLoader(name, f"{folder}/{module}.py")
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    loader.exec_module(made)
