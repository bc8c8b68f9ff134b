"""Checks that a copy of the package on an executor can run there, before its first task does.

`executor_package` puts the folder `carried` into the copy, with the packages that klamm needs beside Spark's own, built
for the driver's platform. A Python that has these packages keeps its own. An installed klamm has no such folder, and
the check does nothing.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from klamm.model.errors import ConfigError

CARRIED: Final = "carried"
PACKAGES: Final = ("crc32c", "lz4", "zstandard", "cramjam")
"""What the record kernels need: the checksum and the compression codecs."""
_HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def platform_tag() -> str:
    """Return the ABI tag of compiled modules: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def check_executor(home: str = _HOME) -> None:
    """Put the carried packages on the path; ConfigError names what this Python still lacks."""
    carried_folder = os.path.join(home, CARRIED)
    # An installed package, or the driver: nothing was carried along.
    if not os.path.isdir(carried_folder):
        return
    platform_folder = os.path.join(carried_folder, platform_tag())
    if os.path.isdir(platform_folder) and platform_folder not in sys.path:
        sys.path.append(platform_folder)  # at the end: installed packages win
    missing = [package for package in ("pyarrow", *PACKAGES) if find_spec(package) is None]
    if missing:
        version = ".".join(str(part) for part in sys.version_info[:3])
        raise ConfigError(
            f"the Python of this executor, {sys.executable} ({version}, {platform_tag()}), lacks {', '.join(missing)}: "
            f"install what is missing there (pip install {' '.join(missing)}), or name a Python that has it by "
            "spark.pyspark.python"
        )
    try:
        import_module("klamm.records")
    except ImportError:
        # The kernels were compiled against another C library; their interpreted form runs everywhere. Half-imported
        # modules have to go, or the second import would return them.
        os.environ["KLAMM_INTERPRETED"] = "1"
        for name in [
            module for module in sys.modules if module == "klamm.records" or module.startswith("klamm.records.")
        ]:
            del sys.modules[name]
        import_module("klamm.records")
