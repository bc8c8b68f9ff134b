"""Producer state of a log: per producer the last five batches, the epoch, the open transaction.

Rules for a batch from a client (Kafka 4.3):

    producer unknown              accepted with any sequence: its records may have been deleted or expired;
                                  while gaps are refused, only with 0, else NOT_ENOUGH_REPLICAS
    epoch older than known        INVALID_PRODUCER_EPOCH
    epoch newer                   the sequence must begin with 0, else OUT_OF_ORDER_SEQUENCE_NUMBER
    same sequences as one of the
      last five batches           a duplicate: answered with the offset of the original
    sequence follows the last     accepted; after 2^31-1 comes 0
    sequence is further ahead     OUT_OF_ORDER_SEQUENCE_NUMBER; while gaps are refused NOT_ENOUGH_REPLICAS
    anything else                 OUT_OF_ORDER_SEQUENCE_NUMBER
    not transactional while a
      transaction is open         INVALID_TXN_STATE

Gaps are refused in the first minute of a leader that took over from another. Batches that an idempotent producer sent
to the old leader without an answer may be missing here, and are sent again when the request times out; meanwhile the
producer may send later batches. librdkafka takes an answer to a later batch for an answer to all before it, so taking
it would lose the first batches, and OUT_OF_ORDER_SEQUENCE_NUMBER would make the producer bump its epoch and send again
what other partitions have stored already. Kafka accepts it from an unknown producer, and refuses it from others.

State changes when a batch is staged, before it is written, so that the next batch of the same producer can be checked;
an undo list restores it when the write fails.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import BatchView
from klamm.records.control import EndTxnMarker, end_txn_marker
from klamm.storage.txn_index import AbortedTxn

GAPS_REFUSED_MS = 60_000
"""The default request timeout of clients, after which they send to the new leader what the old one did not answer."""
MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 2**15 - 1
BATCHES_REMEMBERED = 5
"""As in Kafka, where an idempotent producer has at most five requests in flight per connection."""
NO_SEQUENCE = -1


class Origin(enum.Enum):
    """Where a batch comes from, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """Our own coordinators: control records allowed, no sequences."""
    REPLICATION = "replication"
    """A leader that checked already, or the log itself at recovery."""


class BatchMeta(NamedTuple):
    """A remembered batch of a producer."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """The state of one producer. `next_sequence` follows the last batch; `txn_first_offset` is -1 when no
    transaction is open.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "next_sequence",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = -1
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = -1
        self.next_sequence = 0
        self.batches: tuple[tuple[int, int, int, int, int], ...] = ()

    @property
    def last_sequence(self) -> int:
        """The last sequence number written, -1 when none is remembered."""
        return self.batches[-1][1] if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of the last data record remembered, -1 when none is."""
        return self.batches[-1][3] if self.batches else -1

    def state(self) -> "UndoState":
        """Everything that may change, for an undo list."""
        return (
            self.batches,
            self.next_sequence,
            self.last_timestamp,
            self.epoch,
            self.coordinator_epoch,
            self.txn_first_offset,
        )

    def restore(self, state: "UndoState") -> None:
        """Go back to an earlier state."""
        (
            self.batches,
            self.next_sequence,
            self.last_timestamp,
            self.epoch,
            self.coordinator_epoch,
            self.txn_first_offset,
        ) = state


UndoState = tuple[tuple[tuple[int, int, int, int, int], ...], int, int, int, int, int]
Undo = list[tuple[ProducerEntry, UndoState | None]]
"""What to restore, in order; None means the entry was new."""


def add_sequence(sequence: int, increment: int) -> int:
    """Sequence arithmetic: after 2^31-1 comes 0."""
    total = sequence + increment
    return total if total <= MAX_SEQUENCE else total - MAX_SEQUENCE - 1


class ProducerStates:
    """All producers of one log, and the transactions that hold back its last stable offset."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.entries: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}
        """First offset -> producer id of open transactions, oldest first."""
        self.gaps_refused_until_ms = 0
        """Until then a batch that leaves a gap in its producer's sequences gets NOT_ENOUGH_REPLICAS."""
        self._unreplicated: list[tuple[int, int]] = []
        """(first, marker offset) of ended transactions whose markers the high watermark has not passed."""

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of an open or not yet replicated transaction; None when there is none."""
        # Transactions begin in offset order and the dict keeps it, so the first is the oldest.
        undecided = next(iter(self._ongoing), None)
        if not self._unreplicated:
            return undecided
        pending = min(self._unreplicated)[0]
        return pending if undecided is None else min(pending, undecided)

    @property
    def is_stable(self) -> bool:
        """Whether no transaction holds back the last stable offset."""
        return not self._ongoing and not self._unreplicated

    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id of every open transaction."""
        return dict(self._ongoing)

    @property
    def open_transaction_count(self) -> int:
        """How many transactions are open."""
        return len(self._ongoing)

    def unreplicated_transactions(self) -> list[tuple[int, int]]:
        """Return (first, marker offset) of ended transactions whose markers the high watermark has not passed."""
        return list(self._unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Drop ended transactions whose markers are now replicated."""
        if self._unreplicated:
            self._unreplicated = [txn for txn in self._unreplicated if txn[1] >= high_watermark]

    def find_duplicate(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> BatchMeta | None:
        """The remembered batch with exactly these sequences, if there is one."""
        entry = self.entries.get(producer_id)
        # Sequences begin at 0 with every epoch: the same numbers of another epoch are other records.
        if entry is None or entry.epoch != epoch:
            return None
        for batch in entry.batches:
            if batch[0] == first_sequence and batch[1] == last_sequence:
                return BatchMeta(*batch)
        return None

    def check_no_gap(self, batch: BatchView) -> None:
        """Refuse a batch that leaves a gap in its producer's sequences, with an error that makes the client retry."""
        entry, sequence = self.entries.get(batch.producer_id), batch.base_sequence
        if entry is None:
            expected = 0
        elif entry.epoch == batch.producer_epoch:
            expected = entry.next_sequence
        else:
            return
        # Sequences wrap around: less than half a round ahead means later.
        if 0 < (sequence - expected) % (MAX_SEQUENCE + 1) <= MAX_SEQUENCE // 2:
            raise KlammError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"sequence {sequence} of producer {batch.producer_id} came before {expected} to {self.name}, "
                "which has a new leader: the missing batches may still be retried",
            )

    def append(
        self, batch: BatchView, origin: Origin, undo: Undo | None = None, *, transaction_version: int = 0
    ) -> AbortedTxn | None:
        """Check a batch (with its offsets set) against the rules and remember it; KlammError changes nothing.

        Returns the transaction it aborted, if it did.
        """
        if batch.producer_id < 0:
            return None
        if not batch.is_control:
            self._append_data(batch, origin, undo)
            return None
        marker = end_txn_marker(batch)
        if marker is None:
            return None
        return self._append_marker(batch, marker, origin, undo, transaction_version)

    def _append_data(self, batch: BatchView, origin: Origin, undo: Undo | None) -> None:
        entry = self.entries.get(batch.producer_id)
        if entry is not None and origin is not Origin.REPLICATION:
            self._check_data(entry, batch, origin)
        entry = self._touch(batch.producer_id, undo)
        # A new epoch starts its sequences at 0: batches of the old one can no longer be duplicates.
        kept = entry.batches[1 - BATCHES_REMEMBERED :] if entry.epoch == batch.producer_epoch else ()
        last_sequence = batch.last_sequence
        entry.epoch = batch.producer_epoch
        entry.batches = (
            *kept,
            (batch.base_sequence, last_sequence, batch.base_offset, batch.last_offset, batch.max_timestamp),
        )
        entry.next_sequence = add_sequence(last_sequence, 1)
        entry.last_timestamp = batch.max_timestamp
        # Only the first batch opens the transaction; the last stable offset stays at its offset until the marker.
        if batch.is_transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = batch.base_offset
            self._ongoing[batch.base_offset] = batch.producer_id

    def replay(
        self,
        producer_id: int,
        epoch: int,
        batches: Sequence[tuple[int, int, int, int, int]],
        txn_first_offset: int,
        *,
        changed: bool,
    ) -> None:
        """Remember many data batches at once, unchecked: the last few of one epoch, and whether others came before.

        `txn_first_offset` is where a transaction began among them, -1 when none did.
        """
        entry = self._touch(producer_id, None)
        kept = entry.batches if entry.epoch == epoch and not changed else ()
        entry.epoch = epoch
        entry.batches = (*kept, *batches)[-BATCHES_REMEMBERED:]
        entry.next_sequence = add_sequence(batches[-1][1], 1)
        entry.last_timestamp = batches[-1][4]
        if txn_first_offset >= 0 and entry.txn_first_offset < 0:
            entry.txn_first_offset = txn_first_offset
            self._ongoing[txn_first_offset] = producer_id

    def _append_marker(
        self, batch: BatchView, marker: EndTxnMarker, origin: Origin, undo: Undo | None, transaction_version: int
    ) -> AbortedTxn | None:
        entry = self.entries.get(batch.producer_id)
        if entry is not None and origin is not Origin.REPLICATION:
            self._check_marker(entry, batch.producer_epoch, marker.coordinator_epoch, transaction_version)
        entry = self._touch(batch.producer_id, undo)
        # KIP-890: a marker may carry the bumped epoch, which fences batches of the ended transaction that come late.
        if entry.epoch != batch.producer_epoch:
            entry.batches = ()
            entry.next_sequence = 0
            entry.epoch = batch.producer_epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = batch.max_timestamp
        first = entry.txn_first_offset
        entry.txn_first_offset = -1
        # A repeated marker, or one for a transaction that wrote nothing here.
        if first < 0:
            return None
        self._ongoing.pop(first, None)
        # The last stable offset must not pass a marker that a new leader may not have.
        self._unreplicated.append((first, batch.base_offset))
        if marker.committed:
            return None
        # Insertion order is offset order, so the first open transaction is the oldest.
        stable = next(iter(self._ongoing), batch.base_offset + 1)
        return AbortedTxn(batch.producer_id, first, batch.base_offset, stable)

    def _touch(self, producer_id: int, undo: Undo | None) -> ProducerEntry:
        """Return the entry that is about to change, created if need be, and add its state to the undo list."""
        entry = self.entries.get(producer_id)
        state = None
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        else:
            state = entry.state()
        if undo is not None:
            undo.append((entry, state))
        return entry

    def rollback(self, undo: Undo, log_end_offset: int) -> None:
        """Undo all changes of an undo list, newest first."""
        for entry, state in reversed(undo):
            if state is None:
                # The entry was created by the batch that is undone.
                del self.entries[entry.producer_id]
            else:
                entry.restore(state)
        undo.clear()
        self._reindex()
        self._unreplicated = [txn for txn in self._unreplicated if txn[1] < log_end_offset]

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers that were idle too long and have no transaction open."""
        # Never one with an open transaction: the last stable offset would pass records that are not decided.
        expired = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]

    def adopt(self, other: "ProducerStates") -> None:
        """Replace everything by the state of another log of the same partition."""
        self.entries.clear()
        self.entries.update(other.entries)
        self._reindex()
        self._unreplicated = other.unreplicated_transactions()
        self.gaps_refused_until_ms = other.gaps_refused_until_ms

    def on_log_start_offset(self, log_start_offset: int) -> None:
        """Drop ended transactions below the start of the log."""
        self.on_high_watermark(log_start_offset)

    def load(self, entries: list[ProducerEntry]) -> None:
        """Replace everything by the entries of a snapshot."""
        self.entries.clear()
        self.entries.update((entry.producer_id, entry) for entry in entries)
        self._unreplicated = []
        self._reindex()

    def _reindex(self) -> None:
        # Rebuilt rather than undone step by step: a failed write is rare, and this cannot drift.
        firsts = [(e.txn_first_offset, e.producer_id) for e in self.entries.values() if e.txn_first_offset >= 0]
        self._ongoing = dict(sorted(firsts))

    def _check_data(self, entry: ProducerEntry, batch: BatchView, origin: Origin) -> None:
        producer = f"producer {entry.producer_id} in {self.name}"
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        if epoch < entry.epoch:
            raise KlammError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of {producer} is older than the last seen {entry.epoch}",
            )
        if origin is Origin.CLIENT:
            if epoch != entry.epoch:
                if sequence != 0:
                    raise KlammError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"the new epoch {epoch} of {producer} begins with sequence {sequence} instead of 0",
                    )
            elif sequence != entry.next_sequence:
                raise KlammError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {sequence} of {producer} does not follow {entry.last_sequence}",
                )
        if entry.txn_first_offset >= 0 and not batch.is_transactional:
            raise KlammError(ErrorCode.INVALID_TXN_STATE, f"{producer} has a transaction open and wrote outside of it")

    def _check_marker(self, entry: ProducerEntry, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        producer = f"producer {entry.producer_id} in {self.name}"
        if transaction_version >= 2:
            # Every transaction of version 2 ends with a bumped epoch; an equal one is a repeated marker at best.
            repeated = epoch == entry.epoch and (entry.txn_first_offset < 0 or epoch == MAX_EPOCH)
            stale = epoch <= entry.epoch and not repeated
        else:
            stale = epoch < entry.epoch
        if stale:
            raise KlammError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker's epoch {epoch} of {producer} is behind the last seen {entry.epoch}",
            )
        # A coordinator that was replaced and does not know it: its decision may contradict that of its successor.
        if coordinator_epoch < entry.coordinator_epoch:
            raise KlammError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} for {producer} is older than the last seen "
                f"{entry.coordinator_epoch}",
            )
