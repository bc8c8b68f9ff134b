"""What a copy of the package does first when it was shipped to an executor: look whether it can run there.

`shipping` puts the folder `carried` into the copy, with the packages that klamm needs beside Spark's own, for the
platform of the driver. A Python that has them keeps its own. In an installed package there is no such folder, and
nothing happens.
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
"""What records need: their checksum and codecs."""
_HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def platform_tag() -> str:
    """For which Pythons a compiled module is: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def check_executor(home: str = _HOME) -> None:
    """Find what came along; ConfigError says what this Python lacks."""
    carried = os.path.join(home, CARRIED)
    if not os.path.isdir(carried):
        return
    fitting = os.path.join(carried, platform_tag())
    if os.path.isdir(fitting) and fitting not in sys.path:
        sys.path.append(fitting)
    missing = [each for each in ("pyarrow", *PACKAGES) if find_spec(each) is None]
    if missing:
        found = ".".join(str(each) for each in sys.version_info[:3])
        raise ConfigError(
            f"the Python of this executor, {sys.executable} ({found}, {platform_tag()}), lacks {', '.join(missing)}: "
            f"install what is missing there (pip install {' '.join(missing)}), or name a Python that has it by "
            "spark.pyspark.python"
        )
    try:
        import_module("klamm.records")
    except ImportError:
        # The kernels were compiled against another C library than the one here; their Python form runs everywhere.
        os.environ["KLAMM_INTERPRETED"] = "1"
        for name in [
            module for module in sys.modules if module == "klamm.records" or module.startswith("klamm.records.")
        ]:
            del sys.modules[name]
        import_module("klamm.records")
