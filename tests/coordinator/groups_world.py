"""A group shard without a loop: requests in, answers out, a log that is a list, time that tests advance."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from klamm.coordinator.core.deadlines import Deadlines
from klamm.coordinator.core.shard import CoordinatorRecord, Decision, LoggedEvent, Now
from klamm.coordinator.groups import GroupConfig, GroupShard
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.group import Caller
from klamm.coordinator.groups.offset_requests import OffsetCommit, WantedTopic
from klamm.metadata.image import EMPTY_IMAGE
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

RANGE = (("range", b"range-metadata"),)


class Answer:
    """Where one request is answered; `value` is None until then."""

    def __init__(self) -> None:
        self.value: Any = None

    def __call__(self, response: Any) -> None:
        assert response is not None
        assert self.value is None, "a request was answered twice"
        self.value = response

    @property
    def pending(self) -> bool:
        return self.value is None

    @property
    def error(self) -> ErrorCode:
        assert self.value is not None, "no answer yet"
        return ErrorCode(self.value.code if isinstance(self.value, KlammError) else self.value.error_code)

    def __getattr__(self, name: str) -> Any:
        assert self.value is not None, "no answer yet"
        return getattr(self.value, name)


@dataclass
class Entry:
    """What the log holds: a batch of records, or a marker."""

    records: tuple[CoordinatorRecord, ...] = ()
    producer_id: int = -1
    producer_epoch: int = -1
    committed: bool | None = None


@dataclass
class World:
    """One shard with everything around it."""

    config: GroupConfig = field(default_factory=lambda: GroupConfig(initial_rebalance_delay_ms=0))
    now_ms: int = 1_000_000
    log: list[Entry] = field(default_factory=list)
    events: list[LoggedEvent] = field(default_factory=list)
    lazy: bool = False
    """Whether appended batches are committed only by `flush`; those that are not are lost with the leader."""

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._held: list[tuple[Answer, Any]] = []
        self._committed = 0
        self._load()

    def _load(self) -> None:
        self.shard = GroupShard(self.config, lambda: str(next(self._ids)))
        self.deadlines = Deadlines()
        offset = 0
        for entry in self.log:
            if entry.committed is not None:
                self.shard.replay_marker(entry.producer_id, entry.producer_epoch, entry.committed)
                offset += 1
            for record in entry.records:
                self.shard.replay(record, offset, entry.producer_id, entry.producer_epoch)
                offset += 1
        self.end_offset = offset
        self.run(self.shard.on_loaded(EMPTY_IMAGE, self.now))

    def restart(self) -> None:
        """The node dies and another one loads the partition; waiting requests fail."""
        lost = KlammError(ErrorCode.NOT_COORDINATOR)
        if self.lazy:
            del self.log[self._committed :]
            held, self._held = self._held, []
            for reply_to, _ in held:
                reply_to(lost)
        for reply_to in self.shard.waiting():
            reply_to(lost)
        self._load()

    @property
    def uncommitted(self) -> bool:
        """Whether a crash now would lose something that was appended."""
        return self.lazy and self._committed < len(self.log)

    def flush(self) -> None:
        """Everything appended is committed: the replies that waited for it leave."""
        self._committed = len(self.log)
        held, self._held = self._held, []
        for reply_to, response in held:
            reply_to(response)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms + 10**12)

    def run(self, decision: Decision) -> None:
        self.events += decision.events
        if decision.records:
            self.log.append(Entry(decision.records, decision.producer_id, decision.producer_epoch))
            for record in decision.records:
                self.shard.replay(record, self.end_offset, decision.producer_id, decision.producer_epoch)
                self.end_offset += 1
        for key, deadline in decision.timers:
            self.deadlines.set(key, deadline)
        if self.lazy and (decision.records or self._held):
            self._held += decision.replies
        else:
            for reply_to, response in decision.replies:
                reply_to(response)
        self.shard.check()

    def pass_time(self, ms: int) -> None:
        """Let time go by, every deadline at its moment."""
        end = self.now_ms + ms
        while (at := self.deadlines.next_ms) is not None and at <= end:
            self.now_ms = max(self.now_ms, at)
            for key in self.deadlines.due(self.now_ms):
                self.run(self.shard.on_timer(key, self.now))
        self.now_ms = end

    def settle(self) -> None:
        """Whatever is due at this very moment."""
        self.pass_time(0)

    def reasons(self) -> list[str]:
        """Why there were rebalances."""
        return [event.fields["reason"] for event in self.events if event.text == "rebalance started"]

    def group(self, group_id: str = "g") -> ClassicGroup:
        group = self.shard.groups[group_id]
        assert isinstance(group, ClassicGroup)
        return group

    # Requests

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client_id: str = "c",
        reason: str | None = None,
    ) -> Answer:
        answer = Answer()
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
            reason=reason,
        )
        self.run(self.shard.join(request, Caller(client_id, "/127.0.0.1", version), self.now, answer))
        return answer

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group_id: str = "g",
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Answer:
        answer = Answer()
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=assigned_id, assignment=assignment)
                for assigned_id, assignment in (assignments or {}).items()
            ],
        )
        self.run(self.shard.sync(request, self.now, answer))
        return answer

    def heartbeat(
        self, member_id: str, generation_id: int, *, group_id: str = "g", instance_id: str | None = None
    ) -> ErrorCode:
        answer = Answer()
        request = HeartbeatRequest(
            group_id=group_id, generation_id=generation_id, member_id=member_id, group_instance_id=instance_id
        )
        self.run(self.shard.heartbeat(request, self.now, answer))
        self.flush()
        return answer.error

    def leave(self, *member_ids: str, group_id: str = "g", instance_id: str | None = None) -> list[ErrorCode]:
        answer = Answer()
        members = [MemberIdentity(member_id=member_id, group_instance_id=instance_id) for member_id in member_ids]
        self.run(self.shard.leave(LeaveGroupRequest(group_id=group_id, members=members), self.now, answer))
        self.flush()
        return [ErrorCode(member.error_code) for member in answer.members]

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation_id: int = -1,
        *,
        group_id: str = "g",
        topic: str = "t",
        partition: int = 0,
        instance_id: str | None = None,
        metadata: str | None = "",
        version: int = 8,
        retention_ms: int = -1,
        topic_id: bytes = ZERO_UUID,
        unheard: bool = False,
    ) -> ErrorCode:
        """OffsetCommit; `unheard` leaves it to others whether the answer ever comes."""
        answer = Answer()
        rows = [(partition, offset, -1, metadata or "")]
        commit = OffsetCommit(group_id, generation_id, member_id, instance_id, [(topic, topic_id, rows)], retention_ms)
        try:
            self.run(self.shard.commit_offsets(commit, version, self.now, answer))
        except KlammError as error:
            return error.code
        if not unheard:
            self.flush()
        return answer.value[0][0] if answer.value else ErrorCode.NONE

    def commit_in_transaction(
        self,
        offset: int,
        producer_id: int,
        *,
        group_id: str = "g",
        topic: str = "t",
        partition: int = 0,
        member_id: str = "",
        generation_id: int = -1,
    ) -> ErrorCode:
        answer = Answer()
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=0,
            member_id=member_id,
            generation_id=generation_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        try:
            self.run(self.shard.commit_transactional_offsets(request, 3, self.now, answer))
        except KlammError as error:
            return error.code
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.log.append(Entry(producer_id=producer_id, producer_epoch=0, committed=committed))
        self.shard.replay_marker(producer_id, 0, committed)
        self.end_offset += 1
        self.shard.check()

    def fetched(
        self,
        *,
        group_id: str = "g",
        topic: str = "t",
        partition: int = 0,
        stable: bool = False,
        topic_id: bytes = ZERO_UUID,
    ) -> Any:
        """What OffsetFetch says of one partition."""
        answer = Answer()
        wanted = [WantedTopic(topic, topic_id, [partition])]
        self.run(self.shard.fetch_offsets(group_id, None, -1, wanted, answer, require_stable=stable))
        if answer.pending:
            self.flush()
        return answer.topics[0].partitions[0]

    def offset(self, **what: Any) -> int:
        return int(self.fetched(**what).committed_offset)

    # Steps that many tests begin with

    def member(self, **how: Any) -> tuple[str, Answer]:
        """A new dynamic member: its id, and the answer to its second join."""
        first = self.join(**how)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **how)

    def stable_group(self, size: int, **how: Any) -> list[str]:
        """A group of `size` members with assignments b"0", b"1", ...; the first one leads."""
        joins = [self.member(**how) for _ in range(size)]
        self.settle()
        members = [member_id for member_id, _ in joins]
        for _ in range(size):
            for i, (member_id, answer) in enumerate(joins):
                if not answer.pending and answer.generation_id != self.group().generation_id:
                    joins[i] = (member_id, self.join(member_id, **how))
        leader = self.group().leader_id
        generation = self.group().generation_id
        assignments = {member_id: str(i).encode() for i, member_id in enumerate(members)}
        for member_id in members:
            self.sync(member_id, generation, assignments if member_id == leader else None)
        assert self.group().state_name == "Stable"
        return members
