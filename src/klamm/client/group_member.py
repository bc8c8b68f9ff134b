"""A member of a classic group as its coordinator sees it: an id, a generation, and four requests.

Group protocols of any type are built on it: consumers share partitions (`consumer.classic_protocol`), schema registries
elect the one that writes. Who gets what is the caller's part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.core.routing import ADMIN
from klamm.client.errors import error_for
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

# A join and a sync wait for the slowest member, which has the rebalance timeout to rejoin.
_REBALANCE_GRACE_S = 5.0


class CoordinatedMember:
    """Sends the requests of one member; the caller retries, and decides when to join again."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        protocol_type: str,
        *,
        session_ms: int,
        rebalance_ms: int,
        instance_id: str | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._protocol_type = protocol_type
        self._session_ms = session_ms
        self._rebalance_ms = rebalance_ms
        self._instance_id = instance_id
        self.member_id = ""
        self.generation = -1

    def forget(self) -> None:
        """Join as a new member the next time."""
        self.member_id, self.generation = "", -1

    async def join(self, protocols: Iterable[tuple[str, bytes]]) -> Any:
        """Join with the member's metadata by protocol name; waits for all members.

        MEMBER_ID_REQUIRED gives a new member its id (KIP-394): join again at once.
        """
        connection = await self._coordinator.connection()
        request = JoinGroupRequest(
            group_id=self._coordinator.group_id,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=self._protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )
        joined = await connection.request(request, timeout_s=self._rebalance_ms / 1000 + _REBALANCE_GRACE_S)
        if joined.error_code:
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
            raise error_for(joined.error_code, f"joining {self._coordinator.group_id}")
        self.member_id, self.generation = joined.member_id, joined.generation_id
        return joined

    async def sync(self, protocol_name: str | None, assignments: Mapping[str, bytes]) -> bytes:
        """Send the assignments if this member leads, and return its own; waits for the leader."""
        connection = await self._coordinator.connection()
        request = SyncGroupRequest(
            group_id=self._coordinator.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=self._protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in assignments.items()
            ],
        )
        synced = await connection.request(request, timeout_s=self._rebalance_ms / 1000 + _REBALANCE_GRACE_S)
        if synced.error_code:
            raise error_for(synced.error_code, f"joining {self._coordinator.group_id}")
        return bytes(synced.assignment)

    async def heartbeat(self) -> int:
        """Send a sign of life; returns the error code of the response."""
        connection = await self._coordinator.connection()
        response = await connection.request(
            HeartbeatRequest(
                group_id=self._coordinator.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self._instance_id,
            ),
            timeout_s=self._session_ms / 1000,
        )
        return int(response.error_code)

    async def leave(self, reason: str) -> None:
        """Leave the group; without a member id there is nothing to leave."""
        member_id = self.member_id
        self.forget()
        if not member_id:
            return
        # A cancelled JoinGroup may still wait at the broker and block the GROUP connection.
        connection = await self._coordinator.connection(ADMIN)
        identity = MemberIdentity(member_id=member_id, group_instance_id=self._instance_id, reason=reason)
        request = LeaveGroupRequest(group_id=self._coordinator.group_id, member_id=member_id, members=[identity])
        await connection.request(request)
