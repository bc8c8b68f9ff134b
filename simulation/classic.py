"""Members of the classic group protocol: join, one of them assigns, sync, heartbeat."""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from simulation.client import LATER
from simulation.cluster import SimCluster
from simulation.groups import STALE, GroupMember
from simulation.ledger import Ledger

GROUP = "classic"
SESSION_MS = 4_000
REBALANCE_MS = 6_000
JOIN_MS = 10_000
"""How long a member waits for its next generation."""
PROTOCOL = "round"
AGAIN = LATER | {ErrorCode.REBALANCE_IN_PROGRESS}


class SimClassicMember(GroupMember):
    """One member of a classic group; its leader deals partitions out in turn."""

    def __init__(self, cluster: SimCluster, ledger: Ledger, number: int, topic: str, partitions: int) -> None:
        super().__init__(cluster, ledger, f"classic-{number}", GROUP, topic)
        self._partitions = partitions
        self._joined = False
        self._dealt = 0
        """For how many partitions this leader has assigned."""

    def grow(self, partitions: int) -> None:
        """There are more partitions now."""
        self._partitions = partitions

    def rejoin(self) -> None:
        """Join under a new name."""
        self.member_id = ""
        self._give_up()

    def _give_up(self) -> None:
        self.epoch = -1
        self._joined = False
        self._dealt = 0
        self.assigned, self.owned = set(), {}

    async def keep_membership(self) -> None:
        """Join when this is no member of a generation; otherwise beat."""
        if self._dealt and self._dealt != self._partitions:
            self._give_up()
        if not self._joined:
            await self._join()
            return
        request = HeartbeatRequest(group_id=self.group, generation_id=self.epoch, member_id=self.member_id)
        contested = self.find_contested()
        code = ErrorCode((await self.ask(self.node, request, 4)).error_code)
        if code == ErrorCode.NONE:
            self.check_ownership(contested)
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._give_up()
        else:
            await self._handle_refusal(code)

    async def _handle_refusal(self, code: ErrorCode) -> None:
        if code in STALE:
            self.rejoin()
        elif code in AGAIN:
            self.node = await self.coordinator(0, self.group)
        else:
            raise AssertionError(f"{self.name} was refused with {code.name}")

    async def _join(self) -> None:
        subscription = b"\0\0" + encode(ConsumerProtocolSubscription(topics=[self.topic]), 0)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription)],
        )
        self._give_up()
        response = await self.ask(self.node, request, 9, timeout_ms=JOIN_MS)
        code = ErrorCode(response.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return
        if code != ErrorCode.NONE:
            await self._handle_refusal(code)
            return
        self.member_id, self.epoch = response.member_id, response.generation_id
        await self._sync(response)

    async def _sync(self, joined: Any) -> None:
        leads = joined.leader == self.member_id
        dealt = self._partitions
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.epoch,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=self._assign_in_turn(sorted(member.member_id for member in joined.members), dealt)
            if leads
            else [],
        )
        response = await self.ask(self.node, request, 5, timeout_ms=JOIN_MS)
        code = ErrorCode(response.error_code)
        if code != ErrorCode.NONE:
            await self._handle_refusal(code)
            return
        self._joined = True
        self._dealt = dealt if leads else 0
        assignment, _ = decode(ConsumerProtocolAssignment, 0, response.assignment, 2)
        self.give({index for partition in assignment.assigned_partitions for index in partition.partitions})

    def _assign_in_turn(self, members: list[str], count: int) -> list[SyncGroupRequestAssignment]:
        hands: dict[str, list[int]] = {member: [] for member in members}
        for index in range(count):
            hands[members[index % len(members)]].append(index)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=_assignment(self.topic, hand))
            for member, hand in hands.items()
        ]


def _assignment(topic: str, hand: list[int]) -> bytes:
    given = ConsumerProtocolAssignment(assigned_partitions=[TopicPartition(topic=topic, partitions=hand)])
    return b"\0\0" + encode(given, 0)
