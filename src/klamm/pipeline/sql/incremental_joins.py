"""Joins with tables that read only the rows they need: what a batch of 20 rows costs does not depend on the tables.

A stream's batch looks its rows up in a local store, which follows the tables' topics. A table of tables keeps in the
store what was made of each row of its root: when rows change, the rows of the root that they are joined with are
computed again, and the keys of the result that differ are written. docs/decisions/0022 has the reasons.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from klamm.pipeline.core.offsets import Position
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.join_frames import ROOT, JoinFrames, measure_frame, split_frame
from klamm.pipeline.sql.join_store import ROWS_MAX, JoinStore, StoredRecord, TooManyRowsError
from klamm.pipeline.sql.query_ledger import QueryLedger
from klamm.pipeline.sql.topics import TopicConnector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from klamm.pipeline.sql.query_writers import QueryWriters
    from klamm.pipeline.sql.topic_views import TopicViews

_log = logging.getLogger(__name__)
UNIT: Final = "_klamm_unit"
_LOAD_OFFSETS: Final = 20_000
"""More unread offsets than this are loaded in parts."""


def find_records(
    frames: JoinFrames, store: JoinStore, roots: set[bytes] | None, hashes: Mapping[int, set[int]]
) -> dict[str, list[StoredRecord]]:
    """Return the rows that joins need, by table: those of `roots`, or those that `hashes` of a stream's rows find."""
    keys: dict[int, set[bytes]] = {}
    if roots is not None:
        keys[frames.plan.root] = roots
    for number, edge in enumerate(frames.plan.edges):
        source, target = frames.table(edge.source), frames.table(edge.target)
        assert target is not None
        if source is None:
            wanted = hashes[number]
        else:
            wanted = store.hashes(source, keys[edge.source], frames.column(number, edge.source))
        keys[edge.target] = store.keys_by_hash(target, frames.column(number, edge.target), wanted)
    needed: dict[str, set[bytes]] = {name: set() for name in frames.tables}
    for relation, relation_keys in keys.items():
        name = frames.table(relation)
        assert name is not None
        needed[name] |= relation_keys
    return {name: store.records(name, name_keys) for name, name_keys in needed.items()}


class StreamLookups:
    """The tables of a stream's join."""

    def __init__(self, topics: TopicConnector, views: TopicViews, frames: JoinFrames, ledger: QueryLedger) -> None:
        self._topics = topics
        self._views = views
        self._frames = frames
        self._ledger = ledger

    def register(self, node: GraphNode, batch: DataFrame) -> None:
        """Register the tables with the rows that a batch, which is persisted, needs; or whole, when it is large."""
        session = batch.sparkSession
        try:
            hashes = self._collect_hashes(batch)
            with contextlib.closing(self._frames.open_store(self._ledger)) as store:
                for name in self._frames.tables:
                    self._follow(session, store, name)
                self._frames.register(session, find_records(self._frames, store, None, hashes))
        except TooManyRowsError:
            _log.info("tables read whole query=%s: a batch needs more than %d rows", node.name, ROWS_MAX)
            self._views.refresh(node, session)

    def _collect_hashes(self, batch: DataFrame) -> dict[int, set[int]]:
        """Return the hashes of a batch's rows, by the edges that leave the stream."""
        if batch.count() > ROWS_MAX:
            raise TooManyRowsError
        root = self._frames.plan.root
        numbers = [number for number, edge in enumerate(self._frames.plan.edges) if edge.source == root]
        sides = [self._frames.stream_hash(number) for number in numbers]
        hashed = batch.alias(sides[0].alias).selectExpr(
            *(f"{side.text} AS h{number}" for number, side in zip(numbers, sides, strict=True))
        )
        columns = hashed.toArrow()
        return {number: set(columns.column(f"h{number}").to_pylist()) for number in numbers}

    def _follow(self, session: SparkSession, store: JoinStore, name: str) -> None:
        """Bring a table up to its topic's end, which is after every record that was there before the batch's rows."""
        topic = self._frames.tables[name].topic
        text = store.get(f"position {name}")
        start: Mapping[str, Any] = json.loads(text) if text else {}
        end = self._topics.end(topic)
        if start == end:
            return
        begin_s = time.monotonic()
        records = self._topics.between(session, start, end)
        if start and not _is_ahead(start, end):
            _log.warning(
                "join store reloaded query=%s table=%s: its topic was recreated or truncated", self._ledger.query, name
            )
            start = {}
            records = self._topics.between(session, start, end)
        with store.transaction():
            if not start:
                store.clear_table(name)
            if start and _distance(start, end) <= _LOAD_OFFSETS:
                store.apply(name, self._frames.collect([self._frames.hash_records(name, records)])[name])
            else:
                with self._frames.newest(name, records) as newest:
                    count = self._frames.load(store, name, newest)
                seconds = time.monotonic() - begin_s
                _log.info(
                    "table loaded query=%s table=%s records=%d seconds=%.1f", self._ledger.query, name, count, seconds
                )
            store.index()
            store.put(f"position {name}", json.dumps(end))


def _is_ahead(start: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
    """Whether a topic has grown between two positions: neither was it made again, nor did it lose partitions."""
    before, after = Position.from_json(start), Position.from_json(end)
    recreated = any(before.is_recreated(after, topic) for topic in after.ids)
    return not recreated and all(after.offsets.get(place, -1) >= offset for place, offset in before.offsets.items())


def _distance(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    before, after = Position.from_json(start).offsets, Position.from_json(end).offsets
    return sum(offset - before.get(place, 0) for place, offset in after.items())


class TableJoins:
    """A table of tables that is computed for the rows that change."""

    def __init__(
        self,
        topics: TopicConnector,
        writers: QueryWriters,
        node: GraphNode,
        frames: JoinFrames,
        ledger: QueryLedger,
    ) -> None:
        self._topics = topics
        self._writers = writers
        self._node = node
        self._frames = frames
        self._ledger = ledger

    def save(self, batch: DataFrame, number: int) -> None:
        """Write what a batch of changed rows changes."""
        with contextlib.closing(self._frames.open_store(self._ledger)) as store:
            stored = int(store.get("batch") or -1)
            if stored == number and store.get("position") == self._position(number):
                return  # the store is changed after the topic, so the topic has this batch
            with store.transaction():
                if not (stored == number - 1 and store.get("position") == self._position(stored)):
                    self._rebuild(store, batch.sparkSession, number)
                else:
                    try:
                        self._update(store, batch, number)
                    except TooManyRowsError:
                        _log.info("table computed whole query=%s batch=%d: too many rows", self._node.name, number)
                        self._rebuild(store, batch.sparkSession, number)
                store.put("batch", str(number))
                store.put("position", self._position(number))

    def _position(self, number: int) -> str:
        checkpoint = self._ledger.checkpoint()
        position = None if checkpoint is None else checkpoint.position(number)
        # Without one the numbers alone are compared.
        return "" if position is None else position.digest

    # A batch of changes

    def _update(self, store: JoinStore, batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        rows = batch.persist()
        try:
            if rows.count() > ROWS_MAX:
                raise TooManyRowsError
            changed = self._frames.collect(
                [
                    self._frames.hash_records(name, rows.where(f"topic = '{table.topic}'"))
                    for name, table in self._frames.tables.items()
                ]
            )
        finally:
            rows.unpersist()
        roots = self._apply(store, changed)
        self._frames.register(session, find_records(self._frames, store, roots, {}))
        encoded = self._encode(session).toArrow()
        columns = (encoded.column(name).to_pylist() for name in (UNIT, "key", "value"))
        # A table that is joined with itself has rows here that were looked up, and are not complete as roots.
        results = [row for row in zip(*columns, strict=True) if row[0] in roots]
        changes = store.replace_results(roots, results)
        self._write(_changes_frame(session, changes), number)

    def _apply(self, store: JoinStore, changed: Mapping[str, list[StoredRecord]]) -> set[bytes]:
        """Store changed rows; return the keys of the root's rows that they are joined with, before or after."""
        frames = self._frames
        keys = {name: {record.key for record in records} for name, records in changed.items()}
        before = self._hashes(store, keys)
        for name, records in changed.items():
            store.apply(name, records)
        after = self._hashes(store, keys)
        affected: dict[int, set[bytes]] = {}
        for relation in range(len(frames.plan.relations)):
            table = frames.table(relation)
            assert table is not None
            affected[relation] = set(keys[table])
        # From the last edge to the root: a row is affected when a row that it leads to is.
        for number, edge in reversed(list(enumerate(frames.plan.edges))):
            source, target = frames.table(edge.source), frames.table(edge.target)
            assert source is not None
            assert target is not None
            column = frames.column(number, edge.target)
            hashes = before[number] | after[number] | store.hashes(target, affected[edge.target], column)
            affected[edge.source] |= store.keys_by_hash(source, frames.column(number, edge.source), hashes)
        roots = affected[frames.plan.root]
        if len(roots) > ROWS_MAX:
            raise TooManyRowsError
        return roots

    def _hashes(self, store: JoinStore, keys: Mapping[str, set[bytes]]) -> dict[int, set[int]]:
        """Return the hashes by which changed rows are found, of each edge."""
        hashes = {}
        for number, edge in enumerate(self._frames.plan.edges):
            name = self._frames.table(edge.target)
            assert name is not None
            hashes[number] = store.hashes(name, keys[name], self._frames.column(number, edge.target))
        return hashes

    # All rows

    def _rebuild(self, store: JoinStore, session: SparkSession, number: int) -> None:
        """Compute the table whole, write the difference to its topic, and fill the store.

        The tables are read up to the batch's planned position, so that a replay computes the same: the topic would
        otherwise have the rows of one run, and the store those of another.
        """
        from pyspark import StorageLevel  # noqa: PLC0415 - pyspark is an extra

        begin_s = time.monotonic()
        ends = self._planned_ends(number)
        store.clear()
        with contextlib.ExitStack() as stack:
            for name, table in self._frames.tables.items():
                records = self._topics.between(session, {}, ends[table.topic])
                # Kept until the result is computed: the store and the join read the same records.
                newest = stack.enter_context(self._frames.newest(name, records))
                self._frames.load(store, name, newest)
                self._frames.register_whole(name, newest)
            current = self._encode(session).persist(StorageLevel.DISK_ONLY)
            stack.callback(current.unpersist)
            count, parts = measure_frame(current, (UNIT, "key", "value"))
            for part in split_frame(current, UNIT, parts):
                for rows in part.to_batches():
                    columns = (rows.column(name).to_pylist() for name in (UNIT, "key", "value"))
                    store.add_results(zip(*columns, strict=True))
            self._writers.write_difference(self._node, current.select("key", "value"), number)
        store.index()
        seconds = time.monotonic() - begin_s
        _log.info(
            "table computed whole query=%s batch=%d rows=%d seconds=%.1f", self._node.name, number, count, seconds
        )

    def _planned_ends(self, number: int) -> dict[str, Mapping[str, Any]]:
        """Return where a batch ends in each topic."""
        topics = {table.topic for table in self._frames.tables.values()}
        checkpoint = self._ledger.checkpoint()
        position = None if checkpoint is None else checkpoint.position(number)
        for planned in [] if position is None else position.ends:
            if isinstance(planned, dict) and topics <= planned.keys():
                whole = Position.from_json(planned)
                return {
                    topic: Position(
                        {place: end for place, end in whole.offsets.items() if place.topic == topic}
                    ).to_json()
                    for topic in topics
                }
        # Topics that are folders, in tests: their positions in the checkpoint are lists of files.
        return {topic: self._topics.end(topic) for topic in topics}

    def _encode(self, session: SparkSession) -> DataFrame:
        """Return rows of the result as records, with the key of the root's row that each is made of."""
        frame = session.sql(rooted_select(self._node, self._frames)).drop(ROOT)
        encoded = self._writers.encode(self._node, frame, kept=(UNIT,))
        return encoded.selectExpr(UNIT, "cast(key AS BINARY) key", "cast(value AS BINARY) value").where(
            "value IS NOT NULL"
        )

    def _write(self, changes: DataFrame, number: int) -> None:
        self._writers.write_changes(self._node, changes, number)


def rooted_select(node: GraphNode, frames: JoinFrames) -> str:
    """Return a SELECT with one more column, the key of the root's row."""
    select = node.create.select
    assert select is not None
    alias = frames.plan.relations[frames.plan.root].alias.replace("`", "``")
    rest = select.text[select.tokens[0].end - select.offset :]
    return f"SELECT `{alias}`.{ROOT} AS {UNIT}, {rest}"


def _changes_frame(session: SparkSession, changes: list[tuple[bytes, bytes | None]]) -> DataFrame:
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra

    keys, values = [key for key, _ in changes], [value for _, value in changes]
    return session.createDataFrame(
        pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    )
