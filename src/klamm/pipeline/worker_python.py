"""Checks that the Python processes of a session on this machine can import klamm, before a query fails without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.executor_package import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBE: Final = "import klamm, pyarrow"
_PROBE_TIMEOUT_S: Final = 60.0


def check_worker_python(spark: SparkSession) -> None:
    """Raise ConfigError when a session's workers run another Python than this one, and that has no klamm.

    Executors on other machines get the package with the job, and report what they lack themselves.
    """
    context: Any = getattr(spark, "sparkContext", None)
    if context is None or not is_local(context.master):
        return
    python = str(context.pythonExec)
    path = shutil.which(python) or python
    # By path, and not by the file it links to: environments share one interpreter, and differ in their packages.
    if os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    environment = {**os.environ, **context.environment}
    try:
        probe = subprocess.run(  # noqa: S603 - the interpreter that Spark runs
            [path, "-c", _PROBE], env=environment, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{_sentence(path)} ({error})") from None
    if probe.returncode:
        raise ConfigError(_sentence(path))


def _sentence(path: str) -> str:
    return (
        f"the workers of this session run {path}, which cannot import klamm and pyarrow: "
        f"set PYSPARK_PYTHON={sys.executable} before the session is created, or install klamm there"
    )
