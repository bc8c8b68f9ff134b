"""Membership in the group of registries: joins, votes as the group's leader, and reports who leads the registry.

Writes stop before this member joins a rebalance and go on when its result is there. A rebalance ends when all members
have joined, so no member writes while another one takes over, also where the other is not fenced by transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from klamm.client.client_settings import consumer_settings
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.errors import KafkaError, error_for
from klamm.client.group_member import CoordinatedMember
from klamm.model.errors import ErrorCode, ProtocolError
from klamm.registry.store.election import (
    PROTOCOL,
    PROTOCOL_TYPE,
    ElectionResult,
    RegistryIdentity,
    decode_result,
    elect,
)
from klamm.telemetry import get_logger

SESSION_MS: Final = 6000
"""The shortest that brokers allow by default: changes wait so long after a leader has died. session.timeout.ms of the
client settings changes it."""
_LONGER_SESSION_MS: Final = 10_000
"""As Confluent's registry has it; for brokers whose group.min.session.timeout.ms is larger than the default."""
REBALANCE_MS: Final = 30_000
_HEARTBEAT_S: Final = 1.0
"""A third of what consumers have: members notice a rebalance by a heartbeat, and changes wait for it."""
_LEAVE_S: Final = 5.0
_FAILED_PAUSE_S: Final = 2.0
_LOST: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)

_log = get_logger("registry")


class ElectionListener(Protocol):
    """What an election changes."""

    def is_leading(self) -> bool:
        """Whether this registry leads at the moment."""

    def stop_writing(self) -> Awaitable[None]:
        """Let the write in progress end, and begin no other until `follow`."""

    def follow(self, leader: RegistryIdentity | None, *, own: bool) -> Awaitable[None]:
        """Use a new leader; None when there is none, `own` when it is this registry."""


class RegistryElection:
    """One member; runs on the event loop it was started on."""

    def __init__(
        self, client: Mapping[str, Any], group_id: str, identity: RegistryIdentity, listener: ElectionListener
    ) -> None:
        self._client = client
        self._session_ms = int(client.get("session.timeout.ms", SESSION_MS))
        self._may_lengthen = "session.timeout.ms" not in client
        self._group_id = group_id
        self._identity = identity
        self._listener = listener
        self._task: asyncio.Task[None] | None = None
        self._cluster: ClusterClient | None = None
        self._member: CoordinatedMember | None = None
        self._wake = asyncio.Event()
        self._rejoin = False

    async def start(self) -> None:
        """Join in the background."""
        self._cluster = ClusterClient(consumer_settings(self._client, {}))
        await self._cluster.start()
        self._task = asyncio.create_task(self._run(), name="klamm registry election")

    def request_rejoin(self) -> None:
        """Start a new rebalance: this registry cannot lead at the moment, or was fenced."""
        self._rejoin = True
        self._wake.set()

    def check_now(self) -> None:
        """Send the next heartbeat at once: the leader does not answer, so the group may be rebalancing."""
        self._wake.set()

    async def stop(self) -> None:
        """Leave the group, so that another member is elected at once."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        with suppress(KafkaError, TimeoutError, ProtocolError):
            async with asyncio.timeout(_LEAVE_S):
                if self._member is not None:
                    await self._member.leave("the registry was stopped")
        if self._cluster is not None:
            await self._cluster.close()

    async def _run(self) -> None:
        assert self._cluster is not None
        coordinator = GroupCoordinator(self._cluster, self._group_id)
        self._member = self._make_member(coordinator)
        backoff = self._cluster.backoff()
        while True:
            try:
                self._rejoin = False
                result = await self._join(self._member)
                backoff = self._cluster.backoff()
                await self._take(result, self._member)
                await self._keep_alive(self._member)
                continue
            except (KafkaError, ProtocolError) as error:
                code = error.code if isinstance(error, KafkaError) else None
                if isinstance(error, KafkaError):
                    coordinator.check_moved(error)
                if code is ErrorCode.MEMBER_ID_REQUIRED:
                    continue
                if code is ErrorCode.INVALID_SESSION_TIMEOUT and self._may_lengthen:
                    self._may_lengthen = False
                    self._session_ms = _LONGER_SESSION_MS
                    self._member = self._make_member(coordinator)
                    continue
                if code in _LOST:
                    self._member.forget()
                if code is not ErrorCode.REBALANCE_IN_PROGRESS:
                    _log.warning("group not joined", group=self._group_id, error=error)
                    # Out of the group this member does not learn of another leader; the next join begins anew. A write
                    # in progress ends first: another leader fences it, and its callers are forwarded to that one.
                    await self._listener.stop_writing()
                    await self._listener.follow(None, own=False)
            await asyncio.sleep(backoff.next())

    def _make_member(self, coordinator: GroupCoordinator) -> CoordinatedMember:
        return CoordinatedMember(coordinator, PROTOCOL_TYPE, session_ms=self._session_ms, rebalance_ms=REBALANCE_MS)

    async def _join(self, member: CoordinatedMember) -> ElectionResult:
        await self._listener.stop_writing()
        identity = self._identity._replace(leading=self._listener.is_leading())
        joined = await member.join([(PROTOCOL, identity.encode())])
        assignments: dict[str, bytes] = {}
        if joined.leader == joined.member_id:
            assignments = elect({other.member_id: bytes(other.metadata) for other in joined.members})
        return decode_result(await member.sync(joined.protocol_name, assignments))

    async def _take(self, result: ElectionResult, member: CoordinatedMember) -> None:
        if result.error is not None:
            _log.error("no leader elected", group=self._group_id, reason=result.error)
        own = result.member_id == member.member_id
        leader = result.leader.url if result.leader else None
        _log.info("leader elected", leader=leader, own=own, generation=member.generation)
        await self._listener.follow(result.leader, own=own)

    async def _keep_alive(self, member: CoordinatedMember) -> None:
        """Send heartbeats until the group rebalances; raises when this member is not in it any more."""
        loop = asyncio.get_running_loop()
        alive = loop.time()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _HEARTBEAT_S)
            self._wake.clear()
            if self._rejoin:
                # A leader that cannot write would be elected again at once.
                await asyncio.sleep(_FAILED_PAUSE_S)
                return
            try:
                number = await member.heartbeat()
            except (KafkaError, ProtocolError):
                # The coordinator may be restarting; after the session timeout another member may be elected.
                if (loop.time() - alive) * 1000 > self._session_ms:
                    raise
                continue
            if number == ErrorCode.REBALANCE_IN_PROGRESS:
                return
            if number:
                raise error_for(number, f"heartbeat in {self._group_id}")
            alive = loop.time()
