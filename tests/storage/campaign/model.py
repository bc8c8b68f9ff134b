"""What every partition holds after every step of a workload, kept apart from the code under test."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchView
from klamm.records.control import EndTxnMarker, end_txn_marker


class Batch(NamedTuple):
    """A batch as it was handed over, with the facts the checks ask for."""

    base: int
    last: int
    data: bytes
    epoch: int
    timestamp: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int
    transactional: bool
    marker: EndTxnMarker | None

    @classmethod
    def of(cls, data: bytes | memoryview) -> "Batch":
        view = BatchView(bytes(data))
        return cls(
            view.base_offset,
            view.last_offset,
            bytes(data),
            view.leader_epoch,
            view.max_timestamp,
            view.producer_id,
            view.producer_epoch,
            view.base_sequence,
            view.last_sequence,
            view.is_transactional,
            end_txn_marker(view),
        )


@dataclass(frozen=True)
class Partition:
    """One partition at one moment. `batches` are all it was given since it began, also those deleted at its start."""

    topic_id: bytes
    begin: int = 0
    batches: tuple[Batch, ...] = ()
    start: int = 0
    """The log start offset."""
    first: int = 0
    """The base offset of the first segment."""
    recovery_point: int = 0
    """Everything below was said to be on the device."""
    saved_start: int = 0
    """The log start of the last checkpoint."""
    saved_mark: int = 0
    """The high watermark of the last checkpoint."""
    branches: tuple[tuple[Batch, ...], ...] = field(default=(), repr=False)
    """What `batches` was before each truncation."""
    compacted: bool = False
    home: str = "data"
    """The log dir the metadata names for it."""

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else self.begin

    def appended(self, *data: bytes | memoryview) -> "Partition":
        return replace(self, batches=(*self.batches, *map(Batch.of, data)))

    def truncated(self, offset: int) -> "Partition":
        kept = tuple(batch for batch in self.batches if batch.last < offset)
        return replace(self, batches=kept, branches=(*self.branches, self.batches))

    def emptied(self, offset: int) -> "Partition":
        return replace(
            self, begin=offset, batches=(), start=offset, first=offset, branches=(*self.branches, self.batches)
        )


State = dict[TopicPartition, Partition]


class Producer(NamedTuple):
    """What a log must know of a producer."""

    epoch: int
    coordinator_epoch: int
    txn_first_offset: int
    batches: tuple[tuple[int, int, int, int, int], ...]


class Replay(NamedTuple):
    """Producers and aborted transactions that follow from batches."""

    producers: dict[int, Producer]
    aborted: list[tuple[int, int, int]]
    """(producer id, first offset, marker offset)"""


def replay(batches: tuple[Batch, ...]) -> Replay:
    """Read batches as a broker must."""
    producers: dict[int, Producer] = {}
    aborted = []
    for batch in batches:
        if batch.producer_id < 0:
            continue
        known = producers.get(batch.producer_id, Producer(-1, -1, -1, ()))
        kept = known.batches if known.epoch == batch.producer_epoch else ()
        if batch.marker is not None:
            if not batch.marker.committed and known.txn_first_offset >= 0:
                aborted.append((batch.producer_id, known.txn_first_offset, batch.base))
            after = Producer(batch.producer_epoch, batch.marker.coordinator_epoch, -1, kept)
        else:
            begun = known.txn_first_offset
            if batch.transactional and begun < 0:
                begun = batch.base
            met = (batch.first_sequence, batch.last_sequence, batch.base, batch.last, batch.timestamp)
            after = Producer(batch.producer_epoch, known.coordinator_epoch, begun, (*kept, met)[-5:])
        producers[batch.producer_id] = after
    return Replay(producers, aborted)
