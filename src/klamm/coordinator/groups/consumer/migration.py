"""Groups change their protocol while in use: classic to consumer, and back (`group.consumer.migration.policy`).

A classic group becomes a consumer group when the first member of the new protocol joins: its members, with what they
were assigned, become members that still use the classic protocol and rejoin one by one. It goes back
when the last member of the new protocol has left. Both ways it is one batch of records, and committed offsets stay.
"""

from collections.abc import Collection, Mapping

from klamm.coordinator.core.shard import CoordinatorRecord
from klamm.coordinator.groups.classic import classic_decision
from klamm.coordinator.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from klamm.coordinator.groups.classic.member import ClassicMember
from klamm.coordinator.groups.classic.records import group_record
from klamm.coordinator.groups.consumer.classic_protocol import read_assignment, read_subscription, write_assignment
from klamm.coordinator.groups.consumer.consumer_decision import ConsumerDecisionBuilder
from klamm.coordinator.groups.consumer.group import ConsumerGroup, partitions
from klamm.coordinator.groups.consumer.member import ConsumerMember, Held, merge
from klamm.coordinator.groups.consumer.records import (
    current_record,
    decode,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from klamm.model.errors import ErrorCode, KlammError, RemoteProtocolError
from klamm.protocol.messages.group_records import ClassicMemberMetadata, ClassicProtocol
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.protocol.messages.sync_group import SyncGroupResponse

DOWNGRADED = "downgraded"
"""The timer, due at once, that starts a rebalance in a group that was downgraded: (DOWNGRADED, group)."""


# Classic to consumer


def upgrade(builder: ConsumerDecisionBuilder, classic: ClassicGroup) -> ConsumerGroup:
    """The consumer group a classic one becomes; KlammError when it may not. Its records are in the builder.

    The classic group is left as it is, so that what follows may still be refused; `reply_to_waiting_members` ends it.
    """
    _check_upgrade(builder, classic)
    members = _as_consumer_members(builder, classic)
    epoch = classic.generation_id
    group_id = classic.group_id
    records: list[CoordinatorRecord] = [member_record(group_id, member) for member in members.values()]
    # Hash 0 stands for no topics, so the first heartbeat sees a change and bumps the epoch.
    records.append(epoch_record(group_id, epoch, 0))
    for member in members.values():
        target = {topic: frozenset(numbers) for topic, numbers in member.assigned.items()}
        records.append(target_record(group_id, member.member_id, target))
    # Timestamp 0, as if no target was ever computed: the assignment interval does not delay the next one.
    records.append(target_epoch_record(group_id, epoch, 0))
    records += [current_record(group_id, member) for member in members.values()]
    builder.records += classic.tombstones()
    builder.records += records
    group = ConsumerGroup(group_id)
    for record in records:
        group.replay(*decode(record))
    for member in members.values():
        builder.start_session_timer(group, member)
    builder.log_event("group upgraded to the consumer protocol", group=group_id, members=len(members), epoch=epoch)
    return group


def _check_upgrade(builder: ConsumerDecisionBuilder, classic: ClassicGroup) -> None:
    refusal = ""
    if not builder.config.consumer.migration_policy.allows_upgrade:
        refusal = "and group.consumer.migration.policy does not let it change"
    elif classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        refusal = f"of {classic.protocol_type or 'no'} protocol"
    elif len(classic.members) > builder.config.consumer.max_size:
        refusal = "with more members than group.consumer.max.size"
    if refusal:
        raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND, f"{classic.group_id} is a classic group {refusal}")


def _as_consumer_members(builder: ConsumerDecisionBuilder, classic: ClassicGroup) -> dict[str, ConsumerMember]:
    members: dict[str, ConsumerMember] = {}
    taken: set[tuple[bytes, int]] = set()
    for member in classic.members.values():
        metadata = member.metadata(classic.protocol_name)
        try:
            subscription = read_subscription(member.protocols[0][1] if metadata is None else metadata)
            assigned = read_assignment(member.assignment, builder.topology, classic.generation_id)
        except RemoteProtocolError as error:
            text = f"the metadata of {member.member_id} in the classic group {classic.group_id} cannot be decoded"
            raise KlammError(ErrorCode.GROUP_ID_NOT_FOUND, text) from error
        members[member.member_id] = ConsumerMember(
            member_id=member.member_id,
            member_epoch=classic.generation_id,
            previous_member_epoch=classic.generation_id,
            instance_id=member.instance_id,
            rack_id=subscription.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            subscribed_topic_names=frozenset(subscription.topics),
            assigned=_without(assigned, taken),
            classic=ClassicMemberMetadata(
                session_timeout_ms=member.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata) for name, metadata in member.protocols
                ],
            ),
        )
        # A partition has one owner in a consumer group; of duplicates the first member keeps it.
        taken.update(partitions(assigned))
    return members


def _without(assigned: Held, taken: Collection[tuple[bytes, int]]) -> Held:
    """Return what no other member has; classic leaders may have assigned a partition twice."""
    kept = {
        topic: {number: epoch for number, epoch in numbers.items() if (topic, number) not in taken}
        for topic, numbers in assigned.items()
    }
    return {topic: numbers for topic, numbers in kept.items() if numbers}


def reply_to_waiting_members(builder: ConsumerDecisionBuilder, classic: ClassicGroup) -> None:
    """Answer joins and syncs that wait in the classic group with REBALANCE_IN_PROGRESS; members rejoin the new one."""
    for member in classic.members.values():
        waiting = classic.take_join(member)
        if waiting is not None:
            response = JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            builder.reply(waiting, response)
        if member.awaiting_sync is not None:
            builder.reply(member.awaiting_sync, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            member.awaiting_sync = None
    for member_id in classic.pending_members:
        builder.cancel_timer((classic_decision.SESSION, classic.group_id, member_id))
    builder.cancel_timer((classic_decision.JOIN, classic.group_id))
    builder.cancel_timer((classic_decision.SYNC, classic.group_id))


# Consumer to classic


def may_downgrade(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, without: Collection[str], joining: int = 0
) -> bool:
    """Whether only classic members would be left without these and with so many new ones, and the group may go back."""
    left = [member for member_id, member in group.members.items() if member_id not in without]
    return (
        0 < len(left) + joining <= builder.config.max_size
        and all(member.uses_classic_protocol for member in left)
        and any(not group.members[member_id].uses_classic_protocol for member_id in without)
        and builder.config.consumer.migration_policy.allows_downgrade
        and sum(map(_stored_bytes, left)) < builder.config.record_bytes_max
    )


def _stored_bytes(member: ConsumerMember) -> int:
    """About how much of a classic group's one record a member takes; that record must not become too large."""
    words = sum(len(name) + len(metadata) for name, metadata in member.classic_protocols)
    # Estimates: ids and host of a member, a topic name, and a partition number.
    return 200 + words + sum(50 + 4 * len(numbers) for numbers in member.assigned.values())


def downgrade(
    builder: ConsumerDecisionBuilder,
    group: ConsumerGroup,
    without: Collection[str],
    reason: str,
    joining: ConsumerMember | None = None,
) -> ClassicGroup:
    """Let the group go on as a classic one, without some members; `joining` takes the place of the one in `without`.

    Returns the group as the records make it. Its assignments are what members hold, not their targets: the group may
    be upgraded again before they reach them. Unless all have reached their target, a rebalance starts at once.
    """
    members = {member_id: member for member_id, member in group.members.items() if member_id not in without}
    if joining is not None:
        members[joining.member_id] = joining
    classic = _as_classic(group, members, builder.now.wall_ms)
    assignments = {
        member_id: write_assignment(
            merge(member.assigned, member.pending_revocation),
            builder.topology,
            classic.members[member_id].metadata(classic.protocol_name) or b"",
        )
        for member_id, member in members.items()
    }
    for member_id in group.members:
        builder.cancel_member_timers(group, member_id)
    for member in classic.members.values():
        deadline_ms = builder.now.ms + member.session_timeout_ms
        builder.set_timer((classic_decision.SESSION, classic.group_id, member.member_id), deadline_ms)
    builder.records += group.tombstones()
    builder.records.append(group_record(classic, assignments, builder.now.wall_ms))
    if joining is None or not _is_reconciled(group):
        # By a timer, because the classic group exists only after these records are replayed.
        builder.set_timer((DOWNGRADED, group.group_id), builder.now.ms)
    builder.log_event(
        "group downgraded to the classic protocol", group=group.group_id, reason=reason, members=len(members)
    )
    return classic


def _is_reconciled(group: ConsumerGroup) -> bool:
    return group.group_epoch == group.target_epoch and all(
        member.is_reconciled_to(group.target_epoch) for member in group.members.values()
    )


def _as_classic(group: ConsumerGroup, members: Mapping[str, ConsumerMember], wall_ms: int) -> ClassicGroup:
    classic = ClassicGroup(group.group_id, wall_ms)
    for member in members.values():
        assert member.classic is not None
        classic.add(
            ClassicMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                protocols=member.classic_protocols,
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    # No member epoch is higher, so that generations never go back.
    classic.generation_id = group.group_epoch
    classic.protocol_name = classic.select_protocol()
    return classic
