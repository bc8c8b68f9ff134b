"""Carries the quorum's words between nodes: raft's messages out over peers, other members' requests in from handlers.

A request that cannot be delivered is told to the driver, with the one fact that matters: whether the other process is
dead. Addresses are those of the voters, of leaders that answers have named, and of the bootstrap servers, which have
the ids -2, -3 and so on, as in Kafka.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.net import Peer, PeerGone, Peers
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from klamm.raft import RaftDriver
from klamm.raft.codec.wire import (
    IncomingRequest,
    TopLevelError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    reject_wrong_voter,
)
from klamm.raft.codec.wire import encode_error_response as refuse
from klamm.raft.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Message,
    Response,
    VoteRequest,
)
from klamm.raft.core.quorum import ReplicaKey, Voter
from klamm.telemetry.log import get_logger

log = get_logger("raft")

FIRST_BOOTSTRAP_ID = -2
RECONNECT_BACKOFF_MS = 10
RECONNECT_BACKOFF_MAX_MS = 200
ASK_AGAIN_SECONDS = 0.05
LOOK_AGAIN_SECONDS = 0.25
FORWARD_MS = 30_000
ADDRESSES_MAX = 10_000
"""Members whose addresses are remembered beside those of the voters."""
PENDING_MAX = 10_000
"""Requests of others that wait for the driver's answer."""

_REQUESTS = (VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchRequest, FetchSnapshotRequest)
_LEADS_NO_MORE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER)
"""The answers of one that did not do what was asked of a leader, or cannot know whether that still counts."""


def _as_asked(request: Any, answer: Any) -> Any:
    """An answer to a request that a former leader may have carried out: a voter that is gone is what was wanted."""
    if isinstance(request, RemoveRaftVoterRequest) and answer.error_code == ErrorCode.VOTER_NOT_FOUND:
        return RemoveRaftVoterResponse(error_message=None)
    return answer


def bootstrap_ids(count: int) -> tuple[int, ...]:
    """The ids bootstrap servers go by, whoever they turn out to be."""
    return tuple(range(FIRST_BOOTSTRAP_ID, FIRST_BOOTSTRAP_ID - count, -1))


class RaftTransport:
    """Raft's way to other nodes and theirs to it; lives on one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        cluster_id: str,
        *,
        listener: str,
        endpoint: tuple[str, int] | None,
        bootstrap: Sequence[tuple[str, int]] = (),
        request_timeout_ms: int = 2000,
    ) -> None:
        self.driver: RaftDriver
        self._loop = loop
        self._cluster_id = cluster_id
        self._listener = listener
        self._endpoint = endpoint
        """Where our own controller listener is reached; a node without one leads nothing."""
        self._bootstrap = dict(zip(bootstrap_ids(len(bootstrap)), bootstrap, strict=True))
        self._learned: dict[int, tuple[str, int]] = {}
        self._told: dict[int, tuple[tuple[str, int], Voter | None]] = {}
        """Where a leader said itself that it is, and how it stood among the voters then: it may have moved."""
        self._timeout_ms = request_timeout_ms
        self._peers = Peers(
            loop,
            client_id=f"raft-client-{node_id}",
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=request_timeout_ms,
            reconnect_backoff_ms=RECONNECT_BACKOFF_MS,
            reconnect_backoff_max_ms=RECONNECT_BACKOFF_MAX_MS,
        )
        self._asking: set[asyncio.Task[None]] = set()
        self._pending: dict[int, asyncio.Future[Response]] = {}
        self._numbers = itertools.count(1)
        self._complained: set[tuple[int, ErrorCode]] = set()
        self._closed = False

    def attach(self, driver: RaftDriver) -> None:
        """Deliver to `driver` what other members send; called once, before anything is served."""
        self.driver = driver

    # addresses

    def endpoints(self) -> Mapping[int, tuple[str, int]]:
        """Where members of the quorum are reached, as far as known."""
        found = dict(self._learned)
        for voter in self.driver.core.voters:
            known = self.address(voter.id)
            if known is not None:
                found[voter.id] = known
        if self._endpoint is not None:
            found[self.driver.config.node_id] = self._endpoint
        return found

    def address(self, node_id: int) -> tuple[str, int] | None:
        """Where a member is reached."""
        voter = self.driver.core.voters.get(node_id)
        told = self._told.get(node_id)
        if told is not None and told[1] == voter and self.driver.core.voter_history.latest.dynamic:
            return told[0]
        if voter is not None and voter.port:
            return voter.host, voter.port
        return self._learned.get(node_id) or self._bootstrap.get(node_id)

    def peer(self, node_id: int) -> Peer | None:
        """The connection to a member; None when nobody knows its address."""
        found = self.address(node_id)
        return None if found is None else self._peers.get(node_id, *found)

    def reachable(self) -> dict[str, str]:
        """Which members are wanted and which of them cannot be reached, for a log line."""
        wanted = {voter.id: f"{voter.id}@{voter.host}:{voter.port}" for voter in self.driver.core.voters}
        wanted |= {each: f"{host}:{port}" for each, (host, port) in self._bootstrap.items() if not wanted}
        wanted.pop(self.driver.config.node_id, None)
        missing = [text for each, text in wanted.items() if (peer := self.peer(each)) is None or not peer.connected]
        return {"members": ",".join(wanted.values()), "unreachable": ",".join(missing)}

    # outbound

    def send(self, message: Message) -> None:
        """Send without waiting: a request to its peer, a response to who asked."""
        if isinstance(message.body, _REQUESTS):
            if not self._closed:
                task = self._loop.create_task(self._ask(message), name=f"raft request to {message.destination}")
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            return
        waiting = self._pending.pop(message.correlation_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message.body)

    async def _ask(self, message: Message) -> None:
        node_id = message.destination
        peer = self.peer(node_id)
        if peer is None:
            self.driver.report_lost(message)
            return
        voter = self.driver.core.voters.get(node_id)
        key = voter.key if voter is not None else ReplicaKey(max(node_id, -1))
        request = encode_request(
            message.body,  # type: ignore[arg-type]
            self._cluster_id,
            key,
            self._listener,
            self._endpoint,
        )
        try:
            body, endpoints = decode_response(await peer.ask(request, timeout_ms=self._timeout_ms))
        except PeerGone as gone:
            self.driver.report_lost(message, refused=gone.refused)
            return
        except TopLevelError as refused:
            self._complain(node_id, refused.code)
            self.driver.report_lost(message)
            return
        except (KlammError, ProtocolError, OSError) as error:
            log.debug("a request of the quorum failed", peer=node_id, reason=error)
            self.driver.report_lost(message)
            return
        if len(self._learned) < ADDRESSES_MAX:
            self._learned.update({each: found for each, found in endpoints.items() if each >= 0})
        self.driver.receive(Message(node_id, message.source, message.correlation_id, body))

    def _complain(self, node_id: int, code: ErrorCode) -> None:
        """Once per peer and reason: a node of another cluster would fill the log."""
        if (node_id, code) not in self._complained:
            self._complained.add((node_id, code))
            log.warning("a member of the quorum refuses this node", peer=node_id, reason=code.name)

    async def ask_leader(self, request: Any, *, timeout_ms: int) -> Any:
        """The leader's answer to a request about the quorum, this node's own included; asks again until it is found.

        Goes over a connection of its own: what may take long must not hold up the replication behind it.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        reason: object = "the quorum has no leader"
        asked = False
        while (left := deadline - self._loop.time()) > 0:
            leader_id = self.driver.leader[0]
            found = None if leader_id is None else self.address(leader_id)
            if leader_id == self.driver.config.node_id:
                found = self._endpoint
            if leader_id is not None and found is not None:
                peer = self._peers.get(leader_id, *found, "admin")
                asking = self._loop.create_task(peer.ask(request, timeout_ms=int(left * 1000) + 1))
                try:
                    await self._wait_while_leading(asking, leader_id)
                    if asking.done():
                        answer = await asking
                        if getattr(answer, "error_code", 0) not in _LEADS_NO_MORE:
                            return _as_asked(request, answer) if asked else answer
                    asked = True
                    reason = f"{leader_id} no longer leads"
                except (PeerGone, KlammError) as error:
                    asked = True
                    reason = error
                finally:
                    asking.cancel()
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        raise KlammError(ErrorCode.REQUEST_TIMED_OUT, f"no leader of the quorum answered in {timeout_ms} ms: {reason}")

    async def _wait_while_leading(self, asking: "asyncio.Task[Any]", leader_id: int) -> None:
        """Until there is an answer, or somebody else leads: one that hangs is not waited for then."""
        while self.driver.leader[0] in (None, leader_id):
            done, _ = await asyncio.wait((asking,), timeout=LOOK_AGAIN_SECONDS)
            if done:
                return

    async def forward(self, request: Any, response: Callable[..., Any]) -> Any:
        """The leader's answer for a client, or a `response` that says why there is none."""
        try:
            return await self.ask_leader(request, timeout_ms=FORWARD_MS)
        except (KlammError, ProtocolError) as error:
            code = error.code if isinstance(error, KlammError) else ErrorCode.UNKNOWN_SERVER_ERROR
            return response(error_code=code, error_message=str(error))

    # inbound

    async def serve(self, request: Any) -> Any:
        """Answer a request of another member."""
        try:
            incoming = decode_request(request)
        except TopLevelError as refused:
            return refuse(request, refused.code)
        code = self._objection(incoming)
        if code is not ErrorCode.NONE:
            return refuse(request, code)
        if incoming.voter is not None and not incoming.voter.same_replica(self.driver.config.local):
            leader = self.driver.core.leadership
            return encode_response(reject_wrong_voter(incoming.body, leader.epoch, leader.leader_id), self.endpoints())
        if incoming.endpoint is not None and len(self._told) < ADDRESSES_MAX:
            self._told[incoming.source] = (incoming.endpoint, self.driver.core.voters.get(incoming.source))
        number = next(self._numbers)
        waiting: asyncio.Future[Response] = self._loop.create_future()
        self._pending[number] = waiting
        try:
            self.driver.receive(Message(incoming.source, self.driver.config.node_id, number, incoming.body))
            body = await waiting
        finally:
            self._pending.pop(number, None)
        return encode_response(body, self.endpoints())

    def _objection(self, incoming: IncomingRequest) -> ErrorCode:
        if self._closed or not self.driver.running:
            return ErrorCode.BROKER_NOT_AVAILABLE
        if incoming.cluster_id is not None and incoming.cluster_id != self._cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if len(self._pending) >= PENDING_MAX:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    async def close(self) -> None:
        """Neither ask nor answer any more."""
        self._closed = True
        waiting, self._pending = self._pending, {}
        for each in waiting.values():
            each.cancel()
        tasks = list(self._asking)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.close()
