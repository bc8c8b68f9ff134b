"""From fetched bytes to the batches a reader may see: whole, without markers, without what was aborted. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from klamm.model.errors import CorruptBatch
from klamm.records.batch import BatchView, Buffer, iter_batches
from klamm.records.control import end_txn_marker

Aborted = Iterable[tuple[int, int]]
"""Producer id and first offset of transactions that were aborted."""


def readable(data: Buffer, fetch_offset: int, aborted: Aborted | None) -> tuple[list[BatchView], int]:
    """The data batches from `fetch_offset` on, and the offset to go on from.

    `aborted` are the aborted transactions the broker told with the bytes, None when they do not matter. Bytes that are
    no batches are CorruptBatch; a batch cut off at the end is left for the next fetch.
    """
    batches: list[BatchView] = []
    next_offset = fetch_offset
    open_aborts: set[int] = set()
    coming = sorted(aborted or (), key=itemgetter(1))
    at = 0
    for batch in iter_batches(data, allow_incomplete_tail=True):
        if batch.last_offset_delta < 0 or batch.base_offset < 0:
            raise CorruptBatch(f"a batch claims offsets {batch.base_offset} + {batch.last_offset_delta}")
        if batch.next_offset <= fetch_offset:
            continue  # a broker may begin with the batch before
        if batch.base_offset > next_offset + (1 << 62):
            raise CorruptBatch(f"offset {batch.base_offset} cannot follow {next_offset}")
        next_offset = max(next_offset, batch.next_offset)
        while at < len(coming) and coming[at][1] <= batch.last_offset:
            open_aborts.add(coming[at][0])
            at += 1
        if batch.is_control:
            if open_aborts and _is_abort(batch):
                open_aborts.discard(batch.producer_id)
        elif not (aborted is not None and batch.is_transactional and batch.producer_id in open_aborts):
            batches.append(batch)
    return batches, next_offset


def _is_abort(batch: BatchView) -> bool:
    marker = end_txn_marker(batch)
    return marker is not None and not marker.committed
