"""A Spark session that knows topics: workers on this interpreter, times in UTC, progress shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from klamm.model.errors import ConfigError
from klamm.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> SparkSession:
    """Make `format("klamm")` known to a session."""
    from klamm.pipeline.format import KlammSource  # noqa: PLC0415 - pyspark is an extra

    spark.dataSource.register(KlammSource)
    return spark


def session(
    name: str = "klamm",
    *,
    master: str = "local[*]",
    config: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> SparkSession:
    """A session with `format("klamm")`; `config` are Spark's own settings and win.

    `progress` prints a line per micro-batch and Spark's bar for long jobs; without it, it depends on whether standard
    error is a terminal. ConfigError says what is missing: Java or PySpark.
    """
    find_java()
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed: pip install 'klamm[spark]'")
    from pyspark.sql import SparkSession  # noqa: PLC0415

    shown = sys.stderr.isatty() if progress is None else progress
    # Spark looks for python3 on the path, which in a virtual environment is another interpreter, without pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings: dict[str, Any] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": shown,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        **(config or {}),
    }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    spark = register(builder.getOrCreate())
    if shown:
        from klamm.pipeline.progress import ProgressLines  # noqa: PLC0415

        spark.streams.addListener(ProgressLines())
    return spark
