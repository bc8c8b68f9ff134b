"""The consumer groups of a shard: every request, record and deadline that concerns them comes in here."""

from collections.abc import Sequence
from typing import Any

from klamm.coordinator.core.shard import CoordinatorRecord, Decision, Now, ReplyTo, record_type
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.syncing import FollowerSync
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.consumer import classic_members, leaving
from klamm.coordinator.groups.consumer.consumer_decision import ConsumerDecisionBuilder
from klamm.coordinator.groups.consumer.description import describe
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.heartbeat import JOIN_EPOCH, check_request, heartbeat
from klamm.coordinator.groups.consumer.migration import reply_to_waiting_members, upgrade
from klamm.coordinator.groups.consumer.pattern import Patterns
from klamm.coordinator.groups.consumer.records import GROUP_METADATA, decode
from klamm.coordinator.groups.consumer.topology import Topology
from klamm.coordinator.groups.group import Caller, Group
from klamm.metadata.image import MetadataImage
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.consumer_group_describe import DescribedGroup
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class ConsumerGroups:
    """The consumer groups among the shard's groups, with the cluster's topics and compiled patterns."""

    def __init__(self, config: GroupConfig, groups: dict[str, Group]) -> None:
        self._config = config
        self._groups = groups
        self._topology = Topology()
        self._patterns = Patterns()

    def set_config(self, config: GroupConfig) -> None:
        """Use new settings from now on."""
        self._config = config

    def update(self, image: MetadataImage) -> None:
        """Take a new image; the next heartbeat of a member compares its group with it."""
        self._topology.update(image)

    def _builder(self, now: Now) -> ConsumerDecisionBuilder:
        return ConsumerDecisionBuilder(self._config, self._topology, self._patterns, now)

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of a consumer group."""
        key, value = decode(record)
        group = self._groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            # A classic group here is one that only has offsets, or one whose tombstone was compacted away.
            group = self._groups[key.group_id] = ConsumerGroup(key.group_id)
        # The tombstone of the group record is written last, after those of members and targets.
        if value is None and record_type(record.key) == GROUP_METADATA:
            del self._groups[key.group_id]
        else:
            group.replay(key, value)

    # Life of the shard

    def on_loaded(self, now: Now) -> Decision:
        """Start the timers of all members."""
        builder = self._builder(now)
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                leaving.on_loaded(builder, group)
        return builder.build()

    def on_timer(self, group: ConsumerGroup, kind: str, member_id: str, now: Now) -> Decision:
        """Remove a member that missed a deadline."""
        builder = self._builder(now)
        leaving.on_timer(builder, group, kind, member_id)
        return builder.build()

    # The new protocol

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, now: Now, reply_to: ReplyTo
    ) -> Decision:
        """ConsumerGroupHeartbeat. KlammError when it is refused; nothing has changed then."""
        check_request(request, caller.version, self._config.consumer.assignors)
        builder = self._builder(now)
        group = self._groups.get(request.group_id)
        if request.member_epoch < JOIN_EPOCH:
            builder.reply(reply_to, leaving.leave(builder, self._find_consumer_group(request.group_id), request))
        elif request.member_epoch > JOIN_EPOCH and isinstance(group, ClassicGroup):
            # Kafka answers GROUP_ID_NOT_FOUND, which is fatal to a consumer that was paused while its group was
            # downgraded. With UNKNOWN_MEMBER_ID it rejoins, which upgrades the group again.
            text = f"{request.group_id} is a classic group now, and {request.member_id} is no member of it"
            raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        elif request.member_epoch > JOIN_EPOCH or isinstance(group, ConsumerGroup):
            existing = self._find_consumer_group(request.group_id)
            builder.reply(reply_to, heartbeat(builder, existing, request, caller))
            self._check_size(builder, existing)
        elif isinstance(group, ClassicGroup) and not group.is_empty:
            upgraded = upgrade(builder, group)
            builder.reply(reply_to, heartbeat(builder, upgraded, request, caller))
            self._check_size(builder, upgraded)
            # Last, because it changes the classic group: nothing may be refused after it.
            reply_to_waiting_members(builder, group)
        else:
            if group is not None:
                # A classic group without members is replaced; its offsets stay.
                builder.records += group.tombstones()
            new = ConsumerGroup(request.group_id)
            builder.reply(reply_to, heartbeat(builder, new, request, caller))
            self._check_size(builder, new)
        return builder.build()

    def _check_size(self, builder: ConsumerDecisionBuilder, group: ConsumerGroup) -> None:
        """Refuse a decision larger than a batch: a failed append would reload the shard and all its groups."""
        size = sum(len(record.key) + len(record.value or b"") + 20 for record in builder.records)
        if size > self._config.record_bytes_max:
            raise KlammError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{group.group_id} would need {size} bytes in one batch")

    def _find_consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "not a consumer group"
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is {what}.")
        return group

    def describe(self, group_ids: Sequence[str]) -> list[DescribedGroup]:
        """ConsumerGroupDescribe, for the groups of this shard."""
        groups = []
        for group_id in group_ids:
            try:
                groups.append(
                    describe(self._find_consumer_group(group_id), self._topology, self._config.consumer.assignors)
                )
            except KlammError as error:
                groups.append(DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error)))
        return groups

    # Members that still use the classic protocol

    def classic_join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        caller: Caller,
        new_member_id: str,
        now: Now,
        reply_to: ReplyTo,
    ) -> Decision:
        """JoinGroup in a consumer group that has members."""
        builder = self._builder(now)
        try:
            response = classic_members.join(builder, group, request, caller, new_member_id)
            self._check_size(builder, group)
        except KlammError as error:
            return _reply(reply_to, JoinGroupResponse(error_code=error.code, member_id=request.member_id))
        builder.reply(reply_to, response)
        return builder.build()

    def classic_sync(
        self, group: ConsumerGroup, request: SyncGroupRequest | FollowerSync, now: Now, reply_to: ReplyTo
    ) -> Decision:
        """SyncGroup in a consumer group."""
        builder = self._builder(now)
        try:
            builder.reply(reply_to, classic_members.sync(builder, group, request))
        except KlammError as error:
            return _reply(reply_to, SyncGroupResponse(error_code=error.code))
        return builder.build()

    def classic_heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Now, reply_to: ReplyTo
    ) -> Decision:
        """Heartbeat in a consumer group."""
        builder = self._builder(now)
        try:
            builder.reply(reply_to, classic_members.heartbeat(builder, group, request))
        except KlammError as error:
            return _reply(reply_to, HeartbeatResponse(error_code=error.code))
        return builder.build()

    def classic_leave(self, group: ConsumerGroup, request: LeaveGroupRequest, now: Now, reply_to: ReplyTo) -> Decision:
        """LeaveGroup in a consumer group."""
        builder = self._builder(now)
        builder.reply(reply_to, classic_members.leave(builder, group, request))
        return builder.build()


def _reply(reply_to: ReplyTo, response: Any) -> Decision:
    return Decision(replies=((reply_to, response),))
