"""From fetched bytes to the batches a reader may see: whole, without markers, without what was aborted. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from klamm.model.buffer import Buffer
from klamm.model.errors import CorruptBatch
from klamm.records.batch import BatchView, iter_batches
from klamm.records.control import end_txn_marker

Aborted = Iterable[tuple[int, int]]
"""Producer id and first offset of transactions that were aborted."""


def readable(data: Buffer, fetch_offset: int, aborted: Aborted | None) -> tuple[list[BatchView], int]:
    """The data batches from `fetch_offset` on, and the offset of the next fetch.

    `aborted` are the aborted transactions of the fetch response, None for read_uncommitted. Bytes that are no batches
    raise CorruptBatch; a batch cut off at the end is left for the next fetch.
    """
    batches: list[BatchView] = []
    next_offset = fetch_offset
    open_aborts: set[int] = set()
    pending_aborts = sorted(aborted or (), key=itemgetter(1))
    aborts_seen = 0
    for batch in iter_batches(data, allow_incomplete_tail=True):
        if batch.last_offset_delta < 0 or batch.base_offset < 0:
            raise CorruptBatch(f"a batch claims offsets {batch.base_offset} + {batch.last_offset_delta}")
        if batch.next_offset <= fetch_offset:
            continue  # a broker may start at an earlier batch: its index is sparse
        # Gaps are normal in a compacted log; one of this size is damage, and following it would lose the partition.
        if batch.base_offset > next_offset + (1 << 62):
            raise CorruptBatch(f"offset {batch.base_offset} cannot follow {next_offset}")
        next_offset = max(next_offset, batch.next_offset)
        # By offset: a producer's batches count as aborted only from the first offset of the aborted transaction on,
        # since the same producer id may have committed earlier ones in this response.
        while aborts_seen < len(pending_aborts) and pending_aborts[aborts_seen][1] <= batch.last_offset:
            open_aborts.add(pending_aborts[aborts_seen][0])
            aborts_seen += 1
        if batch.is_control:
            # Never returned to the user. An abort marker ends the aborted transaction of its producer.
            if open_aborts and _is_abort(batch):
                open_aborts.discard(batch.producer_id)
        elif not (aborted is not None and batch.is_transactional and batch.producer_id in open_aborts):
            batches.append(batch)
    return batches, next_offset


def _is_abort(batch: BatchView) -> bool:
    marker = end_txn_marker(batch)
    return marker is not None and not marker.committed
