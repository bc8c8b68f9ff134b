"""Changes of the voter set (KIP-853): requests to add, remove and update voters, and a controller that joins by itself.

The rules are in `raft/core/voter_changes`. Here a request waits, within its timeout, until the core can accept it: a
new voter has to catch up first, and an earlier change has to be committed. The other half is this node's own
membership: a voter whose address has changed sends it to the leader, and with controller.quorum.auto.join.enable an
observing controller sends AddRaftVoter for itself. A fixed voter sends its details to every leader once, so that
kraft.version can be raised.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.net import PeerGone
from klamm.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from klamm.protocol.messages.add_raft_voter import Listener as AddListener
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from klamm.protocol.messages.update_raft_voter import (
    CurrentLeader,
    KRaftVersionFeature,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from klamm.protocol.messages.update_raft_voter import Listener as UpdateListener
from klamm.raft import RaftDriver
from klamm.raft.core.quorum import KRAFT_VERSIONS, ReplicaKey, Voter
from klamm.raft.core.voter_changes import UnknownVoterDetails
from klamm.server.controller.raft_transport import RaftTransport
from klamm.telemetry.log import get_logger

log = get_logger("raft")

TRY_AGAIN_SECONDS = 0.02
DEFAULT_TIMEOUT_MS = 30_000
LOOK_SECONDS = 1.0
"""How often a controller compares its voter record with its own address."""
INTRODUCTION_SECONDS = 5.0
"""How long a leader waits for the details of its fixed voters, which running ones send within LOOK_SECONDS."""
_RETRIED = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""Errors of a leader that is being elected, has resigned or is busy with another change."""


class _VoterListener(Protocol):
    name: str
    host: str
    port: int


class QuorumMembership:
    """Carries out voter changes on the leader, and keeps this node's own voter record up to date."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        driver: RaftDriver,
        transport: RaftTransport,
        *,
        cluster_id: str,
        endpoint: tuple[str, int] | None,
        auto_join: bool = False,
    ) -> None:
        self._loop = loop
        self._driver = driver
        self._transport = transport
        self._cluster_id = cluster_id
        self._endpoint = endpoint
        self._auto_join = auto_join
        self._task: asyncio.Task[None] | None = None
        self._introduced_to: tuple[int | None, int] = (None, -1)
        """The leader and its epoch that this fixed voter has sent its details to."""

    # Requests

    async def add(self, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        """Make an observer a voter."""

        def change() -> "asyncio.Future[int]":
            return self._driver.add_voter(self._voter(request.voter_id, request.voter_directory_id, request.listeners))

        timeout_ms = request.timeout_ms if request.timeout_ms > 0 else DEFAULT_TIMEOUT_MS
        error = await self._carry_out(request.cluster_id, change, timeout_ms, wait=request.ack_when_committed)
        if error is not None:
            return AddRaftVoterResponse(error_code=error.code, error_message=str(error))
        return AddRaftVoterResponse(error_message=None)

    async def remove(self, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        """Make a voter an observer."""
        key = ReplicaKey(request.voter_id, request.voter_directory_id)
        change = functools.partial(self._driver.remove_voter, key)
        error = await self._carry_out(request.cluster_id, change, DEFAULT_TIMEOUT_MS)
        if error is not None:
            return RemoveRaftVoterResponse(error_code=error.code, error_message=str(error))
        return RemoveRaftVoterResponse(error_message=None)

    async def update(self, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
        """Write the new address of a voter."""
        leader_id, epoch = self._driver.leader
        current = CurrentLeader(leader_id=-1 if leader_id is None else leader_id, leader_epoch=epoch)
        if leader_id is not None and (address := self._transport.endpoints().get(leader_id)) is not None:
            current.host, current.port = address
        if request.current_leader_epoch != epoch:
            older = request.current_leader_epoch < epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            return UpdateRaftVoterResponse(error_code=code, current_leader=current)

        def change() -> "asyncio.Future[int] | None":
            feature = request.kraft_version_feature
            versions = (feature.min_supported_version, feature.max_supported_version)
            voter = self._voter(request.voter_id, request.voter_directory_id, request.listeners, versions)
            return self._driver.update_voter(voter)

        error = await self._carry_out(request.cluster_id, change, DEFAULT_TIMEOUT_MS)
        code = ErrorCode.NONE if error is None else error.code
        return UpdateRaftVoterResponse(error_code=code, current_leader=current)

    async def raise_kraft_version(self, level: int, timeout_ms: int, *, validate_only: bool = False) -> None:
        """Raise kraft.version, which makes the voter set dynamic; KlammError says why the leader cannot."""
        config = self._driver.config
        host, port = self._endpoint or ("", 0)
        own = Voter(config.local, host, port, config.controller_listener)

        def change() -> "asyncio.Future[int] | None":
            return self._driver.raise_kraft_version(level, own, validate_only=validate_only)

        error = await self._carry_out(None, change, timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS)
        if error is not None:
            raise error

    async def _carry_out(
        self,
        cluster_id: str | None,
        change: "Callable[[], asyncio.Future[int] | None]",
        timeout_ms: int,
        *,
        wait: bool = True,
    ) -> KlammError | None:
        """Make a change as soon as the core accepts it; return why not after the timeout or when it never will."""
        if cluster_id is not None and cluster_id != self._cluster_id:
            return KlammError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {self._cluster_id}")
        began = self._loop.time()
        deadline = began + timeout_ms / 1000
        while True:
            try:
                done = change()
                break
            # Fixed voters that run send their details within LOOK_SECONDS, so this need not wait for the timeout.
            except UnknownVoterDetails as error:
                if self._loop.time() >= min(deadline, began + INTRODUCTION_SECONDS):
                    return error
            except KlammError as error:
                # REQUEST_TIMED_OUT is the core's response while a new voter catches up or another change is not
                # committed.
                if error.code is not ErrorCode.REQUEST_TIMED_OUT or self._loop.time() >= deadline:
                    return error
            await asyncio.sleep(TRY_AGAIN_SECONDS)
        # None: nothing had to be written.
        if done is None or not wait:
            if done is not None:
                done.add_done_callback(_retrieve_exception)
            return None
        try:
            async with asyncio.timeout_at(deadline):
                # The change is in the log: a cancelled request does not take it back.
                await asyncio.shield(done)
        except TimeoutError:
            return KlammError(ErrorCode.REQUEST_TIMED_OUT, "the change is in the log but not committed yet")
        except KlammError as error:
            return error
        return None

    def _voter(
        self,
        node_id: int,
        directory_id: bytes,
        listeners: Sequence[_VoterListener],
        kraft_versions: tuple[int, int] = KRAFT_VERSIONS,
    ) -> Voter:
        name = self._driver.config.controller_listener
        listener = next((listener for listener in listeners if listener.name == name), None)
        if listener is None:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"the voter has no listener {name}")
        return Voter(ReplicaKey(node_id, directory_id), listener.host, listener.port, listener.name, kraft_versions)

    # This node's own membership

    def start(self) -> None:
        """Begin to keep this controller's voter record up to date."""
        self._task = self._loop.create_task(self._keep_current(), name="quorum membership")

    async def stop(self) -> None:
        """Stop the updates."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_current(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            leader = self._driver.leader
            request = self._next_request()
            if request is None:
                continue
            try:
                response = await self._transport.ask_leader(request, timeout_ms=int(LOOK_SECONDS * 5000))
            except (KlammError, ProtocolError, PeerGone) as error:
                log.debug("voter request failed", request=type(request).__name__, reason=error)
                continue
            if isinstance(request, UpdateRaftVoterRequest) and response.error_code not in _RETRIED:
                self._introduced_to = leader
            if response.error_code not in (*_RETRIED, ErrorCode.NONE, ErrorCode.DUPLICATE_VOTER):
                code = ErrorCode(response.error_code)
                log.warning(
                    "voter request refused by the quorum leader", request=type(request).__name__, reason=code.name
                )

    def _next_request(self) -> Any:
        """Return the request this controller has to send to the leader; None when its voter record is right."""
        driver = self._driver
        leader_id, epoch = driver.leader
        core, local, name = driver.core, driver.config.local, driver.config.controller_listener
        # A broker has no controller listener, and never votes.
        if self._endpoint is None or leader_id is None:
            return None
        host, port = self._endpoint
        dynamic = core.voter_history.latest.dynamic
        if core.is_voter:
            if dynamic and core.voters.get(local.id) == Voter(local, host, port, name):
                return None
            if not dynamic and (leader_id == local.id or self._introduced_to == driver.leader):
                return None  # a fixed voter sends its details to each leader once
            return UpdateRaftVoterRequest(
                cluster_id=self._cluster_id,
                current_leader_epoch=epoch,
                voter_id=local.id,
                voter_directory_id=local.directory_id,
                listeners=[UpdateListener(name=name, host=host, port=port)],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=KRAFT_VERSIONS[0], max_supported_version=KRAFT_VERSIONS[1]
                ),
            )
        if not dynamic or not self._auto_join or leader_id == local.id or core.log.end_offset > core.high_watermark:
            return None
        former = core.voters.get(local.id)
        if former is not None:
            # A voter with this node's id and a lost directory is still listed: it is removed before this one joins.
            return RemoveRaftVoterRequest(
                cluster_id=self._cluster_id, voter_id=local.id, voter_directory_id=former.key.directory_id
            )
        return AddRaftVoterRequest(
            cluster_id=self._cluster_id,
            timeout_ms=int(LOOK_SECONDS * 1000),
            voter_id=local.id,
            voter_directory_id=local.directory_id,
            listeners=[AddListener(name=name, host=host, port=port)],
            # KIP-1186: the commit may need this node, which counts only once it fetches as a voter.
            ack_when_committed=False,
        )


def _retrieve_exception(future: "asyncio.Future[int]") -> None:
    """Keep asyncio from logging the exception of a change that no caller waits for."""
    if not future.cancelled():
        future.exception()
