"""Topics as Spark frames: the engine uses `TopicConnector`, which `ClusterTopics` implements on a cluster.

Rows are those of `format("klamm")`: key, value, topic, partition, offset, timestamp, headers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from klamm.client import Admin, Consumer, loop_thread
from klamm.client.admin.types import ConfigResource
from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS
from klamm.client.errors import TopicAlreadyExistsError
from klamm.model.ids import TopicPartition
from klamm.pipeline.commits_topic import read_newest
from klamm.pipeline.core.batch_ledger import SinkBatch
from klamm.pipeline.core.connector_options import EARLIEST, TopicSelection, read_options, write_options
from klamm.pipeline.core.lake_tables import FILES, FORMATS, LakeTable
from klamm.pipeline.core.offsets import Position
from klamm.pipeline.lake.sinks import LakeSink, open_sink, write_checked
from klamm.pipeline.postgres.change_topic import ChangeTopic
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.pipeline_rights import UNKNOWN_USER, PipelineRights, find_user, pipeline_rights
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.statement_options import name_list, starting_ms
from klamm.pipeline.sql.core.statements import SINK, SOURCE
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.query_ledger import QueryLedger
from klamm.pipeline.task_writer import complete_batch
from klamm.pipeline.topic_metadata import TopicLookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from klamm.pipeline.sql.rebuilds import LakeRebuild

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
EARLIEST_RECORD = "earliest"
_MESSAGE_BYTES = "max.message.bytes"
_MESSAGE_BYTES_DEFAULT = 1_048_588


def lake_table(node: GraphNode) -> LakeTable | None:
    """Return the lake table that a sink writes to; None for another kind of sink."""
    kind = (node.option("format") or "").lower()
    if node.kind != SINK or kind not in FORMATS:
        return None
    options = {
        name.removeprefix("option."): expand(value.text, os.environ, name)
        for name, value in node.create.options.items()
        if name.startswith("option.")
    }
    partition_by = name_list(node.option("partition_by") or "")
    return LakeTable(node.name, kind, node.option("path"), node.option("table"), partition_by, options)


class TopicConnector(Protocol):
    """Reads and writes topics as frames."""

    def stream(self, spark: SparkSession, names: Sequence[str], node: GraphNode | None, start: str = "") -> DataFrame:
        """Return a stream of records; `node` is the statement that reads them, `start` the position if it is stored."""

    def read_all(self, spark: SparkSession, name: str) -> DataFrame:
        """Return all records of a topic as a batch."""

    def between(self, spark: SparkSession, start: Mapping[str, Any], end: Mapping[str, Any]) -> DataFrame:
        """Return the records between two positions of a stream as a batch; those that are gone are left out."""

    def end(self, topic: str) -> Mapping[str, Any]:
        """Return the end offsets of a topic, as a position of a stream."""

    def append(
        self, frame: DataFrame, topic: str, node: GraphNode, ledger: QueryLedger, bytes_max: int | None = None
    ) -> Any:
        """Return a writer of a stream of key, value and optional headers; its `start` runs it.

        `bytes_max` is the size of the largest record, where that is known.
        """

    def message_bytes_max(self, topic: str) -> int:
        """Return the largest record batch that a topic takes, in bytes."""

    def write(self, frame: DataFrame, topic: str, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Write a batch of key and value; a batch number that was written is not written again."""

    def upsert(self, changes: DataFrame, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Upsert the lake table of a SINK with a batch: at most one row per key, DELETED for keys to delete."""

    def replace(self, rows: DataFrame, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Replace all rows of a SINK's lake table, under the number of a batch."""

    def sink(self, frame: DataFrame, node: GraphNode, ledger: QueryLedger, rebuild: LakeRebuild | None = None) -> Any:
        """Return a writer of a SINK's rows."""

    def newest(self, node: GraphNode, ledger: QueryLedger, *, with_position: bool = False) -> SinkBatch | None:
        """Return the newest batch with rows that the sink of a query has; None for a sink that stores no numbers.

        A topic's position costs another read.
        """

    def complete(self, node: GraphNode, ledger: QueryLedger) -> None:
        """Make all of a query's newest batch visible, if it is decided."""

    def change_topic(self, node: GraphNode, capture: str) -> ChangeTopic:
        """Return the topic of a captured table, written without Spark; `capture` names its positions."""


class ClusterTopics:
    """The topics of a cluster, by `format("klamm")`."""

    def __init__(self, pipeline: Pipeline, client: Mapping[str, str] | None = None) -> None:
        settings = pipeline.settings
        self._pipeline = pipeline
        self.bootstrap = settings.get("bootstrap") or (client or {}).get("bootstrap.servers") or DEFAULT_BOOTSTRAP
        client_settings = {
            name.removeprefix("kafka."): expand(value, os.environ, name)
            for name, value in settings.items()
            if name.startswith("kafka.")
        }
        self._client = {**(client or {}), **client_settings, "bootstrap.servers": self.bootstrap}

    def _settings(self, definition: Any, node: GraphNode | None) -> dict[str, str]:
        options = node.create.options if node is not None else {}
        client_settings = {
            name.removeprefix("kafka."): expand(value.text, os.environ, name)
            for name, value in options.items()
            if name.startswith("kafka.")
        }
        merged = {**self._client, **client_settings}
        return {f"kafka.{name}": value for name, value in merged.items() if name in definition}

    def consumer_settings(self) -> dict[str, str]:
        """Return the settings for offset lookups."""
        return {**self._client, "isolation.level": "read_committed"}

    def admin(self) -> Admin:
        """Return an admin client."""
        return Admin({name: value for name, value in self._client.items() if name in ADMIN_CONFIGS})

    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        with self.admin() as admin:
            return admin.describe_cluster().cluster_id

    def watcher(self) -> Consumer:
        """Return a consumer for lag measurements, without a group."""
        settings = {name: value for name, value in self._client.items() if name in CONSUMER_CONFIGS}
        settings |= {
            "isolation.level": "read_committed",
            # Retention may have removed the first unread record: then the oldest one left gives the age.
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
        # With a group it would join, and take partitions from its members.
        return Consumer({name: value for name, value in settings.items() if name != "group.id"})

    def rights(self) -> PipelineRights:
        """Return what the user of the pipeline must be allowed."""
        return pipeline_rights(self._pipeline, find_user(self._client))

    def problems(self) -> list[tuple[int, str]]:
        """Return a message for each topic that cannot be read or written, with the statement's offset."""
        with self.admin() as admin:
            existing = {topic.name for topic in admin.list_topics()}
            rights = self.rights()
            described = admin.describe_topics(
                [name for name in rights.topics if name in existing], authorized_operations=True
            )
        offsets = {node.topic: node.create.offset for node in reversed(self._pipeline.nodes) if node.has_topic}
        problems = self._absent(existing)
        for name, topic in described.items():
            # None from brokers that do not report operations.
            missing = (
                [] if topic.authorized_operations is None else rights.missing_on(name, topic.authorized_operations)
            )
            if missing:
                problems.append((offsets.get(name, 0), rights.describe_missing(missing)))
        return sorted(problems)

    def _absent(self, existing: Container[str]) -> list[tuple[int, str]]:
        # Listings leave out topics that the user may not describe.
        complaint = "does not exist or this user may not see it"
        user = find_user(self._client)
        return [
            (
                node.create.offset,
                f"topic {node.topic} {complaint}; create it, or let partitions = N do so"
                + (f"; if it exists: klamm acl add {user} read topic:{node.topic}" if user != UNKNOWN_USER else ""),
            )
            for node in self._pipeline.nodes
            if node.has_topic
            and not node.runs
            and node.topic not in existing
            and node.topic not in self._pipeline.outputs
            and node.option("partitions") is None
        ]

    def ensure(self) -> list[str]:
        """Create missing topics that the pipeline writes; return their names. Topics that are only read must exist."""
        pipeline = self._pipeline
        created: list[str] = []
        with self.admin() as admin:
            existing = {topic.name for topic in admin.list_topics()}
            absent = self._absent(existing)
            if absent:
                raise SqlError(pipeline.source, [SqlProblem(offset, message) for offset, message in absent])
            for node in pipeline.nodes:
                if node.has_topic and node.topic not in (*existing, *created):
                    created.extend(self._create(admin, node.topic, node))
            side_topics = (pipeline.dead_letters, pipeline.refused_rows, pipeline.late_topics)
            for name in dict.fromkeys(name for topics in side_topics for name in topics.values()):
                if name not in existing:
                    created.extend(self._create(admin, name, None))
        return created

    def _create(self, admin: Admin, name: str, node: GraphNode | None) -> list[str]:
        settings = self._pipeline.settings
        # -1 stands for the brokers' num.partitions and default.replication.factor (KIP-464).
        partitions = (node.option("partitions") if node else None) or settings.get("partitions") or "-1"
        replication = (node.option("replication") if node else None) or settings.get("replication") or "-1"
        # A table's topic is its newest rows by key.
        readers = [] if node is None else [node, *self._pipeline.readers_of_capture(node)]
        configs = {"cleanup.policy": "compact"} if any(reader.kind == "table" for reader in readers) else {}
        try:
            admin.create_topic(name, int(partitions), int(replication), configs=configs)
        # Another pipeline, or an auto-creating producer, was faster.
        except TopicAlreadyExistsError:
            return []
        return [name]

    def stream(self, spark: SparkSession, names: Sequence[str], node: GraphNode | None, start: str = "") -> DataFrame:
        """Return a stream of records, from the earliest by default, or from `starting`."""
        settings = self._pipeline.settings
        options = {**self._reading(names, node), "includeHeaders": "true"}
        if start:
            options["startingPosition"] = start
        on_data_loss = (node.option("on_data_loss") if node is not None else None) or settings.get("on_data_loss")
        if (on_data_loss or "fail").lower() == "continue":
            options["failOnDataLoss"] = "false"
        max_records = (node.option("max_records") if node is not None else None) or settings.get("max_records")
        if max_records:
            options["maxOffsetsPerTrigger"] = max_records
        return spark.readStream.format("klamm").options(**options).load()

    def _reading(self, names: Sequence[str], node: GraphNode | None) -> dict[str, str]:
        """Return the options of a stream that say which topics it reads, and where it begins."""
        options = {**self._settings(CONSUMER_CONFIGS, node), "subscribe": ",".join(names)}
        starting = self.starting(node)
        moment_ms = starting_ms(starting)
        if moment_ms is None:
            # Spark's default for a stream is latest, which would skip records from before the first start.
            return {**options, "startingOffsets": starting}
        # A partition whose records are all older has nothing to read yet.
        return {**options, "startingTimestamp": str(moment_ms), "startingOffsetsByTimestampStrategy": "latest"}

    def starting(self, node: GraphNode | None) -> str:
        """Return where a statement's stream begins at its first start."""
        if node is None:
            return EARLIEST_RECORD  # changes of tables, which are read whole
        if node.kind == SOURCE:
            # The option of a source is a place in its database, not in the topic that it writes.
            return self._pipeline.settings.get("starting") or EARLIEST_RECORD
        return node.option("starting") or self._pipeline.settings.get("starting") or EARLIEST_RECORD

    def first_position(self, node: GraphNode, before: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return where a statement's stream begins if it is started now, as a position of a stream.

        `before` is where an earlier generation began: a rebuild reads the same records, as far as they are there.
        """
        options = read_options(self._reading([node.topic], node), streaming=True)
        with TopicLookup(options.client, options.choice) as lookup:
            if before is not None:
                position = Position.from_json(before)
                if not position.is_recreated(lookup.ends(), node.topic):
                    first = lookup.earliest(position.offsets)
                    kept = {partition: max(offset, first[partition]) for partition, offset in position.offsets.items()}
                    return replace(position, offsets=kept).to_json()
            return lookup.at(options.start, "starting", late_is_latest=options.late_start_is_latest).to_json()

    def read_all(self, spark: SparkSession, name: str) -> DataFrame:
        """Return all current records of a topic."""
        options = {**self._settings(CONSUMER_CONFIGS, None), "subscribe": name, "includeHeaders": "true"}
        return spark.read.format("klamm").options(**options).load()

    def between(self, spark: SparkSession, start: Mapping[str, Any], end: Mapping[str, Any]) -> DataFrame:
        """Return the records between two positions, which are as Spark's offset log has them."""
        ends = Position.from_json(end)
        starts = Position.from_json(start).offsets
        # A partition that the start does not have is new.
        begin = Position({partition: starts.get(partition, EARLIEST) for partition in ends.offsets})
        options = {
            **self._settings(CONSUMER_CONFIGS, None),
            # Partitions that were added since belong to a later range.
            "assign": json.dumps({topic: sorted(map(int, offsets)) for topic, offsets in ends.by_topic().items()}),
            "includeHeaders": "true",
            "startingOffsets": json.dumps(begin.by_topic()),
            "endingOffsets": json.dumps(ends.by_topic()),
            "failOnDataLoss": "false",
        }
        return spark.read.format("klamm").options(**options).load()

    def end(self, topic: str) -> Mapping[str, Any]:
        """Return the last stable offsets of a topic: what `between` reads, without waiting for open transactions."""
        with TopicLookup(self.consumer_settings(), TopicSelection(topics=(topic,))) as lookup:
            return lookup.ends().to_json()

    def message_bytes_max(self, topic: str) -> int:
        """Return max.message.bytes of a topic; the default for one that does not exist yet."""
        resource = ConfigResource.topic(topic)
        with self.admin() as admin:
            # A backfill and a check build the queries of dead letters and run none of them.
            if topic not in {listing.name for listing in admin.list_topics()}:
                return _MESSAGE_BYTES_DEFAULT
            configs = admin.describe_configs([resource], keys=[_MESSAGE_BYTES])[resource]
        value = configs[_MESSAGE_BYTES].value if _MESSAGE_BYTES in configs else None
        return int(value) if value else _MESSAGE_BYTES_DEFAULT

    def append(
        self, frame: DataFrame, topic: str, node: GraphNode, ledger: QueryLedger, bytes_max: int | None = None
    ) -> Any:
        """Return a writer that appends exactly once, by the sink's commit protocol."""
        options = {**self._settings(PRODUCER_CONFIGS, node), **_target(frame, topic)}
        # The producer's own limit, 1 MB, may be lower than the topic's.
        if bytes_max is not None and "kafka.max.request.size" not in options:
            options["kafka.max.request.size"] = str(max(bytes_max, _MESSAGE_BYTES_DEFAULT))
        if ledger.app is not None:
            options["txnAppId"] = ledger.app
        if ledger.app is not None and not ledger.is_local:

            def save(rows: DataFrame, batch: int) -> None:
                self.write(rows, topic, node, ledger, batch)

            # The process in which Spark commits a stream's batch has no JVM, which a remote checkpoint needs.
            return frame.writeStream.outputMode("append").foreachBatch(save)
        return frame.writeStream.format("klamm").options(**options).outputMode("append")

    def write(self, frame: DataFrame, topic: str, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Write a numbered batch; one that was written is not written again."""
        assert ledger.app is not None
        options = {
            **self._settings(PRODUCER_CONFIGS, node),
            **_target(frame, topic),
            "txnAppId": ledger.app,
            "txnVersion": str(batch),
        }
        checkpoint = ledger.checkpoint()
        if ledger.is_local and ledger.location is not None:
            # The sink compares and records in the process that commits.
            options["checkpointLocation"] = ledger.location
        elif checkpoint is not None:
            checkpoint.check_batch(ledger.sink, self._newest_of_topic(ledger, node), batch)
            position = checkpoint.position(batch)
            options["txnPosition"] = "" if position is None else position.text
        frame.write.format("klamm").options(**options).mode("append").save()
        if checkpoint is not None and not ledger.is_local and self._newest_of_topic(ledger, node).batch == batch:
            checkpoint.record_written(ledger.sink, batch)

    def newest(self, node: GraphNode, ledger: QueryLedger, *, with_position: bool = False) -> SinkBatch | None:
        """Return the newest batch with rows that the sink of a query has; None for a sink that stores no numbers.

        A topic's position costs another read.
        """
        if ledger.app is None:
            return None
        if node.kind != SINK:
            return self._newest_of_topic(ledger, node, with_position=with_position)
        lake_sink = self._lake_sink(node)
        return None if lake_sink is None else lake_sink.newest(ledger.app)

    def complete(self, node: GraphNode, ledger: QueryLedger) -> None:
        """Make all of a query's newest batch visible, if it is decided."""
        if node.kind == SINK:
            return  # a table's commit is one step, and a folder's newest batch is completed when it is read
        thread = loop_thread.acquire()
        try:
            thread.run(complete_batch(write_options(self._settings(PRODUCER_CONFIGS, node)), ledger.sink))
        finally:
            loop_thread.release(thread)

    def change_topic(self, node: GraphNode, capture: str) -> ChangeTopic:
        """Return the topic of a captured table."""
        settings = {**self._settings(CONSUMER_CONFIGS, node), **self._settings(PRODUCER_CONFIGS, node)}
        client = {name.removeprefix("kafka."): value for name, value in settings.items()}
        # The producer's own limit, 1 MB, may be lower than the topic's.
        client.setdefault("max.request.size", str(max(self.message_bytes_max(node.topic), _MESSAGE_BYTES_DEFAULT)))
        return ChangeTopic({**self._client, **client}, node.topic, capture)

    def registry(self) -> PipelineRegistry:
        """Return the pipelines of this cluster."""
        return PipelineRegistry(self._client)

    def _newest_of_topic(self, ledger: QueryLedger, node: GraphNode, *, with_position: bool = False) -> SinkBatch:
        options = write_options(self._settings(PRODUCER_CONFIGS, node))
        thread = loop_thread.acquire()
        try:
            reading = read_newest(ledger.sink, options.client, options.commits_topic, with_position=with_position)
            newest: SinkBatch = thread.run(reading)
        finally:
            loop_thread.release(thread)
        checkpoint = ledger.checkpoint()
        if newest.batch < 0 and checkpoint is not None:
            # Brokers delete the offsets of a quiet group after a week; the checkpoint's own note takes their place.
            sink, written = checkpoint.read_written()
            return written if sink == ledger.sink else newest
        return newest

    @staticmethod
    def _lake_sink(node: GraphNode) -> LakeSink | None:
        table = lake_table(node)
        return (
            open_sink(table) if table is not None and (table.format not in FILES or table.local is not None) else None
        )

    def upsert(self, changes: DataFrame, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Upsert a lake table, exactly once."""
        lake_sink = self._lake_sink(node)
        assert lake_sink is not None, "the statement's check refuses other formats"
        assert ledger.app is not None
        write_checked(lake_sink, changes, ledger.app, batch, ledger.checkpoint(), node.key)

    def replace(self, rows: DataFrame, node: GraphNode, ledger: QueryLedger, batch: int) -> None:
        """Replace all rows of a lake table in one commit."""
        lake_sink = self._lake_sink(node)
        assert lake_sink is not None
        assert ledger.app is not None
        write_checked(lake_sink, rows, ledger.app, batch, ledger.checkpoint(), replace_all=True)

    def is_lake(self, node: GraphNode) -> bool:
        """Whether a SINK writes numbered batches to a lake table."""
        return self._lake_sink(node) is not None

    def has_table(self, node: GraphNode) -> bool:
        """Whether the lake table of a SINK exists."""
        lake_sink = self._lake_sink(node)
        return lake_sink is not None and lake_sink.exists()

    def existing(self, names: Sequence[str]) -> list[str]:
        """Return the topics that exist."""
        with self.admin() as admin:
            present = {topic.name for topic in admin.list_topics()}
        return [name for name in names if name in present]

    def range_of(self, names: Sequence[str]) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """Return the first offset of each partition of topics, and the one after the last."""
        with self.watcher() as consumer:
            partitions = [TopicPartition(name, part) for name in names for part in consumer.partitions_for(name)]
            starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        return (
            {(partition.topic, partition.partition): offset for partition, offset in starts.items()},
            {(partition.topic, partition.partition): offset for partition, offset in ends.items()},
        )

    def sink(self, frame: DataFrame, node: GraphNode, ledger: QueryLedger, rebuild: LakeRebuild | None = None) -> Any:
        """Return the writer of a lake table, exactly once; or Spark's own sink, for the console and remote files."""
        lake_sink = self._lake_sink(node)
        if lake_sink is not None:
            assert ledger.app is not None
            app = ledger.app

            def write(batch: DataFrame, number: int) -> None:
                write_checked(lake_sink, batch, app, number, ledger.checkpoint())

            def save(batch: DataFrame, number: int) -> None:
                write(batch, number) if rebuild is None else rebuild.save(batch, number, write)

            return frame.writeStream.outputMode("append").foreachBatch(save)
        writer = frame.writeStream.format((node.option("format") or "").lower()).outputMode("append")
        for name, value in node.create.options.items():
            if name.startswith("option."):
                writer = writer.option(name.removeprefix("option."), value.text)
        path, partition_by = node.option("path"), node.option("partition_by")
        if path:
            writer = writer.option("path", path)
        return writer.partitionBy(*name_list(partition_by)) if partition_by else writer


def _target(frame: DataFrame, topic: str) -> dict[str, str]:
    """Return the option that names the topic; rows with a column topic name it themselves."""
    return {} if "topic" in frame.columns else {"topic": topic}
