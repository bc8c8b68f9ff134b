"""Members of a consumer group that still use the classic protocol: joins, syncs, heartbeats and leaves.

A join does what a heartbeat does for other members: it carries subscription and owned partitions, and the member takes
one step of its reconciliation. No join waits for other members: it is answered at once, and the sync returns the
assignment. When there is another step to take, the classic heartbeat is answered with REBALANCE_IN_PROGRESS.
"""

from dataclasses import replace

from klamm.coordinator.groups.classic.joining import MEMBER_ID_REQUIRED_SINCE
from klamm.coordinator.groups.classic.syncing import FollowerSync
from klamm.coordinator.groups.consumer.classic_protocol import by_id, read_subscription, write_assignment
from klamm.coordinator.groups.consumer.config import MigrationPolicy
from klamm.coordinator.groups.consumer.consumer_decision import ConsumerDecisionBuilder
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.leaving import remove
from klamm.coordinator.groups.consumer.member import ConsumerMember, MemberState
from klamm.coordinator.groups.consumer.member_update import replace_static, update_member
from klamm.coordinator.groups.consumer.migration import downgrade, may_downgrade
from klamm.coordinator.groups.group import Caller
from klamm.model.errors import ErrorCode, KlammError, RemoteProtocolError
from klamm.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from klamm.protocol.messages.group_records import ClassicMemberMetadata, ClassicProtocol
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def join(
    builder: ConsumerDecisionBuilder,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    caller: Caller,
    new_member_id: str,
) -> JoinGroupResponse:
    """Let a classic member join or rejoin; KlammError when it is refused."""
    builder.may_describe = caller.may_describe
    subscription = _check_join(builder, group, request)
    instance_id = request.group_instance_id
    if not request.member_id and instance_id is None and caller.version >= MEMBER_ID_REQUIRED_SINCE:
        # The id is not stored, unlike in a classic group: no join of this group waits for pending members.
        return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=new_member_id)
    member_id = request.member_id or new_member_id
    holder: ConsumerMember | None = None
    if instance_id is None:
        before = group.members.get(member_id, ConsumerMember(member_id))
    elif request.member_id:
        before = group.find_member(member_id, instance_id)
    else:
        holder = group.static_member(instance_id)
        if holder is not None and may_downgrade(builder, group, {holder.member_id}, joining=1):
            joining = replace(holder, member_id=member_id)
            return _join_downgraded(builder, group, holder, _updated_member(joining, request, subscription, caller))
        before = replace_static(builder, group, holder, member_id) if holder is not None else ConsumerMember(member_id)
    after = _updated_member(before, request, subscription, caller)
    update = update_member(
        builder,
        group,
        before,
        after,
        by_id(subscription.owned_partitions, builder.topology),
        replaced=holder.member_id if holder is not None else None,
        # A classic member gets an assignment only by a join, so a delayed target would cost it a second one.
        at_once=True,
    )
    member = update.member
    builder.cancel_rejoin_timer(group, member.member_id)
    builder.start_session_timer(group, member)
    builder.start_sync_timer(group, member)
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.member_epoch,
        protocol_type=group.protocol_type_name,
        protocol_name=member.classic_protocols[0][0],
    )


def _check_join(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: JoinGroupRequest
) -> ConsumerProtocolSubscription:
    if builder.config.consumer.migration_policy is MigrationPolicy.DISABLED:
        text = f"{group.group_id} is a consumer group: group.consumer.migration.policy does not allow classic members"
        raise KlammError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
    known = request.member_id in group.members or request.group_instance_id in group.static_members
    if len(group.members) >= builder.config.consumer.max_size and not known:
        raise KlammError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    names = [protocol.name for protocol in request.protocols]
    if not names or not group.supports_classic(request.protocol_type, names):
        text = f"the classic members of {group.group_id} have none of {names} in common"
        raise KlammError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
    try:
        return read_subscription(bytes(request.protocols[0].metadata))
    except RemoteProtocolError as error:
        raise KlammError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _updated_member(
    member: ConsumerMember, request: JoinGroupRequest, subscription: ConsumerProtocolSubscription, caller: Caller
) -> ConsumerMember:
    return replace(
        member,
        instance_id=request.group_instance_id if request.group_instance_id is not None else member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=(
            # JoinGroup v0 has no rebalance timeout.
            request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else request.session_timeout_ms
        ),
        subscribed_topic_names=frozenset(subscription.topics),
        # Classic clients match patterns themselves and send names.
        subscribed_topic_regex="",
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=protocol.name, metadata=bytes(protocol.metadata)) for protocol in request.protocols
            ],
        ),
    )


def _join_downgraded(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, holder: ConsumerMember, joining: ConsumerMember
) -> JoinGroupResponse:
    """Downgrade the group: a classic member replaces the last member of the consumer protocol."""
    classic = downgrade(builder, group, {holder.member_id}, f"member {joining.member_id} joined", joining)
    member = classic.members[joining.member_id]
    response = JoinGroupResponse(
        member_id=member.member_id,
        generation_id=classic.generation_id,
        protocol_type=classic.protocol_type,
        protocol_name=classic.protocol_name,
        leader=classic.leader_id or "",
    )
    if classic.is_leader(member.member_id):
        # KIP-814: the leader gets the members but must not assign, since all keep what they hold.
        response.skip_assignment = True
        response.members = [
            JoinGroupResponseMember(
                member_id=other.member_id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(classic.protocol_name) or b"",
            )
            for other in classic.members.values()
        ]
    return response


def sync(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: SyncGroupRequest | FollowerSync
) -> SyncGroupResponse:
    """Return the assignment that the member's last join resulted in."""
    member = _classic(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    protocol, metadata = member.classic_protocols[0]
    if request.protocol_type not in (None, group.protocol_type_name) or request.protocol_name not in (None, protocol):
        raise KlammError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the protocol of {member.member_id} is {protocol}")
    # The target has moved on since the join; another join gets the newer assignment.
    if group.target_epoch > member.member_epoch and member.state != MemberState.UNREVOKED_PARTITIONS:
        builder.start_rejoin_timer(group, member)
        return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    builder.cancel_sync_timer(group, member.member_id)
    builder.start_session_timer(group, member)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(member.assigned, builder.topology, metadata),
    )


def heartbeat(builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResponse:
    """Extend the session of a classic member; REBALANCE_IN_PROGRESS makes it rejoin when it can take another step."""
    member = _classic(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    builder.start_session_timer(group, member)
    if (
        member.member_epoch < group.group_epoch
        or member.state == MemberState.UNREVOKED_PARTITIONS
        or (member.state == MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        or _topics_changed(builder, group)
    ):
        builder.start_rejoin_timer(group, member)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return HeartbeatResponse()


def _topics_changed(builder: ConsumerDecisionBuilder, group: ConsumerGroup) -> bool:
    """Return whether subscribed topics have changed; classic heartbeats check it, since there may be no others."""
    image = builder.topology.image
    if group.checked_image is image:
        return False
    topics = frozenset().union(*(group.topics_of(member) for member in group.members.values()))
    if builder.topology.metadata_hash(topics) != group.metadata_hash:
        return True
    if not group.resolved:
        builder.mark_topics_checked(group)
    return False


def leave(builder: ConsumerDecisionBuilder, group: ConsumerGroup, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members that leave or that an administrator removes; static ones may be named by instance id alone."""
    gone: dict[str, ConsumerMember] = {}
    responses = []
    for identity in request.members:
        response = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        try:
            if identity.group_instance_id is not None and not identity.member_id:
                holder = group.static_member(identity.group_instance_id)
                member = group.find_member(holder.member_id if holder is not None else "", identity.group_instance_id)
            else:
                member = group.find_member(identity.member_id, identity.group_instance_id)
            gone[member.member_id] = member
        except KlammError as error:
            response.error_code = error.code
        responses.append(response)
    why = next((identity.reason for identity in request.members if identity.reason), None)
    names = ", ".join(gone)
    remove(builder, group, list(gone.values()), f"members left: {names}" + (f" ({why})" if why else ""))
    return LeaveGroupResponse(members=responses)


def _classic(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    member = group.find_member(member_id, instance_id)
    if not member.uses_classic_protocol:
        raise KlammError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
    return member


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if generation_id != member.member_epoch:
        raise KlammError(ErrorCode.ILLEGAL_GENERATION, f"the generation of {member.member_id} is {member.member_epoch}")
