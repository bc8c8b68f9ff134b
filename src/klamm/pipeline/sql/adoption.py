"""Adopts what a sink has: a query whose checkpoint was set back or removed continues exactly where its sink ends.

The query gets a new generation: a new checkpoint, and a new name for its batches. In that checkpoint everything up to
the sink's position is done. A table with state gets a copy of the checkpoint that was set back: it writes some rows
again, which change nothing by key. The generation counts only when the identity is stored; a run that ends before
that leaves a folder, which the next adoption replaces. The identity has the position, too: until a generation has
written a batch, its sink has none under its name.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.checkpoint_folder import CheckpointFolder, LocalFolder, copy_folder
from klamm.pipeline.core.batch_ledger import BatchPosition, LedgerFault, LedgerFinding, LedgerStep, SinkBatch
from klamm.pipeline.sql.core.identity import INCOMPATIBLE, REBUILD, Adoption, QueryIdentity, compare, describe
from klamm.pipeline.sql.core.statements import SINK, TABLE
from klamm.pipeline.sql.jdbc_positions import HadoopFolder
from klamm.pipeline.sql.query_ledger import QueryLedger, describe_sink, ledger_of, node_of, query_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
    from klamm.pipeline.sql.snapshots import Snapshot
    from klamm.pipeline.sql.topics import TopicConnector

_COMMITTED: Final = 'v1\n{"nextBatchWatermarkMs":0}'


def adopt_queries(
    spark: SparkSession,
    pipeline: Pipeline,
    topics: TopicConnector,
    identity: QueryIdentity,
    folder: str,
    names: Iterable[str],
) -> QueryIdentity:
    """Prepare new checkpoints for queries, and return the identity with their generations; ConfigError if impossible.

    A query whose checkpoint and sink agree is left as it is.
    """
    adopted = identity
    for name in names:
        node = node_of(pipeline, name)
        old = ledger_of(spark, pipeline, identity, folder, node, name)
        if old.app is None:
            raise _refuse(name, "its batches are numbered under an id of its lost checkpoint")
        # A batch that was decided belongs to the sink, also if its driver died before all of it was visible.
        topics.complete(node, old)
        newest = topics.newest(node, old, with_position=True)
        finding = None if newest is None else old.find_disagreement(newest)
        generation = identity.generation(node.name, name)
        if newest is not None and finding is None:
            _check_unwritten(pipeline, old, newest, generation)
        if newest is None or finding is None:
            continue
        is_unwritten = newest.batch < 0 and finding.fault is LedgerFault.CHECKPOINT_REMOVED
        if is_unwritten and old.adoption is not None and old.adoption.position:
            position = BatchPosition(old.adoption.position)
            newest = SinkBatch(0, position.digest, position)
            if not old.in_topic:
                _check_lake(spark, pipeline, topics, identity, folder, name)
        new = ledger_of(spark, pipeline, identity.with_generation(name, generation + 1), folder, node, name)
        adoption = _prepare(pipeline, node, old, new, newest, finding.fault)
        adopted = adopted.with_adoption(name, generation + 1, adoption)
    return adopted


def _check_unwritten(pipeline: Pipeline, old: QueryLedger, newest: SinkBatch, generation: int) -> None:
    """Raise ConfigError for a generation without any batch that is not known to have been adopted.

    It may be a rebuild, or an adoption by an older version, whose position is lost with the checkpoint.
    """
    checkpoint = old.checkpoint()
    has_batches = newest.batch >= 0 or checkpoint is None or checkpoint.next_batch() > 0
    if generation == 0 or has_batches or old.adoption is not None:
        return
    if not describe(pipeline).get(old.query, {}).get("recomputed"):
        raise _refuse(old.query, f"generation {generation} has written no batch, so that its end is not known")


def _check_lake(
    spark: SparkSession, pipeline: Pipeline, topics: TopicConnector, identity: QueryIdentity, folder: str, name: str
) -> None:
    """Raise ConfigError unless a table has a batch of an older generation: it may have been removed since then."""
    node = node_of(pipeline, name)
    for generation in range(identity.generation(node.name, name)):
        older = ledger_of(spark, pipeline, identity.with_generation(name, generation), folder, node, name)
        newest = topics.newest(node, older)
        if newest is not None and newest.batch >= 0:
            return
    raise _refuse(name, f"{describe_sink(node)} has no batch of it", "writes its rows")


def restore_queries(
    spark: SparkSession,
    pipeline: Pipeline,
    topics: TopicConnector,
    identity: QueryIdentity,
    folder: str,
    snapshot: Snapshot,
    report: Callable[[str], None],
) -> QueryIdentity:
    """Prepare new checkpoints from a restore point, and return the identity with their generations.

    A query whose sink has got rows since then continues as an adopted one. ConfigError when that is impossible, when a
    query was rebuilt since then, or when its statement needs other state.
    """
    verdicts = {change.name: change for change in compare(snapshot.identity, pipeline)}
    restored = identity
    for name in query_names(pipeline):
        node = node_of(pipeline, name)
        location = snapshot.checkpoint(name)
        if location is None:
            report(f"{name}: not in snapshot {snapshot.label}: continues from its own checkpoint")
            continue
        generation = identity.generation(node.name, name)
        change = verdicts.get(name)
        if change is not None and change.verdict in (REBUILD, INCOMPATIBLE):
            raise _refuse_restore(name, snapshot, change.reason)
        if snapshot.identity.id != identity.id or snapshot.identity.generation(node.name, name) != generation:
            raise _refuse_restore(name, snapshot, "it was rebuilt or adopted since then")
        current = ledger_of(spark, pipeline, identity, folder, node, name)
        if current.app is None:
            raise _refuse_restore(name, snapshot, "its batches are numbered under an id of its own checkpoint")
        topics.complete(node, current)
        newest = topics.newest(node, current, with_position=True) or SinkBatch()
        new = ledger_of(spark, pipeline, identity.with_generation(name, generation + 1), folder, node, name)
        old = replace(current, location=location)
        adoption, place = _restore(pipeline, node, old, new, newest, snapshot)
        restored = restored.with_adoption(name, generation + 1, adoption)
        report(f"{name}: {place}")
    return restored


def _restore(
    pipeline: Pipeline, node: GraphNode, old: QueryLedger, new: QueryLedger, newest: SinkBatch, snapshot: Snapshot
) -> tuple[Adoption, str]:
    """Make the checkpoint of a new generation from a restore point; return what and where the query continues."""
    checkpoint = old.checkpoint()
    assert checkpoint is not None
    verdict = checkpoint.judge_batch(old.sink, newest, checkpoint.next_batch())
    if verdict is LedgerStep.CONTINUE:
        if not new.is_local:
            raise _refuse_restore(old.query, snapshot, "checkpoints on a remote file system are not copied")
        shutil.rmtree(str(new.location), ignore_errors=True)
        copy_folder(str(old.location), str(new.location))
        place = f"continues from snapshot {snapshot.label}, after batch {snapshot.batches[old.query]}"
        return _adoption_of_copy(pipeline, old), place
    if isinstance(verdict, LedgerFinding) and verdict.fault is not LedgerFault.CHECKPOINT_SET_BACK:
        raise _refuse_restore(old.query, snapshot, verdict.describe(describe_sink(node)))
    # A batch that was planned and not committed is in the sink: as if the checkpoint was set back before it.
    adoption = _prepare(pipeline, node, old, new, newest, LedgerFault.CHECKPOINT_SET_BACK)
    place = f"continues where {describe_sink(node)} ends, after batch {newest.batch}"
    if describe(pipeline).get(old.query, {}).get("stateful"):
        place = f"continues from the state of snapshot {snapshot.label}; its rows up to batch {newest.batch} come again"
    return adoption, place


def _adoption_of_copy(pipeline: Pipeline, old: QueryLedger) -> Adoption:
    """Return what a copy of a whole checkpoint continues."""
    checkpoint = old.checkpoint()
    description: dict[str, Any] = describe(pipeline).get(old.query, {})
    if checkpoint is None or checkpoint.next_batch() == 0 or description.get("recomputed"):
        return Adoption()
    # Without its state a position is of no use.
    position = None if description.get("stateful") else checkpoint.position(checkpoint.next_batch() - 1)
    return Adoption(continues=True, position="" if position is None else position.text)


def _refuse_restore(query: str, snapshot: Snapshot, reason: str) -> ConfigError:
    return ConfigError(
        f"{query} cannot start from snapshot {snapshot.label}: {reason}; without --from it continues from its own "
        f"checkpoint, --rebuild {query} reads from the beginning"
    )


def _prepare(
    pipeline: Pipeline, node: GraphNode, old: QueryLedger, new: QueryLedger, newest: SinkBatch, fault: LedgerFault
) -> Adoption:
    """Make the checkpoint of a new generation; return what it continues."""
    location = str(new.location)
    if new.is_local:
        # Left by an adoption that did not come to its end.
        shutil.rmtree(location, ignore_errors=True)
    description: dict[str, Any] = describe(pipeline).get(old.query, {})
    if description.get("recomputed"):
        return Adoption()  # its first batch writes the difference to what the topic has
    if description.get("stateful"):
        if description["kind"] == SINK:
            raise _refuse(old.query, "its state is lost with the checkpoint", "replaces all of its rows")
        if description["kind"] != TABLE:
            repeats = (
                f"writes all of its rows again to topic {node.topic}, beside those that are there; with another topic "
                "in the file they are written once, to that one"
            )
            raise _refuse(old.query, "it is a stream with state, which is lost with the checkpoint", repeats)
        if fault is not LedgerFault.CHECKPOINT_SET_BACK:
            raise _refuse(old.query, "its state is lost with the checkpoint")
        if not new.is_local:
            raise _refuse(old.query, "its state is on a remote file system and is not copied")
        copy_folder(str(old.location), location)
        return _adoption_of_copy(pipeline, old)
    if newest.batch < 0:
        if old.in_topic or fault is LedgerFault.CHECKPOINT_REMOVED:
            raise _refuse(old.query, f"{describe_sink(node)} has no record of it")
        return Adoption()  # an empty table is loaded from the beginning
    checkpoint = old.checkpoint()
    planned = None if checkpoint is None else checkpoint.position(newest.batch)
    if newest.position is not None:
        position = newest.position
    elif planned is not None and planned.digest == newest.digest:
        position = planned
    else:
        raise _refuse(old.query, "an older version wrote its newest batch, without the source position")
    target: CheckpointFolder
    if new.is_local:
        target = LocalFolder(location)
    else:
        assert new.spark is not None
        target = HadoopFolder(new.spark, location)
    _write_checkpoint(target, position, old.query)
    return Adoption(continues=True, position=position.text)


def _write_checkpoint(folder: CheckpointFolder, position: BatchPosition, query: str) -> None:
    """Write a checkpoint in which batch 0 is done and ended at a position."""
    ends = position.ends
    if len(ends) == 1 and isinstance(ends[0], dict) and "cursor" in ends[0]:
        cursor = {"version": 1, "kind": ends[0]["cursor"], "start": None, "end": ends[0]["end"], "rows": 0}
        folder.write("offsets", "0", json.dumps(cursor))
        folder.write("commits", "0", "{}")
        return
    # Positions of files and of the rate source mean nothing without the rest of their checkpoint.
    if any(end is not None and not (isinstance(end, dict) and "logOffset" not in end) for end in ends):
        raise _refuse(query, "its source is not a topic, and has its position in the checkpoint only")
    lines = ["-" if end is None else json.dumps(end) for end in ends]
    # Spark refuses a log of batches without the query's id.
    folder.write("", "metadata", json.dumps({"id": str(uuid.uuid4())}))
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    folder.write("offsets", "0", "\n".join(["v1", metadata, *lines]))
    # Last: a checkpoint without it would run batch 0, and read nothing of it.
    folder.write("commits", "0", _COMMITTED)


def _refuse(query: str, reason: str, effect: str = "writes its rows again") -> ConfigError:
    return ConfigError(f"{query} cannot be adopted: {reason}; --rebuild {query} reads from the beginning and {effect}")
