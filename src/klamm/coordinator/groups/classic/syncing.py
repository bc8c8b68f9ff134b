"""SyncGroup and Heartbeat of classic groups."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.coordinator.core.shard import Decision, Now, ReplyTo
from klamm.coordinator.groups.classic.classic_decision import SYNC, ClassicDecisionBuilder
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.rebalance import prepare_or_complete, reply_to_sync
from klamm.coordinator.groups.classic.records import group_record
from klamm.coordinator.groups.classic.state import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE
from klamm.coordinator.groups.config import GroupConfig
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse


class FollowerSync(NamedTuple):
    """A SyncGroup without assignments, as the compiled kernel reads it.

    Has the fields of SyncGroupRequest under the same names, so that both are decided alike, at a fraction of the cost
    of a message: every member but the leader sends one in each rebalance.
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Sequence[SyncGroupRequestAssignment] = ()


_WAIT: Final = Decision()


def sync(
    config: GroupConfig, group: ClassicGroup, request: SyncGroupRequest | FollowerSync, now: Now, reply_to: ReplyTo
) -> Decision:
    """Answer a member with its assignment, or let it wait until the leader has sent the assignments."""
    code = _check_sync(group, request)
    if code:
        return Decision(replies=((reply_to, SyncGroupResponse(error_code=code)),))
    member = group.members[request.member_id]
    group.pending_sync.discard(member.member_id)
    timers = () if group.pending_sync else (((SYNC, group.group_id), None),)
    # The assignment is stored: a late or repeated SyncGroup is answered from it.
    if group.state is STABLE:
        return Decision(replies=((reply_to, sync_response(group, member.assignment)),), timers=timers)
    superseded, member.awaiting_sync = member.awaiting_sync, reply_to
    if superseded is None and not group.is_leader(member.member_id):
        # Nearly every sync ends here, so it does without a builder.
        return Decision(timers=timers) if timers else _WAIT
    builder = ClassicDecisionBuilder(config, now)
    builder.timers.update(timers)
    if superseded is not None:
        builder.reply(superseded, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    if group.is_leader(member.member_id):
        _store_assignments(builder, group, {share.member_id: bytes(share.assignment) for share in request.assignments})
    return builder.build()


def _check_sync(group: ClassicGroup, request: SyncGroupRequest | FollowerSync) -> ErrorCode:
    # The order of these checks is Kafka's: clients react differently to each code.
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.state is EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    try:
        group.check_member(request.member_id, request.group_instance_id)
    except KlammError as error:
        return error.code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(requested: str | None, current: str | None) -> bool:
    # Clients name the protocol since v5 (KIP-559); older ones are not checked.
    return requested is not None and current is not None and requested != current


def _store_assignments(builder: ClassicDecisionBuilder, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    """Store the leader's assignments and answer waiting syncs. Replaying the record makes the group stable."""
    assert group.state is COMPLETING_REBALANCE
    record = group_record(group, assignments, builder.now.wall_ms)
    # Checked here because a failed append would reload the shard and disturb all its groups.
    size = len(record.value or b"")
    if size > builder.config.record_bytes_max:
        _refuse_assignments(
            builder, group, f"subscriptions and assignments of {size} bytes are more than the offsets topic takes"
        )
        return
    builder.records.append(record)
    builder.log_event(
        "rebalance completed",
        group=group.group_id,
        generation=group.generation_id,
        members=len(group.members),
        protocol=group.protocol_name,
    )
    for member in group.members.values():
        if reply_to_sync(builder, member, sync_response(group, assignments.get(member.member_id, b""))):
            builder.start_session_timer(group, member)


def _refuse_assignments(builder: ClassicDecisionBuilder, group: ClassicGroup, reason: str) -> None:
    """Fail waiting syncs and rebalance again: the leader's assignments are too large to store."""
    for member in group.members.values():
        if reply_to_sync(builder, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)):
            builder.start_session_timer(group, member)
    prepare_or_complete(builder, group, reason)


def sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """Return the response with an assignment of the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )


def heartbeat(builder: ClassicDecisionBuilder, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
    """Extend the session of a member; return REBALANCE_IN_PROGRESS when it has to rejoin."""
    if group.state is DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except KlammError as error:
        return error.code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    # Also during a rebalance: the member learns of it by this response and has its rebalance timeout to rejoin.
    builder.start_session_timer(group, member)
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING_REBALANCE else ErrorCode.NONE
