"""Topics as folders of Parquet files, so that a pipeline can be tried without a cluster. One partition each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from klamm.pipeline.sql.core.graph import Node
from klamm.pipeline.sql.core.row_expressions import json_object
from klamm.records.arrow import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """Topics under a folder; what was written under (app, batch) before is not written again."""

    listed = True

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
        found = list(records)
        path, first = self._folder(topic), self._ends.get(topic, 0)
        if not found:
            return
        rows = [
            {
                "key": each.key,
                "value": each.value,
                "topic": topic,
                "partition": 0,
                "offset": first + place,
                "timestamp": each.timestamp_ms * 1000,
                "headers": [{"key": name, "value": value} for name, value in each.headers],
            }
            for place, each in enumerate(found)
        ]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        name = f"{first:012d}.parquet"
        # A streaming query looks for new files at any time: the whole file or none.
        pq.write_table(table, os.path.join(path, f".{name}"))
        os.rename(os.path.join(path, f".{name}"), os.path.join(path, name))
        self._ends[topic] = first + len(found)

    def end(self, topic: str) -> int:
        """The offset of the next record."""
        return self._ends.get(topic, 0)

    def records(self, topic: str) -> list[dict[str, Any]]:
        """All records of a topic, in order."""
        path = self._folder(topic)
        names = sorted(each for each in os.listdir(path) if each.endswith(".parquet") and not each.startswith("."))
        return [row for name in names for row in pq.read_table(os.path.join(path, name)).to_pylist()]

    def stream(self, spark: SparkSession, names: Sequence[str], node: Node | None) -> DataFrame:  # noqa: ARG002
        """Files as they come."""
        frames = [spark.readStream.schema(_DDL).parquet(self._folder(name)) for name in names]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionAll(frame)
        return whole

    def whole(self, spark: SparkSession, name: str) -> DataFrame:
        """The files there are."""
        return spark.read.schema(_DDL).parquet(self._folder(name))

    def append(self, frame: DataFrame, topic: str, node: Node) -> Any:
        """Through the driver: tests are small."""

        def save(rows: DataFrame, batch: int) -> None:
            self.write(rows, topic, node, f"{node.name}/{topic}", batch)

        return frame.writeStream.outputMode("append").foreachBatch(save)

    def write(self, frame: DataFrame, topic: str, node: Node, app: str, batch: int) -> None:  # noqa: ARG002
        """Through the driver."""
        if (app, batch) in self._done:
            return
        records = [self._record(each.asDict()) for each in frame.collect()]
        self.add(topic, records)
        self._done.add((app, batch))

    def sink(self, frame: DataFrame, node: Node, app: str) -> Any:  # noqa: ARG002
        """A sink's rows are kept as JSON under its name."""
        records = frame.selectExpr("cast(NULL AS BINARY) AS key", f"{json_object(frame.columns)} AS value")
        return self.append(records, node.name, node)

    def _record(self, row: dict[str, Any]) -> Raw:
        headers = [(each["key"], each["value"]) for each in row.get("headers") or []]
        return Raw(_bytes(row["key"]), _bytes(row["value"]), self.now_ms, headers)


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)
