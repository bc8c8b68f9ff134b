"""What every replica of a compacted partition was ever given: by that it is judged what compaction has left of it.

Replicas of a compacted partition need not be equal. A replica that is down while a tombstone is written, and starts
after delete.retention.ms, never gets it and keeps the deleted record: the price of removing tombstones, here as in
Kafka. So a replica is not compared with another one, but with the records it has held itself; and what it has
never held is compared with the time it had to get it.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from klamm.records.control import end_txn_marker
from simulation.cluster import Machine
from simulation.log_content import batches_of
from simulation.loop import SimLoop

Part = tuple[bytes, int]


class WrittenRecord(NamedTuple):
    """One record, or one marker, as its leader wrote it."""

    epoch: int
    at: float
    """When the first replica had it."""
    producer_id: int
    transactional: bool
    key: bytes | None
    tombstone: bool = False
    committed: bool | None = None
    """Of a marker: what became of its transaction."""


class ReplicaHistory:
    """What one machine's replica of a partition has held."""

    def __init__(self) -> None:
        self.offsets: set[int] = set()
        """Of records that it was given and has not cut off; compaction may have taken them away since."""
        self._ends: list[int] = []
        self._times: list[float] = []

    def cut(self, end: int) -> None:
        """The log ends here now."""
        self.offsets = {offset for offset in self.offsets if offset < end}
        keep = bisect_right(self._ends, end)
        del self._ends[keep:], self._times[keep:]

    def reach(self, end: int, at: float) -> None:
        """The log has grown."""
        self._ends.append(end)
        self._times.append(at)

    def time_of(self, offset: int) -> float:
        """When its log went beyond an offset."""
        index = bisect_right(self._ends, offset)
        return self._times[index] if index < len(self._times) else 0.0


class History:
    """All that was written into compacted partitions, and who has held what of it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._written: dict[Part, dict[int, WrittenRecord]] = {}
        self._holders: dict[tuple[int, str, Part], ReplicaHistory] = {}

    def update(self, machine: Machine, replica: Any, before: int | None, end: int) -> None:
        """A replica's log ends at `end`, and ended at `before` at the last update in this process."""
        log = replica.log
        if not log.config.compacted or log.failed or machine.damaged is not None or before == end:
            return
        holder = self._holder(machine, (replica.topic_id, replica.index))
        start = before if before is not None else log.log_start_offset
        if start > end or before is None:
            holder.cut(end)
        if start < end:
            for offset, given in self._read(log, start):
                holder.offsets.add(offset)
                self._write((replica.topic_id, replica.index), offset, given)
            holder.reach(end, self._loop.time())

    def forget(self, node: int) -> None:
        """A disk has lost what it had synced: what is on it now is all it was ever given."""
        for key in [key for key in self._holders if key[0] == node]:
            del self._holders[key]

    def held_by(self, machine: Machine, part: Part) -> ReplicaHistory:
        """What a machine has held of a partition."""
        return self._holder(machine, part)

    def counting(self, part: Part, end: int) -> dict[int, WrittenRecord]:
        """The records before `end` that count, by offset: without a transaction, or in a committed one."""
        given_by_offset: dict[int, WrittenRecord] = {}
        open_ones: dict[int, list[int]] = {}
        written = self._written.get(part, {})
        for offset in sorted(written):
            given = written[offset]
            if offset >= end:
                break
            if given.committed is not None:
                ended = open_ones.pop(given.producer_id, [])
                given_by_offset.update((offset, written[offset]) for offset in ended if given.committed)
            elif given.transactional:
                open_ones.setdefault(given.producer_id, []).append(offset)
            elif given.key is not None:
                given_by_offset[offset] = given
        return given_by_offset

    def _holder(self, machine: Machine, part: Part) -> ReplicaHistory:
        return self._holders.setdefault((machine.id, machine.name, part), ReplicaHistory())

    def _write(self, part: Part, offset: int, given: WrittenRecord) -> None:
        """What a later leader wrote at an offset is what counts: the one before it had lost."""
        known = self._written.setdefault(part, {})
        if offset not in known or known[offset].epoch < given.epoch:
            known[offset] = given

    def _read(self, log: Any, start: int) -> Iterator[tuple[int, WrittenRecord]]:
        now = self._loop.time()
        for view in batches_of(log, start):
            of_batch = (view.leader_epoch, now, view.producer_id, view.is_transactional)
            if view.is_control:
                marker = end_txn_marker(view) if view.record_count else None
                if marker is not None:
                    yield view.base_offset, WrittenRecord(*of_batch, None, committed=marker.committed)
                continue
            for record in view.decode():
                if record.offset >= start:
                    yield record.offset, WrittenRecord(*of_batch, record.key, record.value is None)
