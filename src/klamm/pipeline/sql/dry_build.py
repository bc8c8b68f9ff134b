"""Builds a pipeline's queries without a cluster and without starting them: Spark resolves columns, types, functions."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from klamm.pipeline.jvm_output import jvm_output_to
from klamm.pipeline.sql.core.captured_tables import POSTGRES
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.statements import SOURCE
from klamm.pipeline.sql.engine import Engine
from klamm.pipeline.sql.folder_topics import FolderTopics
from klamm.pipeline.sql.jdbc import driver_jars
from klamm.pipeline.sql.registry_schemas import without_registry
from klamm.pipeline.sql.runner import SPARK_SETTINGS
from klamm.pipeline.sql.state_folders import name_of


def build_dry(pipeline: Pipeline, *, master: str | None = None, spark: Any = None) -> dict[str, dict[str, str]]:
    """Return the columns of each query; SqlError where Spark does not resolve a statement.

    A source is read only when it declares no columns.
    """
    from klamm.pipeline.sessions import session  # noqa: PLC0415 - pyspark is an extra

    settings = {name: value for name, value in pipeline.settings.items() if name.startswith("spark.")}
    config = {**SPARK_SETTINGS, **settings, **driver_jars(pipeline, settings)}
    # Topics are empty folders, and schemas are not registered: JSON in their place has the same columns.
    plain = without_registry(pipeline)
    declared = {
        node.name for node in plain.nodes if node.kind == SOURCE and (node.create.columns or node.connector == POSTGRES)
    }
    with tempfile.TemporaryDirectory(prefix="klamm-check-") as folder:
        if spark is None:
            # Start lines and warnings of Spark are not about the file.
            with jvm_output_to(os.path.join(folder, "spark.log")):
                running = session(f"klamm check {name_of(pipeline)}", master=master, config=config, progress=False)
        else:
            running = spark
        try:
            topics = FolderTopics(os.path.join(folder, "topics"))
            identity = QueryIdentity("check", name_of(plain), {}, {}).renew(plain)
            # A session of its own: a session of the caller keeps its views.
            engine = Engine(running.newSession(), plain, topics, folder, identity)
            engine.build(declared)
            return engine.output_columns
        finally:
            if spark is None:
                running.stop()
