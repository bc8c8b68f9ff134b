"""A query's side of the ledger: the name under which its batches are numbered, and its checkpoint.

Checkpoints of this machine are read as files, remote ones by Spark's file systems.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.model.errors import ConfigError
from klamm.pipeline.core.batch_ledger import LedgerFault, LedgerFinding, SinkBatch
from klamm.pipeline.core.sink_commits import name_sink
from klamm.pipeline.query_checkpoint import QueryCheckpoint, local_path
from klamm.pipeline.sql.core.graph import DEAD_LETTERS
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.core.statements import SINK, SOURCE, STREAM
from klamm.pipeline.sql.jdbc_positions import HadoopFolder
from klamm.pipeline.sql.object_store_identity import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
    from klamm.pipeline.sql.core.identity import Adoption, QueryIdentity
    from klamm.pipeline.sql.engine import Query
    from klamm.pipeline.sql.topics import TopicConnector


@dataclass(frozen=True, slots=True)
class QueryLedger:
    """Names a query's batches in its sink; `app` is None where Spark's random query id does."""

    query: str
    app: str | None
    location: str | None = None
    """The folder of the checkpoint; None for a write without one."""
    spark: SparkSession | None = None
    in_topic: bool = True
    adoption: Adoption | None = None
    """What this generation continues; None for one that was not adopted."""

    @property
    def sink(self) -> str:
        """The name under which the sink stores batch numbers."""
        return name_sink(str(self.app)) if self.in_topic else str(self.app)

    @property
    def is_local(self) -> bool:
        """Whether the checkpoint is on this machine."""
        return self.location is None or local_path(self.location) is not None

    def checkpoint(self) -> QueryCheckpoint | None:
        """Return the checkpoint; None for one that cannot be reached."""
        if self.is_local:
            return QueryCheckpoint.at(self.location)
        return None if self.spark is None else QueryCheckpoint(HadoopFolder(self.spark, str(self.location)))

    def find_disagreement(self, newest: SinkBatch) -> LedgerFinding | None:
        """Return why the next batch must not run on what the sink has; None when it may."""
        checkpoint = self.checkpoint()
        if checkpoint is None:
            return None
        next_batch = checkpoint.next_batch()
        if newest.batch < 0 and next_batch == 0 and self.adoption is not None and self.adoption.continues:
            # Batch 0 was done by the adoption: the sink has its rows under the name of an older generation.
            return LedgerFinding(LedgerFault.CHECKPOINT_REMOVED, 0, next_batch, newest.batch)
        verdict = checkpoint.judge_batch(self.sink, newest, next_batch)
        return verdict if isinstance(verdict, LedgerFinding) else None


def app_of(identity: QueryIdentity, node: GraphNode, query: str) -> str:
    """Return the name under which the batches of a query are numbered."""
    return f"klamm-pipeline-{identity.id}.{query}.{identity.generation(node.name, query)}"


def ledger_of(
    spark: SparkSession, pipeline: Pipeline, identity: QueryIdentity, folder: str, node: GraphNode, query: str
) -> QueryLedger:
    """Return the checkpoint of a query, and the name under which its batches are numbered; a rebuild has new ones."""
    location = os.path.join(folder, f"{query}.{identity.generation(node.name, query)}")
    if not is_remote(location):
        # The process that commits a batch may run in another folder.
        location = os.path.abspath(location)
    app: str | None = app_of(identity, node, query)
    if not identity.named and _is_appended(pipeline, node, query):
        app = None  # its first batches were numbered under Spark's query id
    adoption = identity.adoption_of(node.name, query)
    return QueryLedger(query, app, location, spark, in_topic=node.kind != SINK, adoption=adoption)


def _is_appended(pipeline: Pipeline, node: GraphNode, query: str) -> bool:
    """Whether a query writes a stream to a topic, by Spark's own streaming writer."""
    if query != node.name:
        return True  # dead letters
    if node.kind == SOURCE:
        return node.connector != "jdbc"
    return node.kind == STREAM and not pipeline.looks_up(node) and not node.recomputed


def check_ledgers(queries: Iterable[Query], topics: TopicConnector) -> None:
    """Raise ConfigError that names every query whose checkpoint did not write what its sink has."""
    refusals = []
    for query in queries:
        newest = topics.newest(query.node, query.ledger)
        finding = None if newest is None else query.ledger.find_disagreement(newest)
        if finding is not None:
            is_letters = query.name != query.node.name
            sink = "its dead-letter topic" if is_letters else describe_sink(query.node)
            refusals.append(f"{query.name}: {finding.describe(sink)}; {repair(query.name)}")
    if refusals:
        raise ConfigError("\n".join(refusals))


def forget_old_places(queries: Iterable[Query], moved: Container[str]) -> None:
    """Let sinks begin in a new place, whose lack of the rows until now was accepted."""
    for query in queries:
        checkpoint = query.ledger.checkpoint() if query.name in moved else None
        if checkpoint is not None:
            checkpoint.forget_written()


def describe_sink(node: GraphNode) -> str:
    """Return the name of the place where a query's rows go."""
    if node.kind == SINK:
        return node.option("path") or node.option("table") or node.name
    return f"topic {node.topic}"


def repair(query: str) -> str:
    """Return the commands that end a disagreement."""
    return (
        f"klamm pipeline run FILE --adopt {query} continues where it ends, "
        f"--rebuild {query} reads its topics from the beginning and writes its rows again"
    )


def node_of(pipeline: Pipeline, query: str) -> GraphNode:
    """Return the statement of a query, which may be one of dead letters; ConfigError when there is none."""
    names = query_names(pipeline)
    if query not in names:
        raise ConfigError(f"there is no query {query}{suggest(query, names)}")
    return pipeline.node(query.removesuffix(DEAD_LETTERS))


def query_names(pipeline: Pipeline) -> list[str]:
    """Return the names of all queries, those of dead letters too."""
    return [*(query.name for query in pipeline.queries), *(f"{name}{DEAD_LETTERS}" for name in pipeline.dead_letters)]
