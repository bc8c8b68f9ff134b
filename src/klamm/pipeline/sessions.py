"""Creates Spark sessions with `format("klamm")`: interpreter, time zone, progress lines, the package on executors."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.executor_package import is_local, ship_package
from klamm.pipeline.java import find_java
from klamm.pipeline.spark_home import unpacked_spark_home
from klamm.pipeline.worker_python import check_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED: Final = "local[*]"
_PYTHON: Final = "PYSPARK_PYTHON"
_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_SOCKET_ROOT: Final = "/tmp"  # noqa: S108 - a folder of its own is made there
"""A Unix socket's path has about a hundred bytes, and TMPDIR may be deep."""


def check_requirements() -> None:
    """Raise ConfigError when Java or PySpark is missing."""
    find_java()
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed: pip install 'klamm[spark]'")


def register(spark: SparkSession) -> SparkSession:
    """Register `format("klamm")` with a session, and send the package to executors on other machines.

    ConfigError when the session's workers run another Python on this machine, without klamm.
    """
    from klamm.pipeline.data_source import KlammDataSource  # noqa: PLC0415 - pyspark is an extra

    check_worker_python(spark)
    # Before the registration: it captures the context's environment, in which `ship_package` sets PYTHONPATH.
    ship_package(spark)
    spark.dataSource.register(KlammDataSource)
    return spark


def session(
    name: str = "klamm",
    *,
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> SparkSession:
    """Return a session with `format("klamm")`; `config` are Spark's own settings and win.

    `master` is any that Spark supports; the default is that of spark-submit, or else this machine. Executors on
    other machines get the package with the job. `progress` prints a line per micro-batch and Spark's bar for long jobs;
    the default is to print when standard error is a terminal. ConfigError when Java or PySpark is missing.
    """
    check_requirements()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    show_progress = sys.stderr.isatty() if progress is None else progress
    settings: dict[str, Any] = {
        # Otherwise results depend on the time zone of the machine that runs the query.
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": show_progress,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        **(config or {}),
    }
    chosen_master = master or settings.get("spark.master") or (None if _is_submitted() else EMBEDDED)
    if chosen_master is not None and is_local(chosen_master):
        settings = {**_local_settings(), **settings}
    builder = SparkSession.builder.appName(name)
    for key, value in (settings if chosen_master is None else {**settings, "spark.master": chosen_master}).items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    home = unpacked_spark_home() if chosen_master is not None and is_local(chosen_master) else nullcontext()
    # Both are environment variables that the JVM reads when it starts; afterwards they are restored.
    with _worker_python(chosen_master, settings.get("spark.pyspark.python")), home:
        spark = builder.getOrCreate()
    register(spark)
    if show_progress:
        from klamm.pipeline.progress import ProgressLines  # noqa: PLC0415

        spark.streams.addListener(ProgressLines())
    return spark


@cache
def _local_settings() -> dict[str, Any]:
    """Return the settings of a session on this machine alone.

    The driver binds to the loopback interface, so a host name that does not resolve is no problem. Unix sockets between
    JVM and Python avoid the 40 ms that TCP's delayed acknowledgements cost each task. The default manager of checkpoint
    files starts a process (`readlink`) for each file that it renames, 0.2 s of every micro-batch.
    """
    socket_folder = tempfile.mkdtemp(prefix="klamm-", dir=_SOCKET_ROOT if os.path.isdir(_SOCKET_ROOT) else None)
    atexit.register(shutil.rmtree, socket_folder, ignore_errors=True)
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": True,
        "spark.python.unix.domain.socket.dir": socket_folder,
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    }


def _is_submitted() -> bool:
    """Whether spark-submit started this program; it has chosen master and interpreters then."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _worker_python(master: str | None, chosen: str | None) -> Iterator[None]:
    """Set PYSPARK_PYTHON while a session starts, unless it is set already.

    Spark looks for python3 on the path, which may be another interpreter than that of a virtual environment. On this
    machine it gets the path of this interpreter. On other machines that path may not exist: executors look for the same
    version by name (python3.11), and PATH makes the processes beside the driver find this one by that name.
    """
    before = {variable: os.environ.get(variable) for variable in (_PYTHON, "PATH")}
    if chosen is not None:
        os.environ[_PYTHON] = str(chosen)
    elif master is not None and _PYTHON not in os.environ:
        os.environ[_PYTHON] = sys.executable
        home, name = os.path.dirname(sys.executable), f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if not is_local(master) and os.path.exists(os.path.join(home, name)):
            # The name, not the path: that may not exist on the executors.
            os.environ[_PYTHON] = name
            os.environ["PATH"] = os.pathsep.join([home, before["PATH"] or os.defpath])
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
