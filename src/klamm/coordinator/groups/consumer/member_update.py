"""The update of a member: its subscription, the group epoch, the target assignment, its next reconciliation step.

Every heartbeat and every classic join goes through `update_member`. It adds records to the decision; the group changes
when they are replayed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from klamm.coordinator.groups.assignors import ASSIGNORS, MemberAssignment, MemberSpec
from klamm.coordinator.groups.consumer.consumer_decision import ConsumerDecisionBuilder
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import ConsumerMember
from klamm.coordinator.groups.consumer.pattern import InvalidPattern, Resolved
from klamm.coordinator.groups.consumer.reconcile import Owned, reconcile
from klamm.coordinator.groups.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    partition_metadata_tombstone,
    regex_record,
    target_epoch_record,
    target_record,
)
from klamm.model.errors import ErrorCode, KlammError


@dataclass(slots=True)
class _GroupDraft:
    """The group as it will be after the decision."""

    members: dict[str, ConsumerMember]
    target: dict[str, MemberAssignment]
    resolved: dict[str, Resolved]

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        resolved = self.resolved.get(member.subscribed_topic_regex) if member.subscribed_topic_regex else None
        return (
            member.subscribed_topic_names | resolved.topics if resolved is not None else member.subscribed_topic_names
        )

    def topics(self) -> frozenset[str]:
        sets = {self.topics_of(member) for member in self.members.values()}
        return frozenset().union(*sets)


@dataclass(frozen=True, slots=True)
class MemberUpdate:
    """The updated member, and in how many ms a delayed target is due."""

    member: ConsumerMember
    group_epoch: int
    target_epoch: int
    wait_ms: int | None = None
    matches_nothing: bool = False
    """Whether no topic the member subscribes to is known here."""


def update_member(
    builder: ConsumerDecisionBuilder,
    group: ConsumerGroup,
    before: ConsumerMember,
    after: ConsumerMember,
    owned: Owned,
    *,
    replaced: str | None = None,
    at_once: bool = False,
) -> MemberUpdate:
    """Replace member `before` by `after` and take its next reconciliation step.

    `replaced` is the member id whose place it takes (a static member that came back). A target is computed at most once
    per assignment interval, unless `at_once`.
    """
    # Nearly every heartbeat changes nothing and ends here.
    if (
        after == before
        and replaced is None
        and after.is_reconciled_to(group.target_epoch)
        and group.group_epoch == group.target_epoch
        and group.checked_image is builder.topology.image
        and after.member_id in group.members
    ):
        idle = not after.assigned and not builder.topology.ids(group.topics_of(after))
        return MemberUpdate(after, group.group_epoch, group.target_epoch, matches_nothing=idle)
    draft = _GroupDraft(dict(group.members), dict(group.target), dict(group.resolved))
    # The returning static member inherits the target, so it gets its partitions back without a rebalance.
    if replaced is not None:
        draft.members.pop(replaced, None)
        draft.target[after.member_id] = draft.target.pop(replaced, {})
    is_new = before.member_id not in draft.members and replaced is None
    draft.members[after.member_id] = after
    if is_new or after != before:
        builder.records.append(member_record(group.group_id, after))
    names_changed = after.subscribed_topic_names != before.subscribed_topic_names
    regex_changed = after.subscribed_topic_regex != before.subscribed_topic_regex
    patterns_changed = _resolve(builder, group, draft, before, after)
    reason = _reason(after, is_new=is_new, changed=names_changed or regex_changed)

    # KIP-848: any change of members, subscriptions or subscribed topics bumps the group epoch, and only then is a new
    # target computed; a member's own epoch follows once it has revoked what the target takes from it.
    group_epoch = group.group_epoch
    image_changed = group.checked_image is not builder.topology.image
    if reason or patterns_changed or image_changed:
        metadata_hash = builder.topology.metadata_hash(draft.topics())
        if not reason and (patterns_changed or metadata_hash != group.metadata_hash):
            reason = "subscribed topics changed"
        if reason:
            group_epoch += 1
            _bump(builder, group, group_epoch, metadata_hash, reason, len(draft.members))

    target_epoch, wait_ms = _retarget(builder, group, draft, group_epoch, at_once=at_once)
    gone: frozenset[bytes] = frozenset()
    if names_changed or regex_changed:
        gone = frozenset(after.assigned) - builder.topology.ids(draft.topics_of(after))
    # Partitions of the replaced member count as free: the same decision removes it.
    allowed_owners = (None, after.member_id, replaced)

    def is_free(topic: bytes, partition: int) -> bool:
        return group.owner(topic, partition) in allowed_owners

    reached = reconcile(
        after,
        target_epoch,
        draft.target.get(after.member_id, {}),
        is_free,
        owned,
        unsubscribed=gone,
    )
    if reached != after:
        builder.records.append(current_record(group.group_id, reached))
        builder.update_revocation_timer(group, reached)
    builder.mark_topics_checked(group)
    idle = not reached.assigned and not builder.topology.ids(draft.topics_of(after))
    return MemberUpdate(reached, group_epoch, target_epoch, wait_ms, matches_nothing=idle)


def _reason(member: ConsumerMember, *, is_new: bool, changed: bool) -> str:
    if is_new:
        return f"member {member.member_id} joined"
    return f"member {member.member_id} changed its subscription" if changed else ""


def _resolve(
    builder: ConsumerDecisionBuilder,
    group: ConsumerGroup,
    draft: _GroupDraft,
    before: ConsumerMember,
    after: ConsumerMember,
) -> bool:
    """Bring the patterns up to date; whether one matches other topics than before."""
    left, entered = before.subscribed_topic_regex, after.subscribed_topic_regex
    used = {member.subscribed_topic_regex for member in draft.members.values()} - {""}
    if left and left not in used and left in draft.resolved:
        del draft.resolved[left]
        builder.records.append(regex_record(group.group_id, left, None))
    to_resolve = used if group.checked_image is not builder.topology.image else {entered} - draft.resolved.keys() - {""}
    changed = False
    for regex in sorted(to_resolve):
        known = draft.resolved.get(regex)
        try:
            topics = builder.patterns.resolve(regex, builder.topology.topics)
        except InvalidPattern as error:
            if regex == entered and entered != left:
                raise KlammError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r} is not a valid pattern: {error}"
                ) from error
            continue  # accepted earlier: keep the topics it matched then
        # As in Kafka, by the rights of the member whose request resolves the pattern: members that share a pattern
        # share its topics. What a member may not read it cannot fetch either.
        if builder.may_describe is not None:
            topics = frozenset(filter(builder.may_describe, topics))
        if known is None or known.topics != topics:
            changed = True
            version = builder.topology.image.provenance.offset
            draft.resolved[regex] = Resolved(topics, version, builder.now.wall_ms)
            builder.records.append(regex_record(group.group_id, regex, draft.resolved[regex]))
    return changed


def _bump(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, epoch: int, metadata_hash: int, reason: str, members: int
) -> None:
    if group.has_partition_metadata:
        builder.records.append(partition_metadata_tombstone(group.group_id))
    builder.records.append(epoch_record(group.group_id, epoch, metadata_hash))
    builder.log_event("rebalance started", group=group.group_id, reason=reason, epoch=epoch, members=members)


def _retarget(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, draft: _GroupDraft, group_epoch: int, *, at_once: bool
) -> tuple[int, int | None]:
    """Compute a target if the group has moved on and it is time; the target's epoch, and how long to wait if not."""
    if group_epoch <= group.target_epoch:
        return group.target_epoch, None
    image = builder.topology.image
    own, cluster = image.group_values(group.group_id), image.broker_values(None)
    interval_ms = builder.config.consumer.assignment_interval_of(own, cluster)
    since_ms = builder.now.wall_ms - group.assignment_timestamp
    # Several changes within the interval share one target. A clock that went backwards must not delay it.
    if not at_once and group.assignment_timestamp and 0 <= since_ms < interval_ms:
        return group.target_epoch, interval_ms - since_ms
    known = draft.target
    draft.target = compute_target(builder, draft.members, known, draft.topics_of)
    # Only changed targets are written; the epoch record comes last, so that it covers complete targets.
    for member_id, assignment in draft.target.items():
        if member_id not in known or known[member_id] != assignment:
            builder.records.append(target_record(group.group_id, member_id, assignment))
    builder.records.append(target_epoch_record(group.group_id, group_epoch, builder.now.wall_ms))
    return group_epoch, None


def compute_target(
    builder: ConsumerDecisionBuilder,
    members: Mapping[str, ConsumerMember],
    known: Mapping[str, MemberAssignment],
    topics_of: Callable[[ConsumerMember], frozenset[str]],
) -> dict[str, MemberAssignment]:
    """Return the target of every member, by the assignor most of them prefer."""
    shared: dict[frozenset[str], frozenset[bytes]] = {}
    specs: dict[str, MemberSpec] = {}
    for member_id, member in members.items():
        names = topics_of(member)
        # Members of a group mostly share one subscription; it is looked up once.
        ids = shared.get(names)
        if ids is None:
            ids = shared[names] = builder.topology.ids(names)
        specs[member_id] = MemberSpec(ids, known.get(member_id, {}), member.instance_id, member.rack_id)
    assign = ASSIGNORS[preferred_assignor(builder.config.consumer.assignors, members.values())]
    return assign(specs, builder.topology.specs(frozenset().union(*shared)))


def preferred_assignor(configured: Iterable[str], members: Iterable[ConsumerMember]) -> str:
    """Return the assignor most members request; of equals, and without requests, the first one configured."""
    votes = dict.fromkeys(configured, 0)
    for member in members:
        if member.server_assignor in votes:
            votes[member.server_assignor] += 1
    # max returns the first of equals, and votes are in the order of the setting.
    return max(votes, key=votes.__getitem__)


def replace_static(
    builder: ConsumerDecisionBuilder, group: ConsumerGroup, old: ConsumerMember, new_id: str
) -> ConsumerMember:
    """Give a static member a new member id, with its subscription, target and partitions."""
    new = replace(old, member_id=new_id, member_epoch=0, previous_member_epoch=0)
    builder.records += member_tombstones(group.group_id, old.member_id)
    builder.records.append(member_record(group.group_id, new))
    builder.records.append(target_record(group.group_id, new_id, group.target_of(old.member_id)))
    builder.records.append(current_record(group.group_id, new))
    builder.cancel_member_timers(group, old.member_id)
    return new
