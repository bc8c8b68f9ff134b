"""What a log remembers of its producers: the last five batches of each, its epoch, its open transaction.

Rules for a batch from a client (Kafka 4.3):

    producer unknown              accepted with any sequence: its records may have been deleted or expired;
                                  while the log settles, only with 0, else NOT_ENOUGH_REPLICAS
    epoch older than known        INVALID_PRODUCER_EPOCH
    epoch newer                   the sequence must begin with 0, else OUT_OF_ORDER_SEQUENCE_NUMBER
    same sequences as one of the
      last five batches           a duplicate: answered with the offset of the original
    sequence follows the last     accepted; after 2^31-1 comes 0
    sequence is further ahead     OUT_OF_ORDER_SEQUENCE_NUMBER; while the log settles NOT_ENOUGH_REPLICAS
    anything else                 OUT_OF_ORDER_SEQUENCE_NUMBER
    not transactional while a
      transaction is open         INVALID_TXN_STATE

A log settles in the first minute of a leader that took over from another. What an idempotent producer sent to that one
and had no answer for may not be here, and is sent again when the other no longer answers; meanwhile the producer may
send what follows. librdkafka takes an answer to that for an answer to all that came before, so taking it would lose the
first batches, and refusing it as out of order would have the producer begin anew: under a new epoch it sends again what
other partitions have taken already. Kafka takes it from a producer it does not know, and refuses it from others.

State changes when a batch is staged, before it is written, so that the next batch of the same producer can be judged;
an undo list takes it back when the write fails.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import BatchView
from klamm.records.control import EndTxnMarker, end_txn_marker
from klamm.storage.txn_index import AbortedTxn

GAPS_REFUSED_MS = 60_000
"""As long as clients wait for an answer by default, and so for one of a leader that is none any more."""
MAX_SEQUENCE = 2**31 - 1
MAX_EPOCH = 2**15 - 1
BATCHES_REMEMBERED = 5
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
    """One producer as the log knows it. `next_sequence` follows the last batch; `txn_first_offset` is -1 when no
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
        """From then on a producer that is not known may begin with any sequence."""
        self._unreplicated: list[tuple[int, int]] = []
        """(first, marker offset) of ended transactions whose markers the high watermark has not passed."""

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset whose fate is open or not yet replicated; None when all is settled."""
        undecided = next(iter(self._ongoing), None)
        if not self._unreplicated:
            return undecided
        pending = min(self._unreplicated)[0]
        return pending if undecided is None else min(pending, undecided)

    @property
    def is_stable(self) -> bool:
        """No transaction holds anything back."""
        return not self._ongoing and not self._unreplicated

    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id of every open transaction."""
        return dict(self._ongoing)

    def unreplicated_transactions(self) -> list[tuple[int, int]]:
        """Return (first, marker offset) of ended transactions whose markers the high watermark has not passed."""
        return list(self._unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Let go of ended transactions whose markers are now replicated."""
        if self._unreplicated:
            self._unreplicated = [txn for txn in self._unreplicated if txn[1] >= high_watermark]

    def find_duplicate(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> BatchMeta | None:
        """The remembered batch with exactly these sequences, if there is one."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return None
        for batch in entry.batches:
            if batch[0] == first_sequence and batch[1] == last_sequence:
                return BatchMeta(*batch)
        return None

    def check_nothing_missing(self, batch: BatchView) -> None:
        """Refuse what a producer sent after something that is not here, while the log settles."""
        entry, sequence = self.entries.get(batch.producer_id), batch.base_sequence
        if entry is None:
            expected = 0
        elif entry.epoch == batch.producer_epoch:
            expected = entry.next_sequence
        else:
            return
        # Sequences wrap around: what lies less than half a round ahead comes later.
        if 0 < (sequence - expected) % (MAX_SEQUENCE + 1) <= MAX_SEQUENCE // 2:
            raise KlammError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"sequence {sequence} of producer {batch.producer_id} came before {expected} to {self.name}, "
                "which has a new leader: what is missing may still be on its way",
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
        kept = entry.batches[1 - BATCHES_REMEMBERED :] if entry.epoch == batch.producer_epoch else ()
        last_sequence = batch.last_sequence
        entry.epoch = batch.producer_epoch
        entry.batches = (
            *kept,
            (batch.base_sequence, last_sequence, batch.base_offset, batch.last_offset, batch.max_timestamp),
        )
        entry.next_sequence = add_sequence(last_sequence, 1)
        entry.last_timestamp = batch.max_timestamp
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
        if entry.epoch != batch.producer_epoch:
            entry.batches = ()
            entry.next_sequence = 0
            entry.epoch = batch.producer_epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = batch.max_timestamp
        first = entry.txn_first_offset
        entry.txn_first_offset = -1
        if first < 0:
            return None
        self._ongoing.pop(first, None)
        self._unreplicated.append((first, batch.base_offset))
        if marker.committed:
            return None
        stable = next(iter(self._ongoing), batch.base_offset + 1)
        return AbortedTxn(batch.producer_id, first, batch.base_offset, stable)

    def _touch(self, producer_id: int, undo: Undo | None) -> ProducerEntry:
        """The entry that is about to change, made when there is none; the undo list learns of it."""
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
        """Take back everything an undo list remembers, newest first."""
        for entry, state in reversed(undo):
            if state is None:
                del self.entries[entry.producer_id]
            else:
                entry.restore(state)
        undo.clear()
        self._reindex()
        self._unreplicated = [txn for txn in self._unreplicated if txn[1] < log_end_offset]

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that were silent too long and have no transaction open."""
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
        """Ended transactions below the start of the log hold nothing back any more."""
        self.on_high_watermark(log_start_offset)

    def load(self, entries: list[ProducerEntry]) -> None:
        """Begin anew with the entries of a snapshot."""
        self.entries.clear()
        self.entries.update((entry.producer_id, entry) for entry in entries)
        self._unreplicated = []
        self._reindex()

    def _reindex(self) -> None:
        firsts = [(e.txn_first_offset, e.producer_id) for e in self.entries.values() if e.txn_first_offset >= 0]
        self._ongoing = dict(sorted(firsts))

    def _check_data(self, entry: ProducerEntry, batch: BatchView, origin: Origin) -> None:
        who = f"producer {entry.producer_id} in {self.name}"
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        if epoch < entry.epoch:
            raise KlammError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} of {who} is older than the last seen {entry.epoch}"
            )
        if origin is Origin.CLIENT:
            if epoch != entry.epoch:
                if sequence != 0:
                    raise KlammError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"the new epoch {epoch} of {who} begins with sequence {sequence} instead of 0",
                    )
            elif sequence != entry.next_sequence:
                raise KlammError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {sequence} of {who} does not follow {entry.last_sequence}",
                )
        if entry.txn_first_offset >= 0 and not batch.is_transactional:
            raise KlammError(ErrorCode.INVALID_TXN_STATE, f"{who} has a transaction open and wrote outside of it")

    def _check_marker(self, entry: ProducerEntry, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        who = f"producer {entry.producer_id} in {self.name}"
        if transaction_version >= 2:
            # Every transaction of version 2 ends with a bumped epoch; an equal one is a repeated marker at best.
            repeated = epoch == entry.epoch and (entry.txn_first_offset < 0 or epoch == MAX_EPOCH)
            stale = epoch <= entry.epoch and not repeated
        else:
            stale = epoch < entry.epoch
        if stale:
            raise KlammError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker's epoch {epoch} of {who} is behind the last seen {entry.epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise KlammError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} for {who} is older than the last seen "
                f"{entry.coordinator_epoch}",
            )
