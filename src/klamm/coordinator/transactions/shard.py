"""Decisions about the transactional ids of one partition of `__transaction_state`.

Each request has one method that returns a Decision. Deciding changes no transaction, only `_last_decided`, a cache of
what the log's format cannot hold. Once the end of a transaction is committed, its markers are handed to `send_markers`
as a reply of the decision; when all are written, `complete` stores it.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from klamm.coordinator.core.shard import CoordinatorRecord, Decision, LoggedEvent, Now, ReplyTo, Shard, refusal
from klamm.coordinator.transactions import rules
from klamm.coordinator.transactions.markers import PendingMarkers
from klamm.coordinator.transactions.records import metadata_record, read_record, tombstone
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch, TakeProducerId
from klamm.coordinator.transactions.state import ONGOING, PREPARED, SETTLED, TransactionMetadata
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition

TRANSACTION_VERSION = "transaction.version"
ABORT_TIMER = "abort timed out transactions"
EXPIRE_TIMER = "expire idle transactional ids"
RECORDS_PER_DECISION = 1000
"""So that a batch of expirations or timeouts stays far below the size a partition takes."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The settings transactions are decided by; names are Kafka's."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 3_600_000


class TransactionShard(Shard):
    """The transactional ids that hash to one partition."""

    def __init__(
        self,
        coordinator_epoch: int,
        config: TransactionConfig,
        take_producer_id: TakeProducerId,
        send_markers: ReplyTo,
    ) -> None:
        self.coordinator_epoch = coordinator_epoch
        """The epoch under which the partition is led; markers carry it, so that an older leader's are refused."""
        self.transaction_version = 0
        self._config = config
        self._take_producer_id = take_producer_id
        self._send_markers = send_markers
        self._transactions: dict[str, TransactionMetadata] = {}
        self._last_decided: dict[str, TransactionMetadata] = {}
        """The last decided state: it has fields that the record format lacks, such as the epoch
        before a bump, by which a repeated request is recognised."""

    # Hard state

    def replay(
        self, record: CoordinatorRecord, offset: int = -1, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Apply a record."""
        del offset, producer_id, producer_epoch
        entry = read_record(record)
        if entry is None:
            return
        transactional_id, metadata = entry
        if metadata is None:
            self._transactions.pop(transactional_id, None)
            self._last_decided.pop(transactional_id, None)
            return
        # In service the decided value is kept instead of the decoded one: it also has the last epoch (KIP-360).
        decided = self._last_decided.get(transactional_id)
        if decided is not None and _describes(metadata, decided):
            metadata = decided
        self._transactions[transactional_id] = metadata

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """The log of transactions has no transactions of its own."""

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return iter(self._transactions.values())

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the metadata of a transactional id, or None."""
        return self._transactions.get(transactional_id)

    # Life of the shard

    def on_loaded(self, image: MetadataImage, now: Now) -> Decision:
        """Resume where the last coordinator stopped: send pending markers of ended transactions."""
        self.transaction_version = image.features.get(TRANSACTION_VERSION, 0)
        pending = [
            PendingMarkers.of(metadata, self.coordinator_epoch) for metadata in self if metadata.state in PREPARED
        ]
        events = (LoggedEvent("resending markers of ended transactions", {"transactions": len(pending)}),)
        return Decision(
            replies=tuple((self._send_markers, markers) for markers in pending),
            timers=(
                (ABORT_TIMER, now.ms + self._config.abort_timed_out_interval_ms),
                (EXPIRE_TIMER, now.ms + self._config.remove_expired_interval_ms),
            ),
            events=events if pending else (),
        )

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage, now: Now) -> Decision:
        """The cluster may have finalized another transaction version."""
        del delta, now
        self.transaction_version = image.features.get(TRANSACTION_VERSION, 0)
        return Decision()

    def on_timer(self, key: Hashable, now: Now) -> Decision:
        """Abort transactions that exceeded their timeout, or expire idle transactional ids."""
        if key == ABORT_TIMER:
            return self._abort_timed_out(now)
        return self._expire_idle(now)

    def waiting(self) -> Iterable[ReplyTo]:
        """Return nothing: every request is answered by its own decision."""
        return ()

    def _abort_timed_out(self, now: Now) -> Decision:
        late = [
            metadata
            for metadata in self
            if metadata.state is ONGOING and metadata.start_timestamp_ms + metadata.timeout_ms < now.wall_ms
        ]
        prepared = []
        for metadata in late[:RECORDS_PER_DECISION]:
            try:
                prepared.append(rules.fence(metadata, self.transaction_version, self._take_producer_id, now.wall_ms))
            except KlammError:
                # No producer id is allocated just now; the next run of the timer takes up the rest.
                break
        records = tuple(self._record(metadata) for metadata in prepared)
        # Markers pending for long are handed over again: the first time may have failed with the write of the decision.
        decided_before_ms = now.wall_ms - self._config.abort_timed_out_interval_ms
        slow = [m for m in self if m.state in PREPARED and m.last_update_timestamp_ms <= decided_before_ms]
        return Decision(
            records=records,
            replies=tuple((self._send_markers, self._pending(metadata)) for metadata in (*prepared, *slow)),
            timers=((ABORT_TIMER, now.ms + self._config.abort_timed_out_interval_ms),),
            events=tuple(
                LoggedEvent(
                    "transaction aborted: transaction timeout exceeded",
                    {"transactional_id": old.transactional_id, "producer_id": old.producer_id, "ms": old.timeout_ms},
                )
                for old in late[: len(prepared)]
            ),
        )

    def _expire_idle(self, now: Now) -> Decision:
        limit = now.wall_ms - self._config.transactional_id_expiration_ms
        idle = [
            # dead() asserts that the state may expire; only the tombstone is written.
            metadata.dead().transactional_id
            for metadata in self
            if metadata.state in SETTLED and metadata.last_update_timestamp_ms <= limit
        ]
        part = idle[:RECORDS_PER_DECISION]
        # More to remove: continue at once, after other work of the loop.
        pause_ms = self._config.remove_expired_interval_ms if len(part) == len(idle) else 0
        return Decision(
            records=tuple(tombstone(transactional_id) for transactional_id in part),
            timers=((EXPIRE_TIMER, now.ms + pause_ms),),
            events=(LoggedEvent("transactional ids expired", {"count": len(part)}),) if part else (),
        )

    # Requests. A refusal is a KlammError, given to `reply_to` like every response.

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, now: Now, reply_to: ReplyTo
    ) -> Decision:
        """InitProducerId: answered with the ProducerIdAndEpoch that owns the transactional id from now on."""
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return refusal(
                reply_to,
                KlammError(
                    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                    f"transaction timeout {timeout_ms} ms; transaction.max.timeout.ms is "
                    f"{self._config.transaction_max_timeout_ms}",
                ),
            )
        before = self.find(transactional_id)
        try:
            following = rules.initialize(
                before,
                transactional_id,
                timeout_ms,
                expected,
                transaction_version=self.transaction_version,
                take_producer_id=self._take_producer_id,
                now_ms=now.wall_ms,
            )
        except KlammError as error:
            return refusal(reply_to, error)
        producer = ProducerIdAndEpoch(following.producer_id, following.producer_epoch)
        if following.state in PREPARED:
            busy = KlammError(
                ErrorCode.CONCURRENT_TRANSACTIONS, f"the open transaction of {transactional_id} is aborted first"
            )
            event = LoggedEvent(
                "transaction aborted: producer fenced by InitProducerId",
                {"transactional_id": transactional_id, "producer_id": producer.id, "epoch": producer.epoch},
            )
            return self._prepare(following, reply_to, busy, (event,))
        event = LoggedEvent(
            "producer initialized",
            {"transactional_id": transactional_id, "producer_id": producer.id, "epoch": producer.epoch},
        )
        return Decision((self._record(following),), ((reply_to, producer),), events=(event,))

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        client_version: int,
        now: Now,
        reply_to: ReplyTo,
    ) -> Decision:
        """Partitions join the open transaction, which they begin if there is none; answered with None."""
        try:
            following = rules.add_partitions(
                self.find(transactional_id),
                transactional_id,
                producer,
                partitions,
                client_version=client_version,
                now_ms=now.wall_ms,
            )
        except KlammError as error:
            return refusal(reply_to, error)
        records = () if following is None else (self._record(following),)
        return Decision(records, ((reply_to, None),))

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: frozenset[TopicPartition],
        reply_to: ReplyTo,
    ) -> Decision:
        """Whether partitions belong to the open transaction; answered with an error code for each."""
        try:
            codes = rules.verify_partitions(self.find(transactional_id), transactional_id, producer, partitions)
        except KlammError as error:
            return refusal(reply_to, error)
        return Decision(replies=((reply_to, codes),))

    def end_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        committed: bool,
        client_version: int,
        now: Now,
        reply_to: ReplyTo,
    ) -> Decision:
        """Commit or abort; answered with the ProducerIdAndEpoch to continue with, once the decision is committed."""
        before = self.find(transactional_id)
        try:
            following = rules.end(
                before,
                transactional_id,
                producer,
                committed=committed,
                client_version=client_version,
                take_producer_id=self._take_producer_id,
                now_ms=now.wall_ms,
            )
        except KlammError as error:
            refused = refusal(reply_to, error)
            if error.code != ErrorCode.INVALID_TXN_STATE:
                return refused
            # Fatal to the producer, so an on-caller looks for it; every other refusal is retried or means fencing.
            fields = {"transactional_id": transactional_id, "producer_id": producer.id, "epoch": producer.epoch}
            return refused._replace(events=(LoggedEvent("EndTxn refused", {**fields, "reason": error}),))
        if following is not None:
            continues_as = ProducerIdAndEpoch(following.producer_id, following.producer_epoch)
            # No epoch is left: the client continues with the id that replaces this one once the markers are written.
            if following.next_producer_id >= 0:
                continues_as = ProducerIdAndEpoch(following.next_producer_id, 0)
            return self._prepare(following, reply_to, continues_as)
        assert before is not None
        return Decision(replies=((reply_to, ProducerIdAndEpoch(before.producer_id, before.producer_epoch)),))

    def complete(self, markers: PendingMarkers, now: Now, reply_to: ReplyTo) -> Decision:
        """Complete a transaction whose markers are written; answered with None. No record if its state has moved on."""
        metadata = self.find(markers.transactional_id)
        if (
            metadata is None
            or metadata.state not in PREPARED
            or (metadata.producer_id, metadata.producer_epoch) != (markers.producer_id, markers.producer_epoch)
            or markers.coordinator_epoch != self.coordinator_epoch
        ):
            return Decision(replies=((reply_to, None),))
        return Decision((self._record(metadata.complete(now.wall_ms)),), ((reply_to, None),))

    def _prepare(
        self, prepared: TransactionMetadata, reply_to: ReplyTo, response: Any, events: tuple[LoggedEvent, ...] = ()
    ) -> Decision:
        """Answer, and have the markers sent, once the decision is committed."""
        # Both leave after the commit: no marker may be written for an end that could still be lost.
        replies = ((reply_to, response), (self._send_markers, self._pending(prepared)))
        return Decision((self._record(prepared),), replies, events=events)

    def _pending(self, prepared: TransactionMetadata) -> PendingMarkers:
        return PendingMarkers.of(prepared, self.coordinator_epoch)

    def _record(self, metadata: TransactionMetadata) -> CoordinatorRecord:
        """The record of a state that follows."""
        self._last_decided[metadata.transactional_id] = metadata
        return metadata_record(metadata, self.transaction_version)

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        owners: dict[int, str] = {}
        for metadata in self:
            metadata.check()
            other = owners.setdefault(metadata.producer_id, metadata.transactional_id)
            assert other == metadata.transactional_id, f"{other} and {metadata.transactional_id} share a producer id"


def _describes(read: TransactionMetadata, decided: TransactionMetadata) -> bool:
    """Whether a record that was read is the one of a state that was decided here."""
    return (
        (read.producer_id, read.producer_epoch, read.state)
        == (decided.producer_id, decided.producer_epoch, decided.state)
        and read.partitions == decided.partitions
        and read.last_update_timestamp_ms == decided.last_update_timestamp_ms
    )
