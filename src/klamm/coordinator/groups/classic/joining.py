"""JoinGroup of classic groups: new members, rejoins, and static members that return."""

from klamm.coordinator.core.shard import ReplyTo
from klamm.coordinator.groups.classic.classic_decision import SESSION, ClassicDecisionBuilder
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.member import ClassicMember, Protocols
from klamm.coordinator.groups.classic.rebalance import (
    complete_if_all_joined,
    join_response,
    prepare_or_complete,
    prepare_rebalance,
)
from klamm.coordinator.groups.classic.records import group_record
from klamm.coordinator.groups.classic.state import COMPLETING_REBALANCE, EMPTY, PREPARING_REBALANCE, STABLE
from klamm.coordinator.groups.group import Caller
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.sync_group import SyncGroupResponse

MEMBER_ID_REQUIRED_SINCE = 4  # KIP-394
SKIP_ASSIGNMENT_SINCE = 9  # KIP-814


def join(
    builder: ClassicDecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    caller: Caller,
    new_member_id: str,
    reply_to: ReplyTo,
) -> None:
    """Let a member join.

    A refused join leaves the group as it was; only a full group also removes the refused member.
    """
    protocols: Protocols = tuple([(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols])
    if not _has_capacity(builder, group, request.member_id):
        # A pending member id that is refused would otherwise hold up the rebalance until its session expires.
        group.remove(request.member_id)
        builder.cancel_session_timer(group, request.member_id)
        builder.reply(reply_to, JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif not group.supports(request.protocol_type, protocols):
        code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        builder.reply(reply_to, JoinGroupResponse(error_code=code, member_id=request.member_id))
    elif request.member_id:
        _join_known(builder, group, request, protocols, caller, reply_to)
    elif request.group_instance_id is not None and request.group_instance_id in group.static_members:
        _replace_static(builder, group, request, protocols, caller, new_member_id, reply_to)
    elif request.group_instance_id is not None or caller.version < MEMBER_ID_REQUIRED_SINCE:
        _add(builder, group, request, protocols, caller, new_member_id, reply_to)
    else:
        # The client must have its id first: one that joins, gives up and joins again would otherwise be two members.
        group.pending_members.add(new_member_id)
        builder.set_timer((SESSION, group.group_id, new_member_id), builder.now.ms + request.session_timeout_ms)
        builder.reply(reply_to, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_member_id))


def _has_capacity(builder: ClassicDecisionBuilder, group: ClassicGroup, member_id: str) -> bool:
    """Return whether one more member fits. During a rebalance, members that joined first have priority."""
    limit = builder.config.max_size
    member = group.members.get(member_id)
    if group.state is EMPTY:
        return True
    if group.state is PREPARING_REBALANCE:
        # Counted by waiting joins: members that have not rejoined must not keep out those that have.
        return (member is not None and member.awaiting_join is not None) or group.awaiting_joins < limit
    return member is not None or len(group.members) < limit


def _join_known(
    builder: ClassicDecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    protocols: Protocols,
    caller: Caller,
    reply_to: ReplyTo,
) -> None:
    member_id = request.member_id
    # The second join of KIP-394: the client has adopted the id it was given.
    if member_id in group.pending_members and request.group_instance_id is None:
        _add(builder, group, request, protocols, caller, member_id, reply_to)
        return
    try:
        member = group.check_member(member_id, request.group_instance_id)
    except KlammError as error:
        builder.reply(reply_to, JoinGroupResponse(error_code=error.code, member_id=member_id))
        return
    unchanged = member.protocols == protocols
    if group.state is PREPARING_REBALANCE:
        _rejoin(builder, group, member, request, protocols, reply_to, "rejoined")
    elif group.state is COMPLETING_REBALANCE and unchanged:
        # The response may have been lost; the generation it announced is still the current one.
        builder.reply(reply_to, join_response(group, member))
    elif group.state is STABLE and group.is_leader(member_id):
        # The leader rejoins when something needs another assignment, such as new partitions.
        _rejoin(builder, group, member, request, protocols, reply_to, "rejoined (leader)")
    elif group.state is STABLE and unchanged:
        # A follower that repeats its join, after a lost response, needs no rebalance.
        builder.reply(reply_to, join_response(group, member))
    elif group.state in (STABLE, COMPLETING_REBALANCE):
        _rejoin(builder, group, member, request, protocols, reply_to, "rejoined with new metadata")
    else:
        builder.reply(reply_to, JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member_id))


def _rejoin(
    builder: ClassicDecisionBuilder,
    group: ClassicGroup,
    member: ClassicMember,
    request: JoinGroupRequest,
    protocols: Protocols,
    reply_to: ReplyTo,
    action: str,
) -> None:
    group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    _wait(builder, group, member, reply_to)
    prepare_or_complete(builder, group, f"member {member.member_id} {action}{_client_reason(request)}")


def _wait(builder: ClassicDecisionBuilder, group: ClassicGroup, member: ClassicMember, reply_to: ReplyTo) -> None:
    before = group.await_join(member, reply_to)
    if before is not None:
        # A retry replaces the first join, which is still answered: replies of a connection keep the order of requests.
        builder.reply(before, JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))


def _add(
    builder: ClassicDecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    protocols: Protocols,
    caller: Caller,
    member_id: str,
    reply_to: ReplyTo,
) -> None:
    member = ClassicMember(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=protocols,
        awaiting_join=reply_to,
        is_new=True,
    )
    # Each new member extends the initial delay, so that a whole deployment joins in one rebalance (KIP-134).
    if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    # Until its join is answered it cannot heartbeat, so its session timeout does not apply yet.
    builder.start_session_timer(group, member, builder.config.new_member_join_timeout_ms)
    prepare_or_complete(builder, group, f"member {member_id} joined{_client_reason(request)}")


def _replace_static(
    builder: ClassicDecisionBuilder,
    group: ClassicGroup,
    request: JoinGroupRequest,
    protocols: Protocols,
    caller: Caller,
    new_member_id: str,
    reply_to: ReplyTo,
) -> None:
    """Give the instance id to a static member that returned or was started twice; the older member is fenced."""
    instance_id = request.group_instance_id
    assert instance_id is not None
    old = group.members[group.static_members[instance_id]]
    old_id, old_leader = old.member_id, group.leader_id
    # The older member's waiting requests are answered first: FENCED_INSTANCE_ID stops its client (KIP-345).
    fenced = group.take_join(old)
    if fenced is not None:
        builder.reply(fenced, JoinGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID, member_id=old_id))
    if old.awaiting_sync is not None:
        builder.reply(old.awaiting_sync, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        old.awaiting_sync = None
    builder.cancel_session_timer(group, old_id)
    member = group.replace_static(instance_id, new_member_id)
    member.client_id, member.client_host = caller.client_id, caller.client_host
    group.update(member, protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    builder.start_session_timer(group, member)
    if group.state is STABLE:
        if group.select_protocol() == group.protocol_name:
            _reply_to_returned(builder, group, member, caller, old_leader, reply_to)
            return
        _wait(builder, group, member, reply_to)
        prepare_rebalance(
            builder, group, f"static member {instance_id} returned and changed the protocol{_client_reason(request)}"
        )
    elif group.state is COMPLETING_REBALANCE:
        # The leader may be assigning to the old member id just now.
        _wait(builder, group, member, reply_to)
        prepare_rebalance(
            builder, group, f"static member {instance_id} returned during a rebalance{_client_reason(request)}"
        )
    else:
        _wait(builder, group, member, reply_to)
        complete_if_all_joined(builder, group)


def _reply_to_returned(
    builder: ClassicDecisionBuilder,
    group: ClassicGroup,
    member: ClassicMember,
    caller: Caller,
    old_leader: str | None,
    reply_to: ReplyTo,
) -> None:
    """Answer a static member that returned with the same protocol: it keeps its assignment without a rebalance."""
    assignments = {other.member_id: other.assignment for other in group.members.values()}
    # The new member id must be durable: a coordinator that loads the old one would fence the returned member.
    builder.records.append(group_record(group, assignments, group.state_timestamp))
    leads = group.is_leader(member.member_id)
    if caller.version >= SKIP_ASSIGNMENT_SINCE:
        response = join_response(group, member)
        response.skip_assignment = leads
    else:
        # A client before KIP-814 that is named leader would assign again, so it is given the old leader id.
        response = join_response(group, member, with_members=False)
        response.leader = old_leader or ""
    builder.log_event(
        "static member returned", group=group.group_id, instance=member.instance_id, generation=group.generation_id
    )
    builder.reply(reply_to, response)


def _client_reason(request: JoinGroupRequest) -> str:
    """Return the reason the client gives, unless it only says that it rejoins with its new member id."""
    reason = request.reason
    return f" ({reason})" if reason and not (request.member_id and request.member_id in reason) else ""
