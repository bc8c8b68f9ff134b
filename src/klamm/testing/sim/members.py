"""Members of a group as load: the new group protocol, positions committed as they read, now and then killed."""

import uuid

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from klamm.testing.sim.client import GONE, Client
from klamm.testing.sim.cluster import SimCluster
from klamm.testing.sim.consumers import Reader
from klamm.testing.sim.ledger import Ledger
from klamm.testing.sim.producers import LATER

GROUP = "g"
STALE = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH)


class Member(Client):
    """One member: beats, reads what it is given, commits after reading."""

    killable = True

    def __init__(self, cluster: SimCluster, ledger: Ledger, number: int, topic: str) -> None:
        super().__init__(cluster, f"member-{number}")
        self.ledger = ledger
        self.topic = topic
        self.owned: dict[int, Reader] = {}
        self._member_id = ""
        self._epoch = 0
        self._node = -1
        self.left = False

    @property
    def done(self) -> bool:
        """Whether it has left the group."""
        return self.left

    def kill(self) -> None:
        super().kill()
        self.owned = {}

    async def run(self) -> None:
        self._rejoin()
        self.left = False
        self._node = await self.coordinator(0, GROUP)
        await self.insist(lambda: self.refresh(self.topic))
        while not self.stopping:
            try:
                for index in list(self.owned):
                    await self._poll(index)
                await self._beat()
            except GONE:
                await self.pause()
                self._node = await self.coordinator(0, GROUP)
            await self.pause(0.2)
        self.left = True

    def _rejoin(self) -> None:
        self._member_id = str(uuid.UUID(bytes=self.random.randbytes(16), version=4))
        self._epoch = 0
        self.owned = {}

    async def _beat(self) -> None:
        topic_id = self.topic_ids.get(self.topic, bytes(16))
        joining = self._epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=10_000 if joining else -1,
            subscribed_topic_names=[self.topic] if joining else None,
            topic_partitions=[TopicPartitions(topic_id=topic_id, partitions=sorted(self.owned))] if self.owned else [],
        )
        response = await self.ask(self._node, request, 1)
        code = ErrorCode(response.error_code)
        if code in STALE:
            self._rejoin()
            return
        if code != ErrorCode.NONE:
            if code not in LATER:
                raise AssertionError(f"{self.name}: heartbeat refused with {code.name}: {response.error_message}")
            self._node = await self.coordinator(0, GROUP)
            return
        self._epoch = response.member_epoch
        if response.assignment is not None:
            given = {index for each in response.assignment.topic_partitions for index in each.partitions}
            self.owned = {index: reader for index, reader in self.owned.items() if index in given}
            for index in sorted(given - set(self.owned)):
                await self._take(index)

    async def _take(self, index: int) -> None:
        """Begin where the group stands."""
        place = (self.topic, index)
        self.ledger.owners[GROUP, place] = self.name + self._member_id
        promised = self.ledger.group_commits.get((GROUP, place), -1)
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=GROUP,
                    member_id=self._member_id,
                    member_epoch=self._epoch,
                    topics=[OffsetFetchRequestTopics(name=self.topic, partition_indexes=[index])],
                )
            ],
            require_stable=True,
        )
        while not self.stopping:
            response = await self.ask(self._node, request, 9)
            group = response.groups[0]
            code = ErrorCode(group.error_code or (group.topics[0].partitions[0].error_code if group.topics else 0))
            if code == ErrorCode.NONE:
                offset = group.topics[0].partitions[0].committed_offset
                self.ledger.group_position(GROUP, place, offset, promised)
                reader = self.owned[index] = Reader(self.topic, index, committed_only=False)
                reader.position = max(offset, 0)
                return
            if code in STALE:
                self._rejoin()
                return
            await self.pause()
            self._node = await self.coordinator(0, GROUP)

    async def _poll(self, index: int) -> None:
        reader = self.owned.get(index)
        if reader is None:
            return
        leader = await self.leader_of(self.topic, index)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic=self.topic,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            current_leader_epoch=self.epoch_of(self.topic, index),
                            fetch_offset=reader.position,
                            partition_max_bytes=1 << 16,
                        )
                    ],
                )
            ],
        )
        try:
            response = await self.ask(leader, request, 12)
        except GONE:
            self.forget_leader(self.topic, index)
            return
        answer = response.responses[0].partitions[0] if response.responses else None
        if answer is None or answer.error_code:
            self.forget_leader(self.topic, index)
            return
        before = reader.position
        for offset, value in reader.take(answer):
            self.ledger.read((self.topic, index), offset, value, self.name, committed_only=False)
        if reader.position > before:
            await self._commit(index, reader)

    async def _commit(self, index: int, reader: Reader) -> None:
        place = (self.topic, index)
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self._epoch,
            member_id=self._member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=self.topic,
                    partitions=[OffsetCommitRequestPartition(partition_index=index, committed_offset=reader.position)],
                )
            ],
        )
        owner = self.ledger.owners.get((GROUP, place))
        response = await self.ask(self._node, request, 9)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        if code == ErrorCode.NONE:
            if owner != self.name + self._member_id:
                self.ledger._violate(
                    f"13: {self.name} committed {self.topic}-{index}@{reader.position} although {owner} had taken over"
                )
            self.ledger.group_commit(GROUP, place, reader.position)
        elif code in STALE or code == ErrorCode.ILLEGAL_GENERATION:
            self._rejoin()
