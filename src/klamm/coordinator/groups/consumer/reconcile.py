"""A member's next step towards its target: revoke, wait, take.

    STABLE                 the target has moved on                       compare again
    UNREVOKED_PARTITIONS   the member no longer names what it must give  compare again
    UNRELEASED_PARTITIONS  every heartbeat                               compare again
    any                    it still has what the target does not give it -> UNREVOKED_PARTITIONS, keeps its epoch
                           what it should get is held by another member  -> UNRELEASED_PARTITIONS at the target's epoch
                           nothing is missing                            -> STABLE at the target's epoch

A partition is assigned only when no member holds it, and it is held until its member confirms that it is revoked: no
two members ever have it at once, however late their heartbeats are.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from klamm.coordinator.groups.assignors import MemberAssignment
from klamm.coordinator.groups.consumer.member import ConsumerMember, Held, MemberState, merge
from klamm.model.errors import ErrorCode, KlammError

Owned = Iterable[tuple[bytes, Iterable[int]]] | None
"""The partitions a member reports to own, (topic id, partitions); None when the request leaves them out: no change."""

_NOTHING: frozenset[int] = frozenset()


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: MemberAssignment,
    is_free: Callable[[bytes, int], bool],
    owned: Owned,
    *,
    unsubscribed: Collection[bytes] = (),
) -> ConsumerMember:
    """The member after its next step; the same object when it cannot take one.

    `is_free` returns whether no member holds a partition. `unsubscribed` are topics it has just unsubscribed from:
    it revokes them at once, even while the next target is not computed yet.
    """
    reported = None if owned is None else {(topic, number) for topic, numbers in owned for number in numbers}
    if member.state == MemberState.STABLE and member.member_epoch == target_epoch:
        return _revoke_unsubscribed(member, unsubscribed, reported)
    if member.state == MemberState.UNREVOKED_PARTITIONS and _still_owns(reported, member.pending_revocation):
        return _revoke_unsubscribed(member, unsubscribed, reported)
    if member.state == MemberState.UNKNOWN:
        # Only a member that owns nothing can begin again from a state that is not understood.
        if reported is None or reported:
            raise KlammError(ErrorCode.FENCED_MEMBER_EPOCH, "the state of the member is unknown here: it must rejoin")
        return _compare(member, target_epoch, target_epoch, target, is_free, reported)
    return _compare(member, member.member_epoch, target_epoch, target, is_free, reported)


def _still_owns(reported: set[tuple[bytes, int]] | None, revoked: Held) -> bool:
    if reported is None:
        return True
    return any((topic, number) in reported for topic, numbers in revoked.items() for number in numbers)


def _revoke_unsubscribed(
    member: ConsumerMember, topics: Collection[bytes], reported: set[tuple[bytes, int]] | None
) -> ConsumerMember:
    dropped = {topic: member.assigned[topic] for topic in topics if topic in member.assigned}
    if not dropped:
        return member
    kept = {topic: numbers for topic, numbers in member.assigned.items() if topic not in dropped}
    revoked = merge(member.pending_revocation, dropped)
    if _still_owns(reported, revoked):
        return member.at_epoch(
            member.member_epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=revoked
        )
    return replace(member, assigned=kept)


def _compare(
    member: ConsumerMember,
    member_epoch: int,
    target_epoch: int,
    target: MemberAssignment,
    is_free: Callable[[bytes, int], bool],
    reported: set[tuple[bytes, int]] | None,
) -> ConsumerMember:
    kept: dict[bytes, Mapping[int, int]] = {}
    revoked: dict[bytes, Mapping[int, int]] = {}
    for topic, numbers in member.assigned.items():
        wanted = target.get(topic, _NOTHING)
        stay = {number: epoch for number, epoch in numbers.items() if number in wanted}
        if stay:
            kept[topic] = numbers if len(stay) == len(numbers) else stay
        if len(stay) != len(numbers):
            revoked[topic] = {number: epoch for number, epoch in numbers.items() if number not in wanted}
    # The epoch stays until the revocation is confirmed, so that the member can still commit for these partitions.
    if revoked and _still_owns(reported, revoked):
        return member.at_epoch(
            member_epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, pending_revocation=revoked
        )
    waits = False
    taken: dict[bytes, dict[int, int]] = {}
    for topic, wanted in target.items():
        have = kept.get(topic, {})
        for number in sorted(wanted):
            if number in have:
                continue
            if is_free(topic, number):
                # The epoch from which on it may commit for the partition (KIP-1251).
                taken.setdefault(topic, {})[number] = target_epoch
            else:
                waits = True
    return member.at_epoch(
        target_epoch,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        assigned=merge(kept, taken),
        pending_revocation={},
    )
