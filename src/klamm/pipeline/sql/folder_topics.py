"""Topics as folders of Parquet files, for tests of pipelines without a cluster. Each has one partition."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from klamm.model.errors import ConfigError
from klamm.pipeline.core.batch_ledger import SinkBatch
from klamm.pipeline.core.lake_tables import DELETED
from klamm.pipeline.postgres.change_topic import ChangeTopic
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.row_expressions import json_object
from klamm.pipeline.sql.query_ledger import QueryLedger
from klamm.pipeline.sql.rebuilds import LakeRebuild
from klamm.records.arrow import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# No pipeline reads this column.
SCHEMA = schema().remove(schema().get_field_index("timestampType"))
_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@dataclass(slots=True)
class Raw:
    """A record as bytes."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


class FolderTopics:
    """Topics under a folder; a batch (app, number) that was written is not written again."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.now_ms = 0
        self._ends: dict[str, int] = {}
        self._done: set[tuple[str, int]] = set()

    def _folder(self, topic: str) -> str:
        path = os.path.join(self.root, topic)
        os.makedirs(path, exist_ok=True)
        return path

    def add(self, topic: str, records: Iterable[Raw]) -> None:
        """Append records."""
        added = list(records)
        path, first = self._folder(topic), self._ends.get(topic, 0)
        if not added:
            return
        rows = [
            {
                "key": record.key,
                "value": record.value,
                "topic": topic,
                "partition": 0,
                "offset": first + index,
                "timestamp": record.timestamp_ms * 1000,
                "headers": [{"key": name, "value": value} for name, value in record.headers],
            }
            for index, record in enumerate(added)
        ]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        name = f"{first:012d}.parquet"
        # A streaming query may list the folder at any time; it ignores names that begin with a dot.
        pq.write_table(table, os.path.join(path, f".{name}"))
        os.rename(os.path.join(path, f".{name}"), os.path.join(path, name))
        self._ends[topic] = first + len(added)

    def end(self, topic: str) -> Mapping[str, Any]:
        """Return the end offset of a topic, as a position."""
        return {topic: {"0": self._ends.get(topic, 0)}}

    def records(self, topic: str) -> list[dict[str, Any]]:
        """Return all records of a topic, in order."""
        path = self._folder(topic)
        names = sorted(name for name in os.listdir(path) if name.endswith(".parquet") and not name.startswith("."))
        return [row for name in names for row in pq.read_table(os.path.join(path, name)).to_pylist()]

    def stream(
        self,
        spark: SparkSession,
        names: Sequence[str],
        node: GraphNode | None,  # noqa: ARG002
        start: str = "",  # noqa: ARG002
    ) -> DataFrame:
        """Return the topics' files as a stream."""
        frames = [spark.readStream.schema(_DDL).parquet(self._folder(name)) for name in names]
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionAll(frame)
        return union

    def read_all(self, spark: SparkSession, name: str) -> DataFrame:
        """Return the topic's files as a batch."""
        return spark.read.schema(_DDL).parquet(self._folder(name))

    def between(self, spark: SparkSession, start: Mapping[str, Any], end: Mapping[str, Any]) -> DataFrame:
        """Return the records between two positions; a topic has one partition."""
        (topic,) = (name for name in end if name in os.listdir(self.root))
        first, last = int((start.get(topic) or {}).get("0", 0)), int(end[topic]["0"])
        return self.read_all(spark, topic).where(f"offset >= {first} AND offset < {last}")

    def message_bytes_max(self, topic: str) -> int:  # noqa: ARG002
        """Return the default of a topic."""
        return 1_048_588

    def append(
        self,
        frame: DataFrame,
        topic: str,
        node: GraphNode,
        ledger: QueryLedger,
        bytes_max: int | None = None,  # noqa: ARG002
    ) -> Any:
        """Return a writer that collects rows in the driver: tests are small."""

        def save(rows: DataFrame, batch: int) -> None:
            self.write(rows, topic, node, ledger, batch)

        return frame.writeStream.outputMode("append").foreachBatch(save)

    def write(self, frame: DataFrame, topic: str, node: GraphNode, ledger: QueryLedger, batch: int) -> None:  # noqa: ARG002
        """Write a batch once, through the driver."""
        if (ledger.sink, batch) in self._done:
            return
        records = [self._record(row.asDict()) for row in frame.collect()]
        self.add(topic, records)
        # Only in memory: a test has one driver, which does not die.
        self._done.add((ledger.sink, batch))

    def newest(self, node: GraphNode, ledger: QueryLedger, *, with_position: bool = False) -> SinkBatch | None:  # noqa: ARG002
        """Return None: a test's checkpoints are neither restored nor removed."""
        return None

    def complete(self, node: GraphNode, ledger: QueryLedger) -> None:
        """Do nothing: a batch is one step."""

    def change_topic(self, node: GraphNode, capture: str) -> ChangeTopic:  # noqa: ARG002
        """Refuse a capture: tests and checks give its rows."""
        raise ConfigError(f"{node.name} captures a database, and there is no cluster")

    def upsert(self, changes: DataFrame, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Keep changes as JSON by key under the sink's name, null for a deletion."""
        names = [name for name in changes.columns if name != DELETED]
        value = f"CASE WHEN NOT {DELETED} THEN {json_object(names)} END AS value"
        self.write(changes.selectExpr(f"{json_object(node.key)} AS key", value), node.name, node, ledger, batch)

    def replace(self, rows: DataFrame, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Raise NotImplementedError: a test's pipeline is new, and is not rebuilt."""
        raise NotImplementedError

    def sink(
        self,
        frame: DataFrame,
        node: GraphNode,
        ledger: QueryLedger,
        rebuild: LakeRebuild | None = None,  # noqa: ARG002
    ) -> Any:
        """Return a writer that keeps a sink's rows as JSON under its name."""
        records = frame.selectExpr("cast(NULL AS BINARY) AS key", f"{json_object(frame.columns)} AS value")
        return self.append(records, node.name, node, ledger)

    def _record(self, row: dict[str, Any]) -> Raw:
        headers = [(header["key"], header["value"]) for header in row.get("headers") or []]
        return Raw(_bytes(row["key"]), _bytes(row["value"]), self.now_ms, headers)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)
