"""What members of all kinds of groups do: find the coordinator, read what they were given, commit where they stand."""

from abc import abstractmethod

from klamm.model.errors import CorruptBatch, ErrorCode
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
from simulation.client import GONE, Client
from simulation.cluster import SimCluster
from simulation.consumers import SimPartitionReader
from simulation.ledger import Ledger

STALE = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
)
"""The coordinator does not take the caller for a member, or not for one of this generation."""


class GroupMember(Client):
    """One member: stays in its group, reads what it is given, commits after reading. It may be killed."""

    killable = True

    def __init__(self, cluster: SimCluster, ledger: Ledger, name: str, group: str, topic: str) -> None:
        super().__init__(cluster, name)
        self.ledger = ledger
        self.group = group
        self.topic = topic
        self.assigned: set[int] = set()
        self.owned: dict[int, SimPartitionReader] = {}
        """Partitions it was given and has found its position in."""
        self.member_id = ""
        self.epoch = 0
        """Of the member, or the generation of its group."""
        self.node = -1
        """The coordinator."""
        self.left = False

    @property
    def identity(self) -> str:
        """This membership; a member that begins again is another one."""
        return f"{self.name}/{self.member_id}"

    @property
    def done(self) -> bool:
        """Whether it has left the group."""
        return self.left

    def kill(self) -> None:
        super().kill()
        self.assigned, self.owned = set(), {}

    @abstractmethod
    def rejoin(self) -> None:
        """Forget the membership."""

    @abstractmethod
    async def keep_membership(self) -> None:
        """Join, or tell the coordinator that this member lives."""

    async def run(self) -> None:
        self.rejoin()
        self.left = False
        self.node = await self.coordinator(0, self.group)
        await self.retry(lambda: self.refresh(self.topic))
        while not self.stopping:
            try:
                for index in sorted(self.assigned):
                    if index in self.owned:
                        await self._poll(index)
                    elif index in self.assigned:
                        await self._take(index)
                await self.keep_membership()
            except GONE:
                await self.pause()
                self.node = await self.coordinator(0, self.group)
            await self.pause(0.2)
        self.left = True

    def give(self, indexes: set[int]) -> None:
        """The coordinator says what this member is to read from now on."""
        for index in sorted(indexes - self.assigned):
            self.ledger.give(self.group, (self.topic, index), self.identity, self.epoch)
        self.assigned = set(indexes)
        self.owned = {index: reader for index, reader in self.owned.items() if index in indexes}

    def find_contested(self) -> str:
        """What of its partitions others were given meanwhile."""
        for index in sorted(self.assigned):
            owner = self.ledger.owner(self.group, (self.topic, index))
            if owner not in ("", self.identity):
                return f"{self.topic}-{index}, which {owner} was given"
        return ""

    def check_ownership(self, contested: str) -> None:
        """The coordinator took a heartbeat that claimed what others had been given before."""
        if contested:
            self.ledger.violate(f"12: {self.identity} is a member in epoch {self.epoch} and owns {contested}")

    async def _take(self, index: int) -> None:
        """Begin where the group stands."""
        place = (self.topic, index)
        promised = self.ledger.group_commits.get((self.group, place), -1)
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=self.group,
                    member_id=self.member_id,
                    member_epoch=self.epoch,
                    topics=[OffsetFetchRequestTopics(name=self.topic, partition_indexes=[index])],
                )
            ],
            require_stable=True,
        )
        response = await self.ask(self.node, request, 9)
        group = response.groups[0]
        code = ErrorCode(group.error_code or (group.topics[0].partitions[0].error_code if group.topics else 0))
        if code == ErrorCode.NONE:
            offset = group.topics[0].partitions[0].committed_offset
            self.ledger.group_position(self.group, place, offset, promised)
            reader = self.owned[index] = SimPartitionReader(self.topic, index, committed_only=False)
            reader.position = max(offset, 0)
        elif code in STALE:
            self.rejoin()
        else:
            await self.pause()
            self.node = await self.coordinator(0, self.group)

    async def _poll(self, index: int) -> None:
        reader = self.owned[index]
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
        try:
            records = reader.take(answer)
        except CorruptBatch as error:
            self.ledger.record_damaged(leader, self.name, error)
            return
        for offset, value in records:
            self.ledger.read((self.topic, index), offset, value, self.name, committed_only=False)
        if reader.position > before:
            await self._commit(index, reader)

    async def _commit(self, index: int, reader: SimPartitionReader) -> None:
        place = (self.topic, index)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name=self.topic,
                    partitions=[OffsetCommitRequestPartition(partition_index=index, committed_offset=reader.position)],
                )
            ],
        )
        owner = self.ledger.owner(self.group, place)
        response = await self.ask(self.node, request, 9)
        code = ErrorCode(response.topics[0].partitions[0].error_code)
        if code == ErrorCode.NONE:
            if owner != self.identity:
                self.ledger.violate(
                    f"13: {self.name} committed {self.topic}-{index}@{reader.position} although {owner} had taken over"
                )
            self.ledger.group_commit(self.group, place, reader.position)
        elif code in STALE:
            self.rejoin()
