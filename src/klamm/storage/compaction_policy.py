"""Decisions of compaction, all pure: which log is dirty enough, which segments are merged, which markers may go.

A compacted log has a clean head, where every key is there once, and a dirty tail. A pass of the cleaner maps the newest
offset of every key in the dirty part and rewrites everything up to its end without the older records. Not touched are
the active segment, what is beyond the last stable offset, and records younger than min.compaction.lag.ms.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from klamm.storage.config import MAX_LONG, LogConfig
from klamm.storage.txn_index import AbortedTxn

INT32_MAX = 2**31 - 1


class ClosedSegment(NamedTuple):
    """What planning needs to know of one closed segment."""

    base_offset: int
    end_offset: int
    size: int
    index_size: int
    largest_timestamp: int
    first_timestamp: int
    """Of its first batch; needed only under max.compaction.lag.ms, else anything."""


class CompactionPlan(NamedTuple):
    """What a pass of the cleaner would do to a log: rewrite [0, end_offset), with keys of [first_dirty_offset, ...)."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether a record has waited longer than max.compaction.lag.ms."""

    @property
    def dirty_ratio(self) -> float:
        """The dirty share of what would be rewritten."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def worthwhile(self, config: LogConfig) -> bool:
        """Whether the log is dirty enough, or has been dirty too long."""
        return (self.overdue and self.dirty_bytes > 0) or self.dirty_ratio > config.min_cleanable_dirty_ratio


def plan_compaction(
    segments: Sequence[ClosedSegment],
    config: LogConfig,
    *,
    cleaned_offset: int | None,
    log_start_offset: int,
    last_stable_offset: int,
    log_end_offset: int,
    now_ms: int,
) -> CompactionPlan:
    """Plan the pass a log would get now. `cleaned_offset` is where the last one ended, if that is known."""
    # A checkpoint outside of the log is older than a truncation or a deletion: everything is dirty again.
    dirty_from = log_start_offset
    if cleaned_offset is not None and log_start_offset <= cleaned_offset <= log_end_offset:
        dirty_from = cleaned_offset
    end = segments[-1].end_offset if segments else dirty_from
    stable = max(last_stable_offset, dirty_from)
    # By whole segments, as in Kafka: the first that may not be cleaned ends the range.
    for segment in segments:
        young = (
            config.min_compaction_lag_ms > 0
            and segment.end_offset > dirty_from
            and segment.largest_timestamp > now_ms - config.min_compaction_lag_ms
        )
        if young or segment.end_offset > stable:
            end = segment.base_offset
            break
    dirty = [s for s in segments if s.end_offset > dirty_from and s.base_offset < end]
    limit = now_ms - config.max_compaction_lag_ms
    # The first timestamp stands for all of a segment: reading more of it would cost as much as cleaning.
    return CompactionPlan(
        dirty_from,
        end,
        sum(s.size for s in segments if s.base_offset < min(dirty_from, end)),
        sum(s.size for s in dirty),
        config.max_compaction_lag_ms < MAX_LONG and any(0 < s.first_timestamp < limit for s in dirty),
    )


def group_segments(segments: Sequence[ClosedSegment], config: LogConfig) -> list[list[int]]:
    """Return indexes of segments to merge: neighbours whose bytes and indexes fit together in one segment."""
    groups: list[list[int]] = []
    size = index_size = 0
    # By the sizes before cleaning, which only shrink; offsets in an index are relative to the base and 32 bits wide.
    for i, segment in enumerate(segments):
        fits = (
            groups
            and size + segment.size <= min(config.segment_bytes, INT32_MAX)
            and index_size + segment.index_size <= config.segment_index_bytes
            and segment.end_offset - 1 - segments[groups[-1][0]].base_offset <= INT32_MAX
        )
        if fits:
            groups[-1].append(i)
        else:
            groups.append([i])
            size = index_size = 0
        size += segment.size
        index_size += segment.index_size
    return groups


class CleanedTransactions:
    """Follows transactions through the batches of a pass, in order: aborted data goes, and a marker may go once a
    pass has met none of its transaction's data.
    """

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        # Of several segments, which may name the same transaction; the next one to begin is last.
        self._ahead = sorted(set(aborted), key=attrgetter("first_offset"), reverse=True)
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        """Producer id -> its aborted transaction here, and whether data of it was met."""
        self._committed: set[int] = set()
        self.retained: list[AbortedTxn] = []
        """Aborted transactions whose data is still there; the caller writes them to the cleaned transaction index."""

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a transactional data batch belongs to an aborted transaction."""
        self._advance(last_offset)
        aborted = self._aborted.get(producer_id)
        if aborted is None:
            self._committed.add(producer_id)
            return False
        self._aborted[producer_id] = (aborted[0], True)
        return True

    def marker_is_idle(self, producer_id: int, last_offset: int, committed: bool) -> bool:
        """Return whether a marker ends a transaction of which no data is left."""
        self._advance(last_offset)
        if committed:
            idle = producer_id not in self._committed
            self._committed.discard(producer_id)
            return idle
        txn, met = self._aborted.pop(producer_id, (None, False))
        # Kept while its data may be read: without the entry a read_committed reader would return aborted records.
        if txn is not None and met:
            self.retained.append(txn)
        return not met

    def _advance(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            txn = self._ahead.pop()
            self._aborted.setdefault(txn.producer_id, (txn, False))
