"""Stores where queries begin, before any of them starts.

Spark has the position of a query from its first planned batch on, and asks a source for its beginning at every start
until then. `latest` is somewhere else each time: a query that was killed, or failed, before its first batch would skip
the records that came meanwhile. `earliest` needs no store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from klamm.pipeline.sql.core.query_progress import read_offsets
from klamm.pipeline.sql.topics import EARLIEST_RECORD

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
    from klamm.pipeline.sql.engine import Query
    from klamm.pipeline.sql.query_ledger import QueryLedger
    from klamm.pipeline.sql.topics import ClusterTopics


def starts_of(ledger: QueryLedger) -> dict[str, str]:
    """Return where the streams of a query begin, by statement; empty once a batch is committed, or without a store."""
    checkpoint = ledger.checkpoint()
    if checkpoint is None or checkpoint.has_commits():
        return {}
    return {name: json.dumps(position) for name, position in checkpoint.starts().items()}


def store_starts(pipeline: Pipeline, queries: Iterable[Query], topics: ClusterTopics) -> None:
    """Store where each query begins that has no batches; one that has a store keeps it."""
    positions: dict[str, Mapping[str, Any]] = {}
    # Dead letters first: a run killed in between then has letters of records that no query reads, and never a bad
    # record without its letter.
    for query in sorted(queries, key=_is_of_rows):
        streams = [stream for stream in _streams(pipeline, query) if topics.starting(stream).lower() != EARLIEST_RECORD]
        checkpoint = query.ledger.checkpoint()
        if not streams or checkpoint is None or checkpoint.last_planned() >= 0:
            continue
        stored = checkpoint.starts()
        starts = dict(stored)
        before = _starts_before(query.ledger)
        for stream in streams:
            if stream.name in starts:
                continue
            if stream.name in before:
                starts[stream.name] = topics.first_position(stream, before[stream.name])
                continue
            # Looked up once: all queries of a stream begin at the same record.
            if stream.name not in positions:
                positions[stream.name] = topics.first_position(stream)
            starts[stream.name] = positions[stream.name]
        if starts != stored:
            checkpoint.record_starts(starts)


def _starts_before(ledger: QueryLedger) -> dict[str, Any]:
    """Return where the generation before a rebuild began; empty for the first one."""
    path, _, generation = str(ledger.location).rpartition(".")
    if not generation.isdecimal() or int(generation) == 0:
        return {}
    checkpoint = replace(ledger, location=f"{path}.{int(generation) - 1}").checkpoint()
    return {} if checkpoint is None else checkpoint.starts()


def offsets_before(ledger: QueryLedger) -> dict[tuple[str, int], int]:
    """Return the offsets at which the generation before a rebuild began; empty where that was the first record."""
    return began_offsets(_starts_before(ledger))


def began_offsets(starts: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the offsets of stored starts."""
    return read_offsets({"sources": [{"endOffset": position} for position in starts.values()]})


def _is_of_rows(query: Query) -> bool:
    return query.name == query.node.name


def _streams(pipeline: Pipeline, query: Query) -> list[GraphNode]:
    """Return the statements whose topics a query reads as streams, from where they begin."""
    node = query.node
    if not _is_of_rows(query):
        return [] if node.connector else [node]
    # A table of tables only reads changes to compute its rows again; an upserted sink of a table reads it as a stream.
    names = node.streams or (() if node.recomputed else node.tables)
    return [pipeline.node(name) for name in names]
