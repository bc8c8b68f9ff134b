"""The groups of one partition of `__consumer_offsets`: their members and the offsets they committed.

Each request has one method here that takes the request and returns a decision. Groups come and go with their records;
a group that only commits offsets (a "simple" one) exists as long as its offsets do.

Hard state (offsets, consumer groups, stored generations) changes in `replay` alone. Deciding changes only soft
state, which is lost with the shard and rebuilt by later requests: of classic groups, members and their waiting joins
and syncs until a generation is stored; of consumer groups, which image was checked and which deadlines run; caches of
topics and patterns.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

from klamm.coordinator.core.shard import (
    CoordinatorRecord,
    Decision,
    LoggedEvent,
    Now,
    ReplyTo,
    Shard,
    decode_key,
    decode_value,
    record_type,
)
from klamm.coordinator.groups import listing, offset_requests
from klamm.coordinator.groups.classic import joining, leaving, rebalance, syncing
from klamm.coordinator.groups.classic.classic_decision import JOIN, SESSION, SYNC, ClassicDecisionBuilder
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.records import empty_record, replay_group
from klamm.coordinator.groups.classic.state import DEAD, PREPARING_REBALANCE, STABLE
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.consumer.consumer_groups import ConsumerGroups
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.migration import DOWNGRADED
from klamm.coordinator.groups.consumer.records import KINDS as CONSUMER_GROUP_RECORDS
from klamm.coordinator.groups.group import Caller, CheckPartition, Group
from klamm.coordinator.groups.offset_requests import OffsetCommit
from klamm.coordinator.groups.offsets import (
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    ShardOffsets,
    offset_tombstone,
)
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from klamm.protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

EXPIRE = "expire"
"""The timer of the retention check of offsets and empty groups."""

GROUP_METADATA = 2
OWNER_CHARS_MAX = 255
"""Of the name of a client or an instance with which the id of its member begins."""

Timers = tuple[tuple[Hashable, int | None], ...]


class GroupShard(Shard):
    """The groups and offsets of one partition. Timer keys are tuples that begin with their kind."""

    def __init__(self, config: GroupConfig, new_id: Callable[[], str]) -> None:
        """`new_id` returns a unique text for a new member id."""
        self.config = config
        self.groups: dict[str, Group] = {}
        self.offsets = ShardOffsets()
        self.image = EMPTY_IMAGE
        self._new_id = new_id
        self._consumers = ConsumerGroups(config, self.groups)
        self._new_groups: dict[str, ClassicGroup] = {}
        """Groups a join has created, with the member that waits in it; their first record puts them into `groups`."""

    def set_config(self, config: GroupConfig) -> None:
        """Use new settings from now on."""
        self.config = config
        self._consumers.set_config(config)

    # Replay: the only way hard state changes

    def replay(
        self,
        record: CoordinatorRecord,
        offset: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,  # noqa: ARG002 - markers name the producer alone
    ) -> None:
        """Apply a record. Unknown types are ignored, as in Kafka."""
        # Offsets are looked for first and cheaply: a start may replay millions of them.
        kind = OFFSET_COMMIT if record.key[:2] == b"\0\x01" else record_type(record.key)
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            group_id = self.offsets.replay(record, offset, producer_id)
            if group_id not in self.groups and record.value is not None:
                self.groups[group_id] = ClassicGroup(group_id)
        elif kind == GROUP_METADATA:
            self._replay_group(record)
        elif kind in CONSUMER_GROUP_RECORDS:
            self._consumers.replay(record)

    def replay_run(
        self, records: Sequence[CoordinatorRecord], offset: int, producer_id: int, producer_epoch: int
    ) -> None:
        """Apply records at consecutive offsets; most are commits to topics committed before."""
        done = self.offsets.replay_run(records, offset) if producer_id < 0 else 0
        for at in range(done, len(records)):
            self.replay(records[at], offset + at, producer_id, producer_epoch)

    def _replay_group(self, record: CoordinatorRecord) -> None:
        group_id = decode_key(GroupMetadataKey, record.key).group
        if record.value is None:
            gone = self.groups.get(group_id)
            if isinstance(gone, ClassicGroup):
                del self.groups[group_id]
                gone.state = DEAD
            return
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            # After a restart there is no new group; in service its soft state must not be lost.
            new = self._new_groups.pop(group_id, None)
            group = self.groups[group_id] = new if new is not None else ClassicGroup(group_id)
        replay_group(group, decode_value(GroupMetadataValue, record.value))

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:  # noqa: ARG002 - the log has checked the epoch
        """A producer's transaction has ended here."""
        self.offsets.replay_marker(producer_id, committed)

    # Life of the shard

    def on_loaded(self, image: MetadataImage, now: Now) -> Decision:
        """Start the timers of all members and of the retention check."""
        self.image = image
        self._consumers.update(image)
        builder = ClassicDecisionBuilder(self.config, now)
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    # A full session: the time of the last heartbeat was known to the last coordinator alone.
                    builder.start_session_timer(group, member)
                if len(group.members) > self.config.max_size:
                    rebalance.prepare_rebalance(
                        builder, group, f"more members than group.max.size={self.config.max_size}"
                    )
        builder.set_timer((EXPIRE,), now.ms + self.config.offsets_retention_check_interval_ms)
        builder.timers |= dict(self._consumers.on_loaded(now).timers)
        return builder.build()

    def on_timer(self, key: Hashable, now: Now) -> Decision:
        """Handle a session, rebalance or retention deadline."""
        assert isinstance(key, tuple)
        kind = key[0]
        if kind == EXPIRE:
            return self._remove_expired(now)
        builder = ClassicDecisionBuilder(self.config, now)
        group = self.groups.get(key[1])
        if isinstance(group, ConsumerGroup) and len(key) == 3:
            return self._consumers.on_timer(group, kind, key[2], now)
        if isinstance(group, ClassicGroup):
            if kind == SESSION:
                leaving.on_session_timer(builder, group, key[2])
            elif kind == JOIN:
                rebalance.on_join_timer(builder, group)
            elif kind == SYNC:
                rebalance.on_sync_timer(builder, group)
            elif kind == DOWNGRADED and group.can_rebalance and not group.is_empty:
                rebalance.prepare_rebalance(builder, group, "group downgraded from the consumer protocol")
        return builder.build()

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage, now: Now) -> Decision:  # noqa: ARG002 - the protocol's form
        """Remove the offsets of deleted topics."""
        self.image = image
        self._consumers.update(image)
        deleted = {topic.name: bytes(topic_id) for topic_id, topic in delta.topics_deleted.items()}
        if not deleted:
            return Decision()
        records = tuple(offset_tombstone(*partition) for partition in self.offsets.of_topics(deleted))
        if not records:
            return Decision()
        event = LoggedEvent("offsets of deleted topics removed", {"topics": ",".join(deleted), "offsets": len(records)})
        return Decision(records=records, events=(event,), atomic=False)

    def waiting(self) -> Iterable[ReplyTo]:
        """Every join and sync that is not answered yet."""
        for group in self.groups.values():
            yield from group.waiting()
        # The decision that created a group may have failed before its record was replayed.
        for group in self._new_groups.values():
            yield from group.waiting()

    def _remove_expired(self, now: Now) -> Decision:
        """Remove offsets whose retention is over, and groups that have neither members nor offsets."""
        records: list[CoordinatorRecord] = []
        for group in list(self.groups.values()):
            base = group.expiration_base()
            known = sum(map(len, self.offsets.of_group(group.group_id).values()))
            expired: list[tuple[str, int]] = []
            if base is not None:
                expired = [
                    (topic, partition)
                    for topic, partition in self.offsets.find_expired(
                        group.group_id, base, now.wall_ms, self.config.offsets_retention_ms
                    )
                    if not group.is_subscribed_to(topic)
                ]
            records += [offset_tombstone(group.group_id, topic, partition) for topic, partition in expired]
            # A group may go only with its last offset, and not while a transaction may still commit one.
            if len(expired) == known and group.is_empty and group.group_id not in self.offsets.open_transactions:
                records += group.tombstones()
        timers = (((EXPIRE,), now.ms + self.config.offsets_retention_check_interval_ms),)
        if not records:
            return Decision(timers=timers)
        # Not atomic: every tombstone is valid by itself, and there may be more than one batch takes.
        event = LoggedEvent("offsets and groups expired", {"records": len(records)})
        return Decision(records=tuple(records), timers=timers, events=(event,), atomic=False)

    # Membership

    def join(self, request: JoinGroupRequest, caller: Caller, now: Now, reply_to: ReplyTo) -> Decision:
        """JoinGroup."""
        if not self.config.min_session_timeout_ms <= request.session_timeout_ms <= self.config.max_session_timeout_ms:
            return _reply(
                reply_to,
                JoinGroupResponse(error_code=ErrorCode.INVALID_SESSION_TIMEOUT, member_id=request.member_id),
            )
        if len(request.protocols) > 1:
            # One named twice would be counted twice among those that all members have in common.
            request.protocols = list({protocol.name: protocol for protocol in reversed(request.protocols)}.values())[
                ::-1
            ]
        # Most members have an id already, and a UUID is expensive.
        new_member_id = "" if request.member_id else self._make_member_id(request.group_instance_id or caller.client_id)
        group = self.groups.get(request.group_id)
        obsolete: list[CoordinatorRecord] = []
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return self._consumers.classic_join(group, request, caller, new_member_id, now, reply_to)
            # A consumer group without members makes way for a classic one; its offsets stay.
            obsolete = group.tombstones()
            group = None
        created = group is None
        if group is None:
            if request.member_id:
                return _reply(
                    reply_to, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id)
                )
            group = ClassicGroup(request.group_id, now.wall_ms)
        if not isinstance(group, ClassicGroup):
            return _reply(reply_to, JoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        builder = ClassicDecisionBuilder(self.config, now)
        joining.join(builder, group, request, caller, new_member_id, reply_to)
        if created and (group.members or group.pending_members):
            self._new_groups[request.group_id] = group
            # The record is what puts the group into `groups`, when it is replayed; Kafka writes it for the same reason.
            builder.records += obsolete
            builder.records.append(empty_record(ClassicGroup(request.group_id), 0, now.wall_ms))
        return builder.build()

    def _make_member_id(self, owner: str) -> str:
        # Of a long name of a client or an instance its beginning: with the rest no text could hold the id.
        return f"{owner[:OWNER_CHARS_MAX]}-{self._new_id()}"

    def sync(self, request: SyncGroupRequest | syncing.FollowerSync, now: Now, reply_to: ReplyTo) -> Decision:
        """SyncGroup."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            return syncing.sync(self.config, group, request, now, reply_to)
        if isinstance(group, ConsumerGroup):
            return self._consumers.classic_sync(group, request, now, reply_to)
        return _reply(reply_to, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))

    def heartbeat(self, request: HeartbeatRequest, now: Now, reply_to: ReplyTo) -> Decision:
        """Heartbeat."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._consumers.classic_heartbeat(group, request, now, reply_to)
        if not isinstance(group, ClassicGroup):
            return _reply(reply_to, HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        builder = ClassicDecisionBuilder(self.config, now)
        builder.reply(reply_to, HeartbeatResponse(error_code=syncing.heartbeat(builder, group, request)))
        return builder.build()

    def leave(self, request: LeaveGroupRequest, now: Now, reply_to: ReplyTo) -> Decision:
        """LeaveGroup, every version in the form of v3: a list of members."""
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._consumers.classic_leave(group, request, now, reply_to)
        if not isinstance(group, ClassicGroup):
            unknown = [
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=ErrorCode.UNKNOWN_MEMBER_ID,
                )
                for identity in request.members
            ]
            return _reply(reply_to, LeaveGroupResponse(members=unknown))
        builder = ClassicDecisionBuilder(self.config, now)
        builder.reply(reply_to, leaving.leave(builder, group, request))
        return builder.build()

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, now: Now, reply_to: ReplyTo
    ) -> Decision:
        """ConsumerGroupHeartbeat. KlammError when it is refused."""
        # From v1 on the client generates its member id (KIP-1082).
        if not request.member_id and caller.version == 0 and request.member_epoch == 0:
            request.member_id = self._new_id()
        return self._consumers.heartbeat(request, caller, now, reply_to)

    # Offsets

    def commit_offsets(self, commit: OffsetCommit, version: int, now: Now, reply_to: ReplyTo) -> Decision:
        """OffsetCommit, answered with CommitCodes. KlammError when the whole commit is refused."""
        check, timers = self._check_commit(commit, version, now)
        records, codes = offset_requests.commit(self.config, commit, now.wall_ms, check)
        return Decision(tuple(records), ((reply_to, codes),), timers)

    def _check_commit(self, commit: OffsetCommit, version: int, now: Now) -> tuple[CheckPartition | None, Timers]:
        """Raise KlammError unless the member may commit; a commit also restarts the session of a classic member."""
        group_id, generation, member_id, instance_id, _, _ = commit
        group = self.groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise offset_requests.unknown_group(generation, version)
            return None, ()
        check = group.check_offset_commit(member_id, instance_id, generation, transactional=False, version=version)
        # A commit counts as a heartbeat, as in Kafka.
        if isinstance(group, ClassicGroup) and group.state in (STABLE, PREPARING_REBALANCE):
            member = group.members[member_id]
            return check, (((SESSION, group_id, member_id), now.ms + member.session_timeout_ms),)
        return check, ()

    def commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, version: int, now: Now, reply_to: ReplyTo
    ) -> Decision:
        """TxnOffsetCommit: the offsets count when the producer's transaction is committed."""
        group = self.groups.get(request.group_id)
        check: CheckPartition | None = None
        if group is not None:
            try:
                check = group.check_offset_commit(
                    request.member_id,
                    request.group_instance_id,
                    request.generation_id,
                    transactional=True,
                    version=version,
                )
            except KlammError as error:
                if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                    raise KlammError(ErrorCode.ILLEGAL_GENERATION, str(error)) from error
                raise
        elif request.generation_id >= 0:
            raise KlammError(ErrorCode.ILLEGAL_GENERATION)
        # TxnOffsetCommit has names only. The id keeps a topic that is created again from inheriting the offset.
        names = self.image.topics.by_name
        topic_ids = {t.name: bytes(names[t.name].id) for t in request.topics if t.name in names}
        records, response = offset_requests.commit_in_transaction(self.config, request, topic_ids, now.wall_ms, check)
        return Decision(
            records=tuple(records),
            replies=((reply_to, response),),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        )

    def fetch_offsets(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int,
        wanted: Sequence[offset_requests.WantedTopic] | None,
        reply_to: ReplyTo,
        *,
        require_stable: bool,
    ) -> Decision:
        """OffsetFetch for one group; an unknown group has no offsets, which is no error."""
        group = self.groups.get(group_id)
        if group is not None:
            group.check_offset_fetch(member_id, member_epoch)
        response = offset_requests.fetch(
            self.offsets, group_id, wanted, known=group is not None, require_stable=require_stable
        )
        return _reply(reply_to, response)

    def delete_offsets(self, request: OffsetDeleteRequest, reply_to: ReplyTo) -> Decision:
        """OffsetDelete; KlammError when the whole request is refused."""
        group = self.groups.get(request.group_id)
        if group is None:
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.check_offset_delete()
        records, response = offset_requests.delete(self.offsets, group, request)
        return Decision(records=tuple(records), replies=((reply_to, response),))

    # Administration

    def describe(self, group_ids: Sequence[str], version: int, reply_to: ReplyTo) -> Decision:
        """DescribeGroups: a list of DescribedGroup."""
        return _reply(
            reply_to, [listing.describe_group(self.groups.get(group_id), group_id, version) for group_id in group_ids]
        )

    def describe_consumer_groups(self, group_ids: Sequence[str], reply_to: ReplyTo) -> Decision:
        """ConsumerGroupDescribe: a list of DescribedGroup."""
        return _reply(reply_to, self._consumers.describe(group_ids))

    def list_groups(self, states: Iterable[str], types: Iterable[str], reply_to: ReplyTo) -> Decision:
        """ListGroups: a list of ListedGroup."""
        return _reply(reply_to, listing.list_groups(self.groups.values(), states, types))

    def delete_groups(self, group_ids: Sequence[str], reply_to: ReplyTo) -> Decision:
        """DeleteGroups: a list of DeletableGroupResult."""
        records, results = listing.delete_groups(self.groups, self.offsets, group_ids)
        gone = [result.group_id for result in results if not result.error_code]
        events = (LoggedEvent("groups deleted", {"groups": ",".join(gone)}),) if gone else ()
        return Decision(records=tuple(records), replies=((reply_to, results),), events=events)

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        self.offsets.check()
        for group_id, group in self.groups.items():
            assert group_id == group.group_id
            if isinstance(group, ClassicGroup | ConsumerGroup):
                group.check()
        assert self.offsets.committed.keys() <= self.groups.keys(), "offsets without a group"


def _reply(reply_to: ReplyTo, response: object) -> Decision:
    return Decision(replies=((reply_to, response),))
