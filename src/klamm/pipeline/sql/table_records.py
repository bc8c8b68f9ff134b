"""The versions of a table's rows in its topic: all of them, or the newest of each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from klamm.pipeline.sql.core import change_formats, row_expressions
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.statements import Column
from klamm.pipeline.sql.core.temporal_joins import FROM, UNTIL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def row_versions(records: DataFrame, node: GraphNode, columns: Sequence[Column]) -> DataFrame:
    """Return all versions of each row, with the time each is valid from and, if a later version exists, until."""
    time = row_expressions.version_time(node, columns)
    timed = records.where("key IS NOT NULL").selectExpr("*", f"{time} AS {FROM}")
    # Deletions take part here, because they end the version before them, and are dropped afterwards.
    # Of equal times the record's own decides: offsets of two partitions cannot be compared.
    order = f"{FROM}, timestamp, offset"
    ended = timed.selectExpr("*", f"lead({FROM}) OVER (PARTITION BY key ORDER BY {order}) AS {UNTIL}")
    return ended.where("value IS NOT NULL").selectExpr(*row_expressions.column_expressions(node, columns), FROM, UNTIL)


def newest_rows(records: DataFrame) -> DataFrame:
    """Return the newest record of each key, without deleted keys."""
    return newest_records(records).where("value IS NOT NULL")


def newest_records(records: DataFrame) -> DataFrame:
    """Return the newest record of each key, which is a deletion if its value is null."""
    if change_formats.ORDER in records.columns:
        ordered = records.where("key IS NOT NULL").groupBy("key")
        newest = ordered.agg(_expression(f"max_by(struct(*), {change_formats.ORDER}) AS newest"))
        return newest.select("newest.*")
    # Offsets order the versions of a key within a partition. A key changes its partition when the topic gets more of
    # them; then the partition with the later timestamp of the key has the newer versions, as in `tables.store`.
    by_partition = (
        records.where("key IS NOT NULL")
        .groupBy("key", "partition")
        .agg(_expression("max_by(struct(*), offset) AS newest"), _expression("max(timestamp) AS latest"))
    )
    newest = by_partition.groupBy("key").agg(_expression("max_by(newest, struct(latest, newest.offset)) AS newest"))
    return newest.select("newest.*")


def _expression(text: str) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415 - pyspark is an extra

    return functions.expr(text)
