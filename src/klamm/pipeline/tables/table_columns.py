"""The columns of a table, without Spark: those of its declaration, its registry, or the last run of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.statements import Column
from klamm.pipeline.sql.registry_schemas import columns_of_registry
from klamm.pipeline.sql.state_folders import stored_home


def known_columns(
    pipeline: Pipeline, node: GraphNode, client: Mapping[str, str] | None = None
) -> Sequence[Column] | None:
    """Return the columns of a table; None for JSON whose columns have to be inferred from its records."""
    if node.create.columns:
        return node.create.columns
    if node.registered:
        return columns_of_registry(pipeline, node)
    recorded = read_columns(pipeline, client).get(node.name)
    if recorded is not None:
        return recorded
    if node.format == "json":
        return None
    raise ConfigError(
        f"the columns of {node.name} are not known: `klamm pipeline run` records them in the pipeline's folder;"
        f" or declare them: CREATE TABLE {node.name} (...) WITH (topic = '{node.topic}', ...) in another file"
    )


def read_columns(pipeline: Pipeline, client: Mapping[str, str] | None = None) -> Mapping[str, Sequence[Column]]:
    """Return the columns that the last run of the pipeline recorded; none when it did not run on this machine."""
    home = stored_home(pipeline, client)
    recorded = {} if home is None else home.columns()
    return {name: [Column(column, kind, 0) for column, kind in columns.items()] for name, columns in recorded.items()}
