"""Loads a shard from its partition's log, in slices that let the event loop serve other work."""

import asyncio
from typing import TYPE_CHECKING

from klamm.coordinator.core.shard import CoordinatorRecord, Shard
from klamm.model.errors import RemoteProtocolError
from klamm.records.batch import BatchView, iter_batches
from klamm.records.control import end_txn_marker
from klamm.telemetry.log import get_logger

if TYPE_CHECKING:
    from klamm.coordinator.runtime.coordinator_runtime import PartitionLog

log = get_logger("coordinator")

SLICE_RECORDS = 200
"""Records replayed before other work of the loop runs: some milliseconds, more on a busy machine."""


async def load_shard(shard: Shard, partition_log: "PartitionLog", name: str) -> int:
    """Replay everything the log holds; returns the number of records."""
    offset = 0
    count = 0
    next_pause = SLICE_RECORDS
    while chunk := partition_log.read(offset):
        for batch in iter_batches(chunk, allow_incomplete_tail=True):
            # Reads return whole batches, so the first one may begin before `offset`.
            if batch.next_offset <= offset:
                continue
            count += replay_batch(shard, batch, name)
            offset = batch.next_offset
            if count >= next_pause:
                next_pause = count + SLICE_RECORDS
                await asyncio.sleep(0)
    return count


def replay_batch(shard: Shard, batch: BatchView, name: str) -> int:
    """Replay one batch; a record that cannot be decoded is skipped and logged."""
    # A damaged batch must not become state: the load fails and is tried again.
    batch.check_crc()
    # An idempotent but not transactional batch counts at once.
    producer_id = batch.producer_id if batch.is_transactional else -1
    if batch.is_control:
        marker = end_txn_marker(batch)
        if marker is not None:
            shard.replay_marker(batch.producer_id, batch.producer_epoch, marker.committed)
        return 1
    replay, producer_epoch = shard.replay, batch.producer_epoch
    rows = batch.decode_rows()
    for offset, _, key, value, _ in rows:
        if key is None:
            log.warning("record skipped: no key", partition=name, offset=offset)
            continue
        try:
            replay(CoordinatorRecord(key, value), offset, producer_id, producer_epoch)
        except RemoteProtocolError as error:
            log.warning("record skipped", partition=name, offset=offset, reason=error)
    return len(rows)
