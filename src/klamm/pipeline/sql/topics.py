"""Where a pipeline's rows come from and go to. `Topics` is what the engine asks for; `ClusterTopics` is a cluster.

Rows are those of `format("klamm")`: key, value, topic, partition, offset, timestamp, headers.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from klamm.client import Admin, Consumer
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.errors import TopicAlreadyExistsError
from klamm.pipeline.core.lake_tables import FILES, FORMATS, LakeTable
from klamm.pipeline.lake.sinks import open_sink
from klamm.pipeline.sql.core.graph import Node, Pipeline
from klamm.pipeline.sql.core.problems import Problem, SqlError
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.statement_options import name_list
from klamm.pipeline.sql.core.statements import SINK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def lake_table(node: Node) -> LakeTable | None:
    """Where a sink's rows go, when that is a table of a lake."""
    kind = (node.option("format") or "").lower()
    if node.kind != SINK or kind not in FORMATS:
        return None
    options = {
        name.removeprefix("option."): expand(value.text, os.environ, name)
        for name, value in node.create.options.items()
        if name.startswith("option.")
    }
    parts = name_list(node.option("partition_by") or "")
    return LakeTable(node.name, kind, node.option("path"), node.option("table"), parts, options)


class Topics(Protocol):
    """Topics as frames."""

    listed: bool
    """Whether a frame of a whole topic is what there was when it was made, and not what there is."""

    def stream(self, spark: SparkSession, names: Sequence[str], node: Node | None) -> DataFrame:
        """Records as they come; `node` is the statement that reads them."""

    def whole(self, spark: SparkSession, name: str) -> DataFrame:
        """All records there are now, asked again whenever the frame is computed."""

    def append(self, frame: DataFrame, topic: str, node: Node) -> Any:
        """A writer of a stream of key, value and perhaps headers: whatever has `start`."""

    def write(self, frame: DataFrame, topic: str, node: Node, app: str, batch: int) -> None:
        """Write a batch of key and value once, however often it is asked to."""

    def sink(self, frame: DataFrame, node: Node, app: str) -> Any:
        """A writer of a SINK's rows, whose batches are numbered under `app`."""


class ClusterTopics:
    """The topics of a cluster, by `format("klamm")`."""

    listed = True  # Spark plans a read of a Python source once for each frame, and keeps the ranges

    def __init__(self, pipeline: Pipeline, client: Mapping[str, str] | None = None) -> None:
        settings = pipeline.settings
        self._pipeline = pipeline
        self.bootstrap = settings.get("bootstrap") or (client or {}).get("bootstrap.servers") or DEFAULT_BOOTSTRAP
        said = {
            name.removeprefix("kafka."): expand(value, os.environ, name)
            for name, value in settings.items()
            if name.startswith("kafka.")
        }
        self._client = {**(client or {}), **said, "bootstrap.servers": self.bootstrap}

    def _settings(self, definition: Any, node: Node | None) -> dict[str, str]:
        own = node.create.options if node is not None else {}
        said = {
            name.removeprefix("kafka."): expand(each.text, os.environ, name)
            for name, each in own.items()
            if name.startswith("kafka.")
        }
        return {f"kafka.{name}": each for name, each in {**self._client, **said}.items() if name in definition}

    def consumer_settings(self) -> dict[str, str]:
        """What a look at topics is made with."""
        return {**self._client, "isolation.level": "read_committed"}

    def admin(self) -> Admin:
        """For questions about topics."""
        return Admin({name: value for name, value in self._client.items() if name in ADMIN_CONFIGS})

    def watcher(self) -> Consumer:
        """For questions about how much is left to read; of no group."""
        settings = {name: value for name, value in self._client.items() if name in CONSUMER_CONFIGS}
        settings |= {
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
        return Consumer({name: value for name, value in settings.items() if name != "group.id"})

    def absent(self) -> list[tuple[int, str]]:
        """What is read and not there, with the place of the statement that reads it."""
        with self.admin() as admin:
            return self._absent({topic.name for topic in admin.list_topics()})

    def _absent(self, there: Container[str]) -> list[tuple[int, str]]:
        return [
            (node.create.offset, f"topic {node.topic} is not there; create it, or have it made by partitions = N")
            for node in self._pipeline.nodes
            if node.has_topic and not node.runs and node.topic not in there and node.option("partitions") is None
        ]

    def ensure(self) -> list[str]:
        """Create the topics that are written and not there; returns their names. What is read must be there."""
        pipeline = self._pipeline
        made: list[str] = []
        with self.admin() as admin:
            there = {topic.name for topic in admin.list_topics()}
            absent = self._absent(there)
            if absent:
                raise SqlError(pipeline.source, [Problem(offset, words) for offset, words in absent])
            for node in pipeline.nodes:
                if node.has_topic and node.topic not in there:
                    made.extend(self._create(admin, node.topic, node))
            for name in dict.fromkeys(pipeline.dead_letters.values()):
                if name not in there:
                    made.extend(self._create(admin, name, None))
        return made

    def _create(self, admin: Admin, name: str, node: Node | None) -> list[str]:
        settings = self._pipeline.settings
        partitions = (node.option("partitions") if node else None) or settings.get("partitions") or "-1"
        replication = (node.option("replication") if node else None) or settings.get("replication") or "-1"
        configs = {"cleanup.policy": "compact"} if node is not None and node.kind == "table" else {}
        try:
            admin.create_topic(name, int(partitions), int(replication), configs=configs)
        except TopicAlreadyExistsError:
            return []
        return [name]

    def stream(self, spark: SparkSession, names: Sequence[str], node: Node | None) -> DataFrame:
        """Records as they come, from the earliest on unless told otherwise."""
        settings = self._pipeline.settings
        said = node.option if node is not None else (lambda _: None)
        options = {
            **self._settings(CONSUMER_CONFIGS, node),
            "subscribe": ",".join(names),
            "includeHeaders": "true",
            "startingOffsets": said("starting") or settings.get("starting") or "earliest",
        }
        most = said("max_records") or settings.get("max_records")
        if most:
            options["maxOffsetsPerTrigger"] = most
        return spark.readStream.format("klamm").options(**options).load()

    def whole(self, spark: SparkSession, name: str) -> DataFrame:
        """All records there are now."""
        options = {**self._settings(CONSUMER_CONFIGS, None), "subscribe": name, "includeHeaders": "true"}
        return spark.read.format("klamm").options(**options).load()

    def append(self, frame: DataFrame, topic: str, node: Node) -> Any:
        """Exactly once, by the sink's own protocol."""
        options = {**self._settings(PRODUCER_CONFIGS, node), "topic": topic}
        return frame.writeStream.format("klamm").options(**options).outputMode("append")

    def write(self, frame: DataFrame, topic: str, node: Node, app: str, batch: int) -> None:
        """Exactly once: a numbered write that was done is not done again."""
        options = {
            **self._settings(PRODUCER_CONFIGS, node),
            "topic": topic,
            "txnAppId": app,
            "txnVersion": str(batch),
        }
        frame.write.format("klamm").options(**options).mode("append").save()

    def sink(self, frame: DataFrame, node: Node, app: str) -> Any:
        """A table of a lake, exactly once; or a sink of Spark: files elsewhere are written by one."""
        table = lake_table(node)
        if table is not None and (table.format not in FILES or table.local is not None):
            lake = open_sink(table)

            def save(batch: DataFrame, number: int) -> None:
                lake.write(batch, app, number)

            return frame.writeStream.outputMode("append").foreachBatch(save)
        writer = frame.writeStream.format((node.option("format") or "").lower()).outputMode("append")
        for name, value in node.create.options.items():
            if name.startswith("option."):
                writer = writer.option(name.removeprefix("option."), value.text)
        path, parts = node.option("path"), node.option("partition_by")
        if path:
            writer = writer.option("path", path)
        return writer.partitionBy(*name_list(parts)) if parts else writer
