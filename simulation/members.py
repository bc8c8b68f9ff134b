"""Members of the new group protocol (KIP-848): the coordinator assigns, members follow with their heartbeats."""

import uuid

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from simulation.client import LATER
from simulation.cluster import SimCluster
from simulation.groups import STALE, GroupMember
from simulation.ledger import Ledger

GROUP = "g"


class SimConsumerMember(GroupMember):
    """One member of a consumer group."""

    def __init__(self, cluster: SimCluster, ledger: Ledger, number: int, topic: str) -> None:
        super().__init__(cluster, ledger, f"member-{number}", GROUP, topic)

    def rejoin(self) -> None:
        """The next heartbeat joins, as a new member."""
        self.member_id = str(uuid.UUID(bytes=self.random.randbytes(16), version=4))
        self.epoch = 0
        self.assigned, self.owned = set(), {}

    async def keep_membership(self) -> None:
        """Beat, and take what is given."""
        topic_id = self.topic_ids.get(self.topic, bytes(16))
        joining = self.epoch == 0
        held = [TopicPartitions(topic_id=topic_id, partitions=sorted(self.assigned))] if self.assigned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=10_000 if joining else -1,
            subscribed_topic_names=[self.topic] if joining else None,
            topic_partitions=held,
        )
        contested = self.find_contested()
        response = await self.ask(self.node, request, 1)
        code = ErrorCode(response.error_code)
        if code in STALE:
            self.rejoin()
            return
        if code != ErrorCode.NONE:
            if code not in LATER:
                raise AssertionError(f"{self.name}: heartbeat refused with {code.name}: {response.error_message}")
            self.node = await self.coordinator(0, self.group)
            return
        self.check_ownership(contested)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.give({index for partition in response.assignment.topic_partitions for index in partition.partitions})
