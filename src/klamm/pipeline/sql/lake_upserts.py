"""Turns batches of a sink with mode = 'upsert' into one change per key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.pipeline.core.lake_tables import DELETED
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.statement_options import name_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from klamm.pipeline.sql.query_ledger import QueryLedger
    from klamm.pipeline.sql.rebuilds import LakeRebuild
    from klamm.pipeline.sql.topics import TopicConnector


class LakeUpserts:
    """Upserts the table of one sink. Changes depend on their batch alone, so a replay makes the same."""

    def __init__(
        self, topics: TopicConnector, node: GraphNode, ledger: QueryLedger, rebuild: LakeRebuild | None = None
    ) -> None:
        self._rebuild = rebuild
        self._topics = topics
        self._node = node
        self._ledger = ledger
        self._keys = [quote_name(name) for name in node.key]

    def save_rows(self, rows: DataFrame, batch: int) -> None:
        """Upsert the last row of each key of a stream; rows without a key are left out."""
        order = [quote_name(name) for name in name_list(self._node.option("order_by") or "")]
        # Rows that are equal in the order are compared whole, so that a replay chooses the same one.
        newest = f"max_by(struct(*), struct({', '.join([*order, 'to_json(struct(*))'])})) AS newest"
        last = self._with_keys(rows).groupBy(*self._keys).agg(_expression(newest)).select("newest.*")
        self._save(self._mark_deletions(last), batch)

    def save_changes(self, rows: DataFrame, changed_keys: DataFrame, batch: int) -> None:
        """Upsert rows of a table; keys that changed and have no row are deleted."""
        upserts = self._mark_deletions(self._with_keys(rows))
        gone = changed_keys.join(upserts.select(*self._keys), list(self._node.key), "left_anti")
        deletions = self._with_keys(gone).selectExpr("*", f"true AS {DELETED}")
        self._save(upserts.unionByName(deletions, allowMissingColumns=True), batch)

    def _with_keys(self, rows: DataFrame) -> DataFrame:
        return rows.where(" AND ".join(f"{key} IS NOT NULL" for key in self._keys))

    def _mark_deletions(self, rows: DataFrame) -> DataFrame:
        condition = self._node.option("delete_when") or "false"
        return rows.selectExpr("*", f"coalesce(({condition}), false) AS {DELETED}")

    def _save(self, changes: DataFrame, batch: int) -> None:
        if self._rebuild is None:
            self._write(changes, batch)
        else:
            self._rebuild.save(changes, batch, self._write)

    def _write(self, changes: DataFrame, batch: int) -> None:
        self._topics.upsert(changes, self._node, self._ledger, batch)


def _expression(text: str) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415 - pyspark is an extra

    return functions.expr(text)
