"""ConsumerGroupDescribe: the description of a consumer group."""

from collections.abc import Iterable, Mapping

from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.member import ConsumerMember
from klamm.coordinator.groups.consumer.member_update import preferred_assignor
from klamm.coordinator.groups.consumer.topology import Topology
from klamm.protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    TopicPartitions,
)
from klamm.protocol.messages.consumer_group_describe import Member as DescribedMember

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


def describe(group: ConsumerGroup, topology: Topology, assignors: Iterable[str]) -> DescribedGroup:
    """Return the description of a group."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor(assignors, group.members.values()),
        members=[_member(group, member, topology) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topology: Topology) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex or None,
        assignment=_assignment(member.assigned, topology),
        target_assignment=_assignment(group.target_of(member.member_id), topology),
        member_type=CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    )


def _assignment(assigned: Mapping[bytes, Iterable[int]], topology: Topology) -> Assignment:
    topics = []
    for topic_id in sorted(assigned):
        name = topology.name(topic_id)
        if name is not None:
            topics.append(TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(assigned[topic_id])))
    return Assignment(topic_partitions=topics)
