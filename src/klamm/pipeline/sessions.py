"""A Spark session that knows topics: the right interpreter, times in UTC, progress shown, the package on executors."""

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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED: Final = "local[*]"
_PYTHON: Final = "PYSPARK_PYTHON"
_SHORT: Final = "/tmp"  # noqa: S108 - a folder of its own is made there
"""Names of sockets have a hundred bytes, and temporary folders may be deep."""


def check_requirements() -> None:
    """Say in one sentence what is missing, before anything is tried: Java or PySpark."""
    find_java()
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed: pip install 'klamm[spark]'")


def register(spark: SparkSession) -> SparkSession:
    """Make `format("klamm")` known to a session, and to its executors where they are elsewhere."""
    from klamm.pipeline.data_source import KlammSource  # noqa: PLC0415 - pyspark is an extra

    ship_package(spark)
    spark.dataSource.register(KlammSource)
    return spark


def session(
    name: str = "klamm",
    *,
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> SparkSession:
    """A session with `format("klamm")`; `config` are Spark's own settings and win.

    `master` is any that Spark knows; without it, what spark-submit was told, or else this machine. Executors elsewhere
    get the package with the job. `progress` prints a line per micro-batch and Spark's bar for long jobs; without it, it
    depends on whether standard error is a terminal. ConfigError says what is missing: Java or PySpark.
    """
    check_requirements()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    shown = sys.stderr.isatty() if progress is None else progress
    settings: dict[str, Any] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": shown,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        **(config or {}),
    }
    where = master or settings.get("spark.master") or (None if _submitted() else EMBEDDED)
    if where is not None and is_local(where):
        settings = {**_at_home(), **settings}
    builder = SparkSession.builder.appName(name)
    for key, value in (settings if where is None else {**settings, "spark.master": where}).items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    home = unpacked_spark_home() if where is not None and is_local(where) else nullcontext()
    with _interpreter(where, settings.get("spark.pyspark.python")), home:
        spark = builder.getOrCreate()
    register(spark)
    if shown:
        from klamm.pipeline.progress import ProgressLines  # noqa: PLC0415

        spark.streams.addListener(ProgressLines())
    return spark


@cache
def _at_home() -> dict[str, Any]:
    """On this machine alone nobody else has to reach the driver, and a host name that leads nowhere does no harm.

    Over TCP a task waits 40 ms for an acknowledgement that its Python process delays; sockets with a name do not.
    """
    folder = tempfile.mkdtemp(prefix="klamm-", dir=_SHORT if os.path.isdir(_SHORT) else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": True,
        "spark.python.unix.domain.socket.dir": folder,
    }


def _submitted() -> bool:
    """Whether spark-submit started this program; it has chosen the master and the interpreters then."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _interpreter(master: str | None, said: str | None) -> Iterator[None]:
    """Choose the Python of the processes that a new session starts, unless it is chosen already.

    Spark looks for python3 on the path, which in a virtual environment is another interpreter, without pyarrow. Here it
    is this one, by its path. Elsewhere that path may not exist: executors look for the same version by its name, and
    so do the processes beside the driver, which shall find this one.
    """
    before = {each: os.environ.get(each) for each in (_PYTHON, "PATH")}
    if said is not None:
        os.environ[_PYTHON] = str(said)
    elif master is not None and _PYTHON not in os.environ:
        os.environ[_PYTHON] = sys.executable
        home, name = os.path.dirname(sys.executable), f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if not is_local(master) and os.path.exists(os.path.join(home, name)):
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
