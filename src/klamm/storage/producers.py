"""What a log remembers of its producers: the last five batches of each, its epoch, its open transaction.

Rules for a batch from a client (Kafka 4.3):

    producer unknown              accepted with any sequence: its records may have been deleted or expired
    epoch older than known        INVALID_PRODUCER_EPOCH
    epoch newer                   the sequence must begin with 0, else OUT_OF_ORDER_SEQUENCE_NUMBER
    same sequences as one of the
      last five batches           a duplicate: answered with the offset of the original
    sequence follows the last     accepted; after 2^31-1 comes 0
    anything else                 OUT_OF_ORDER_SEQUENCE_NUMBER
    not transactional while a
      transaction is open         INVALID_TXN_STATE

State changes when a batch is staged, before it is written, so that the next batch of the same producer can be judged;
an undo list takes it back when the write fails.
"""

import enum
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KlammError
from klamm.storage.txn_index import AbortedTxn

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
    def settled(self) -> bool:
        """No transaction holds anything back."""
        return not self._ongoing and not self._unreplicated

    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id of every open transaction."""
        return dict(self._ongoing)

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

    def append_data(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        transactional: bool,
        origin: Origin,
        undo: Undo | None = None,
    ) -> None:
        """Check a data batch against the rules and remember it; KlammError changes nothing."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            self._check(entry, epoch, first_sequence, transactional, origin)
            if undo is not None:
                undo.append((entry, entry.state()))
        else:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
            if undo is not None:
                undo.append((entry, None))
        last_sequence = NO_SEQUENCE
        if first_sequence >= 0:
            last_sequence = add_sequence(first_sequence, last_offset - first_offset)
        kept = entry.batches[1 - BATCHES_REMEMBERED :] if entry.epoch == epoch else ()
        entry.epoch = epoch
        entry.batches = (*kept, (first_sequence, last_sequence, first_offset, last_offset, timestamp))
        entry.next_sequence = add_sequence(last_sequence, 1)
        entry.last_timestamp = timestamp
        if transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = first_offset
            self._ongoing[first_offset] = producer_id

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        committed: bool,
        offset: int,
        timestamp: int,
        origin: Origin,
        undo: Undo | None = None,
        transaction_version: int = 0,
    ) -> AbortedTxn | None:
        """Check an end-transaction marker and end the transaction; what was aborted, if anything was."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            if origin is not Origin.REPLICATION:
                self._check_marker(entry, epoch, coordinator_epoch, transaction_version)
            if undo is not None:
                undo.append((entry, entry.state()))
        else:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
            if undo is not None:
                undo.append((entry, None))
        if entry.epoch != epoch:
            entry.batches = ()
            entry.next_sequence = 0
            entry.epoch = epoch
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        first = entry.txn_first_offset
        entry.txn_first_offset = -1
        if first < 0:
            return None
        self._ongoing.pop(first, None)
        self._unreplicated.append((first, offset))
        if committed:
            return None
        return AbortedTxn(producer_id, first, offset, next(iter(self._ongoing), offset + 1))

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

    def _check(self, entry: ProducerEntry, epoch: int, sequence: int, transactional: bool, origin: Origin) -> None:
        if origin is Origin.REPLICATION:
            return
        who = f"producer {entry.producer_id} in {self.name}"
        if epoch < entry.epoch:
            raise KlammError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {epoch} of {who} is older than the last seen {entry.epoch}"
            )
        if origin is Origin.CLIENT:
            if epoch != entry.epoch:
                if sequence != 0 and entry.epoch >= 0:
                    raise KlammError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"the new epoch {epoch} of {who} begins with sequence {sequence} instead of 0",
                    )
            elif sequence != entry.next_sequence:
                raise KlammError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"sequence {sequence} of {who} does not follow {entry.last_sequence}",
                )
        if entry.txn_first_offset >= 0 and not transactional:
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
