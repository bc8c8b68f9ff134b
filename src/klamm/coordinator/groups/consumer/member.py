"""One member of a consumer group: identity, subscription, assigned partitions and those it still has to revoke."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from klamm.protocol.messages.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)

LEAVE_EPOCH: Final = -1
"""The epoch a member sends to leave for good."""
STATIC_LEAVE_EPOCH: Final = -2
"""The epoch a static member sends to leave for a while; it keeps its place and its partitions."""

_EMPTY: Mapping[Any, Any] = MappingProxyType({})

Held = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the member epoch at which it was assigned."""


def _no_partitions() -> Held:
    return _EMPTY


class MemberState(IntEnum):
    """A member's reconciliation state; numbers are those of the record.

    STABLE                 has what its epoch's target gives it
    UNREVOKED_PARTITIONS   has to revoke partitions and has not confirmed it
    UNRELEASED_PARTITIONS  waits for partitions that other members have not revoked
    UNKNOWN                a state of a later version; the member has to rejoin
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":  # noqa: ARG003 - whatever it is, it is unknown
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member at one moment; never changed, only replaced."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    """Accepted once more when the response with the new epoch may have been lost."""
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str = ""
    server_assignor: str | None = None
    assigned: Held = field(default_factory=_no_partitions)
    pending_revocation: Held = field(default_factory=_no_partitions)
    classic: ClassicMemberMetadata | None = None
    """Set while it uses the classic protocol."""

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether it joins and syncs rather than sending the new heartbeats."""
        return self.classic is not None

    @property
    def classic_protocols(self) -> tuple[tuple[str, bytes], ...]:
        """What a classic member offers, best first."""
        offered = self.classic.supported_protocols if self.classic is not None else ()
        return tuple((protocol.name, protocol.metadata) for protocol in offered)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether nothing is left to do for this epoch."""
        return self.state == MemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """Since which epoch it has a partition, if it has it or is still giving it back."""
        epoch = self.assigned.get(topic_id, _EMPTY).get(partition)
        return epoch if epoch is not None else self.pending_revocation.get(topic_id, _EMPTY).get(partition)

    def at_epoch(self, member_epoch: int, **changes: Any) -> "ConsumerMember":
        """The member at an epoch, remembering the one before."""
        return replace(self, member_epoch=member_epoch, previous_member_epoch=self.member_epoch, **changes)

    # Records

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        """Return the record value of its identity and subscription."""
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.subscribed_topic_names),
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        """The member a record describes, with the assignment this one has."""
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=_classic(value),
        )

    def current_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        """Return the record value of its assignment."""
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_to_wire(self.assigned),
            partitions_pending_revocation=_to_wire(self.pending_revocation),
        )

    def with_current(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> "ConsumerMember":
        """The member with the assignment a record describes."""
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=_from_wire(value.assigned_partitions, value.member_epoch),
            pending_revocation=_from_wire(value.partitions_pending_revocation, value.member_epoch),
        )


def merge(first: Held, second: Held) -> Held:
    """Return both together; for a partition in both, the epoch of `second` counts."""
    if not second:
        return first
    merged = {topic: dict(partitions) for topic, partitions in first.items()}
    for topic, partitions in second.items():
        merged.setdefault(topic, {}).update(partitions)
    return merged


def _to_wire(held: Held) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(topic_id=topic, partitions=list(partitions), assignment_epochs=list(partitions.values()))
        for topic, partitions in sorted(held.items())
    ]


def _from_wire(topics: list[CurrentTopicPartitions], member_epoch: int) -> Held:
    held: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        # Written before KIP-1251: the epoch of the member stands for all its partitions.
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        held[bytes(topic.topic_id)] = dict(zip(topic.partitions, epochs, strict=False))
    return held


def _classic(value: ConsumerGroupMemberMetadataValue) -> ClassicMemberMetadata | None:
    """Return the classic metadata of a member, or None: a record without it decodes as one without protocols."""
    classic = value.classic_member_metadata
    return classic if classic is not None and classic.supported_protocols else None
