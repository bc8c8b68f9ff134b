"""A whole transaction system without an event loop: a coordinator, its log, partitions with real producer rules, one of
them a partition of offsets with the coordinator of its groups.

The coordinator's log has a committed end; replies wait for it, and a crash throws away what lies behind. Markers are
written when the test says so, one by one.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from klamm.coordinator.core.shard import CoordinatorRecord, Decision, Now, ReplyTo
from klamm.coordinator.groups import GroupConfig, GroupShard
from klamm.coordinator.groups.offsets import decode_offset_key
from klamm.coordinator.transactions import (
    MarkerOutcome,
    MarkerTracker,
    PendingMarkers,
    TransactionConfig,
    TransactionShard,
)
from klamm.coordinator.transactions.records import metadata_record
from klamm.coordinator.transactions.rules import ProducerIdAndEpoch
from klamm.coordinator.transactions.shard import ABORT_TIMER, EXPIRE_TIMER
from klamm.metadata.image import EMPTY_IMAGE
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from klamm.records.batch import BatchView, build_batch
from klamm.records.control import build_end_txn_marker
from klamm.server.coordinators.transaction_guards import GuardKey, TransactionGuards
from klamm.storage.producer_state import Origin, ProducerStates

START_MS = 1_700_000_000_000
OFFSETS = TopicPartition("__consumer_offsets", 0)


def guard_key(producer_id: int) -> GuardKey:
    """The way of a producer into a partition that has its guards to itself."""
    return GuardKey(b"", 0, producer_id)


class Partition:
    """A partition as its leader keeps it: entries in order, producer state as storage keeps it, verification guards."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.producers = ProducerStates(str(name))
        self.entries: list[tuple[str, int, Any]] = []
        """("data", producer id, value) or ("commit"/"abort", producer id, epoch), one per offset."""
        self.guards = TransactionGuards()

    def has_open(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether the producer's transaction is open here, so that the coordinator need not verify it."""
        entry = self.producers.entries.get(producer.id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer.epoch

    def write(self, producer: ProducerIdAndEpoch, sequence: int, value: Any) -> ErrorCode:
        """Append one transactional record."""
        last = (sequence, sequence)
        if self.producers.find_duplicate(producer.id, producer.epoch, *last) is not None:
            return ErrorCode.NONE
        data = build_batch(
            [(START_MS, None, b"x", ())],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            base_offset=len(self.entries),
            transactional=True,
        )
        try:
            self.producers.append(BatchView(data), Origin.CLIENT)
        except KlammError as error:
            return error.code
        self.guards.release(guard_key(producer.id))
        self.entries.append(("data", producer.id, value))
        return ErrorCode.NONE

    def write_marker(self, markers: PendingMarkers) -> ErrorCode:
        """Append the end of a transaction."""
        data = build_end_txn_marker(
            committed=markers.committed,
            producer_id=markers.producer_id,
            producer_epoch=markers.producer_epoch,
            coordinator_epoch=markers.coordinator_epoch,
            timestamp=START_MS,
        )
        batch = BatchView(data)
        batch.set_offset_and_epoch(len(self.entries), 0)
        try:
            self.producers.append(batch, Origin.COORDINATOR, transaction_version=markers.transaction_version)
        except KlammError as error:
            return error.code
        self.guards.on_marker(guard_key(markers.producer_id), markers.producer_epoch, markers.transaction_version)
        kind = "commit" if markers.committed else "abort"
        self.entries.append((kind, markers.producer_id, markers.producer_epoch))
        return ErrorCode.NONE

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed data stop."""
        return min(self.producers.open_transactions(), default=len(self.entries))

    def read_committed(self) -> list[Any]:
        """The values a reader of committed data sees, in order."""
        ends: dict[int, str] = {}
        fates: dict[int, str] = {}
        for offset in range(len(self.entries) - 1, -1, -1):
            kind, producer_id, _ = self.entries[offset]
            if kind == "data":
                fates[offset] = ends.get(producer_id, "open")
            else:
                ends[producer_id] = kind
        stable = self.last_stable_offset
        return [
            entry[2]
            for offset, entry in enumerate(self.entries[:stable])
            if entry[0] == "data" and fates[offset] == "commit"
        ]


class OffsetsPartition(Partition):
    """A partition of `__consumer_offsets`: the groups' coordinator writes into it and follows its markers."""

    def __init__(self, name: TopicPartition) -> None:
        super().__init__(name)
        self.records: dict[int, CoordinatorRecord] = {}
        """By offset, what a transaction would commit."""
        self.markers: dict[int, tuple[int, int, bool]] = {}
        self.shard = GroupShard(GroupConfig(), lambda: "unused")

    def commit(self, producer: ProducerIdAndEpoch, group: str, offset: int, now: Now) -> ErrorCode:
        """TxnOffsetCommit, once the transaction is known to be open."""
        row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id="",
            group_id=group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=-1,
            topics=[TxnOffsetCommitRequestTopic(name="source", partitions=[row])],
        )
        decision = self.shard.commit_transactional_offsets(request, 5, now, lambda _: None)
        rows = [(START_MS, record.key, record.value, ()) for record in decision.records]
        data = build_batch(
            rows, producer_id=producer.id, producer_epoch=producer.epoch, transactional=True,
            base_offset=len(self.entries),
        )  # fmt: skip
        try:
            self.producers.append(BatchView(data), Origin.COORDINATOR)
        except KlammError as error:
            return error.code
        self.guards.release(guard_key(producer.id))
        (record,) = decision.records
        self.records[len(self.entries)] = record
        self.shard.replay(record, len(self.entries), producer.id, producer.epoch)
        self.entries.append(("data", producer.id, offset))
        return ErrorCode.NONE

    def write_marker(self, markers: PendingMarkers) -> ErrorCode:
        error = super().write_marker(markers)
        if error == ErrorCode.NONE:
            end = (markers.producer_id, markers.producer_epoch, markers.committed)
            self.markers[len(self.entries) - 1] = end
            self.shard.replay_marker(*end)
        return error

    def reload(self) -> None:
        """The coordinator of the groups moves: what it knows comes from the log."""
        self.shard = GroupShard(GroupConfig(), lambda: "unused")
        for at, (kind, producer_id, _) in enumerate(self.entries):
            if kind == "data":
                self.shard.replay(self.records[at], at, producer_id, 0)
            else:
                self.shard.replay_marker(*self.markers[at])

    def committed(self) -> dict[str, int]:
        """Where every group goes on, as its coordinator says."""
        return {
            group: committed.offset
            for group in self.shard.offsets.committed
            if (committed := self.shard.offsets.find(group, "source", 0)) is not None
        }

    def written(self, kind: str) -> dict[str, int]:
        """The last offset of every group whose transaction has come to this end ("commit", or "open"), by the log."""
        offsets: dict[str, int] = {}
        ends: dict[int, str] = {}
        for at in range(len(self.entries) - 1, -1, -1):
            what, producer_id, value = self.entries[at]
            if what != "data":
                ends[producer_id] = what
            elif ends.get(producer_id, "open") == kind:
                group = decode_offset_key(self.records[at].key)[0]
                offsets.setdefault(group, value)
        return offsets


@dataclass
class Answer:
    """The answer of a request, once there is one."""

    value: Any = None
    answered: bool = False

    def __call__(self, value: Any) -> None:
        self.value, self.answered = value, True

    @property
    def code(self) -> ErrorCode | None:
        """The error, NONE for success, None while there is no answer."""
        if not self.answered:
            return None
        return self.value.code if isinstance(self.value, KlammError) else ErrorCode.NONE


@dataclass
class World:
    """One coordinator, its log, and the partitions it sends markers to."""

    version: int = 2
    commit_at_once: bool = True
    config: TransactionConfig = field(default_factory=TransactionConfig)
    now_ms: int = START_MS
    epoch: int = 0
    log: list[CoordinatorRecord] = field(default_factory=list)
    committed: int = 0
    held: deque[tuple[int, ReplyTo, Any]] = field(default_factory=deque)
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    next_producer_id: int = 1000

    def __post_init__(self) -> None:
        self.tracker = MarkerTracker()
        self.shard = self._load()
        self.shard.on_loaded(self._image(), self.now)

    def _load(self) -> TransactionShard:
        shard = TransactionShard(self.epoch, self.config, self.take_producer_id, self._owe)
        for record in self.log:
            shard.replay(record)
        return shard

    def take_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def _owe(self, owed: Any) -> None:
        if isinstance(owed, PendingMarkers):
            self.tracker.add(owed)

    # The runtime, in small

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def carry_out(self, decision: Decision) -> None:
        for record in decision.records:
            self.log.append(record)
            self.shard.replay(record)
        self.shard.check()
        for reply_to, value in decision.replies:
            self.held.append((len(self.log), reply_to, value))
        if self.commit_at_once:
            self.commit()

    def commit(self) -> None:
        """Everything appended is now replicated; replies that waited for it are sent."""
        self.committed = len(self.log)
        while self.held and self.held[0][0] <= self.committed:
            _, reply_to, value = self.held.popleft()
            reply_to(value)

    def crash(self) -> None:
        """The coordinator dies and comes back under the next epoch, with what was committed."""
        del self.log[self.committed :]
        self.held.clear()
        self.tracker = MarkerTracker()
        self.epoch += 1
        self.shard = self._load()
        self.carry_out(self.shard.on_loaded(self._image(), self.now))

    def _image(self) -> Any:
        return replace(EMPTY_IMAGE, features={"transaction.version": self.version})

    # Requests

    def init(
        self, transactional_id: str, expected: ProducerIdAndEpoch | None = None, timeout_ms: int = 60_000
    ) -> Answer:
        answer = Answer()
        self.carry_out(self.shard.init_producer_id(transactional_id, timeout_ms, expected, self.now, answer))
        return answer

    def begin(
        self, transactional_id: str, expected: ProducerIdAndEpoch | None = None, timeout_ms: int = 60_000
    ) -> ProducerIdAndEpoch:
        """Initialize until it is done, as a client retries."""
        for _ in range(3):
            answer = self.init(transactional_id, expected, timeout_ms)
            if answer.code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            self.pay()
        assert answer.code == ErrorCode.NONE, answer.value
        return answer.value

    def begin_at(self, transactional_id: str, epoch: int) -> ProducerIdAndEpoch:
        """A producer that has come to `epoch`, without the thousands of steps before it."""
        producer = self.begin(transactional_id)
        metadata = self.shard.find(transactional_id)
        assert metadata is not None
        record = metadata_record(replace(metadata, producer_epoch=epoch), self.version)
        self.carry_out(Decision((record,)))
        return ProducerIdAndEpoch(producer.id, epoch)

    def add(self, transactional_id: str, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> Answer:
        answer = Answer()
        version = self.version if self.version >= 2 else 0
        self.carry_out(
            self.shard.add_partitions(transactional_id, producer, frozenset(partitions), version, self.now, answer)
        )
        return answer

    def verify(self, transactional_id: str, producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> Answer:
        answer = Answer()
        self.carry_out(self.shard.verify_partitions(transactional_id, producer, frozenset(partitions), answer))
        return answer

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, committed: bool, version: int | None = None
    ) -> Answer:
        answer = Answer()
        version = self.version if version is None else version
        self.carry_out(
            self.shard.end_transaction(
                transactional_id, producer, committed, version if version >= 2 else 0, self.now, answer
            )
        )
        return answer

    def partition(self, name: TopicPartition) -> Partition:
        known = self.partitions.get(name)
        if known is None:
            known = self.partitions[name] = OffsetsPartition(name) if name == OFFSETS else Partition(name)
        return known

    @property
    def offsets(self) -> OffsetsPartition:
        partition = self.partition(OFFSETS)
        assert isinstance(partition, OffsetsPartition)
        return partition

    def produce(
        self, transactional_id: str, producer: ProducerIdAndEpoch, name: TopicPartition, sequence: int, value: Any
    ) -> ErrorCode:
        """A transactional Produce: verified by the coordinator unless the transaction is open here already."""
        partition = self.partition(name)
        return self._admit(transactional_id, producer, partition) or partition.write(producer, sequence, value)

    def commit_offset(self, transactional_id: str, producer: ProducerIdAndEpoch, group: str, offset: int) -> ErrorCode:
        """TxnOffsetCommit, which passes the same gate."""
        partition = self.offsets
        return self._admit(transactional_id, producer, partition) or partition.commit(producer, group, offset, self.now)

    def _admit(self, transactional_id: str, producer: ProducerIdAndEpoch, partition: Partition) -> ErrorCode:
        if not partition.has_open(producer):
            guard = partition.guards.take(guard_key(producer.id), producer, 0, 0)
            ask = self.add if self.version >= 2 else self.verify
            answer = ask(transactional_id, producer, partition.name)
            if answer.code is None:
                return ErrorCode.REQUEST_TIMED_OUT
            error = answer.code or (answer.value or {}).get(partition.name, ErrorCode.NONE)
            if error != ErrorCode.NONE:
                return error
            if not partition.guards.holds(guard_key(producer.id), guard):
                return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    # Time and markers

    def tick(self, ms: int = 10_000) -> None:
        """Time passes, and the coordinator's timers run."""
        self.now_ms += ms
        for timer in (ABORT_TIMER, EXPIRE_TIMER):
            self.carry_out(self.shard.on_timer(timer, self.now))

    def write_markers(self, markers: PendingMarkers, name: TopicPartition) -> MarkerOutcome:
        """One partition gets its marker."""
        outcome = self.tracker.record_response(markers, name, self.partition(name).write_marker(markers))
        self.complete_if_written(markers)
        return outcome

    def complete_if_written(self, markers: PendingMarkers) -> None:
        if self.tracker.all_written(markers):
            self.tracker.discard(markers)
            self.carry_out(self.shard.complete(markers, self.now, Answer()))

    def pay(self) -> None:
        """Write every marker that is owed."""
        for markers in self.tracker:
            for name in sorted(markers.partitions):
                self.write_markers(markers, name)
            self.complete_if_written(markers)

    def state(self, transactional_id: str) -> str:
        metadata = self.shard.find(transactional_id)
        return metadata.state.text if metadata is not None else "none"
