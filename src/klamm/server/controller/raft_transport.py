"""Carries Raft's messages between nodes: outbound over peers, inbound from the handlers of other members' requests.

Requests that cannot be delivered are reported to the driver, with whether the connection was refused: then the other
process is dead. Addresses are those of the voters, of leaders named in responses, and of the bootstrap servers, which
have the ids -2, -3 and so on, as in Kafka.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from klamm.model.errors import ErrorCode, KlammError, ProtocolError
from klamm.net import OutboundSecurity, Peer, PeerGone, Peers
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
    RaftBeginQuorumEpochRequest,
    RaftEndQuorumEpochRequest,
    RaftFetchRequest,
    RaftFetchSnapshotRequest,
    RaftMessage,
    RaftResponse,
    RaftVoteRequest,
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
"""Limit of the addresses that are kept beside those of the voters."""
PENDING_MAX = 10_000
"""Limit of the requests of other members that wait for the driver."""

_REQUESTS = (
    RaftVoteRequest,
    RaftBeginQuorumEpochRequest,
    RaftEndQuorumEpochRequest,
    RaftFetchRequest,
    RaftFetchSnapshotRequest,
)
_NOT_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER)
"""Errors of a node that is not, or no longer, the leader; the change may still have been committed."""


def _accept_repeated(request: Any, response: Any) -> Any:
    """Return the response to a repeated request: that a voter is already removed is then a success."""
    if isinstance(request, RemoveRaftVoterRequest) and response.error_code == ErrorCode.VOTER_NOT_FOUND:
        return RemoveRaftVoterResponse(error_message=None)
    return response


def bootstrap_ids(count: int) -> tuple[int, ...]:
    """Return the placeholder ids of bootstrap servers, whose node ids are not known yet."""
    return tuple(range(FIRST_BOOTSTRAP_ID, FIRST_BOOTSTRAP_ID - count, -1))


class RaftTransport:
    """Sends Raft's messages to other nodes and receives theirs; lives on one event loop."""

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
        security: OutboundSecurity | None = None,
    ) -> None:
        self.driver: RaftDriver
        self.security = security
        """How controllers are connected to; None for a PLAINTEXT listener."""
        self._loop = loop
        self._cluster_id = cluster_id
        self._listener = listener
        self._endpoint = endpoint
        """The address of our own controller listener; a node without one cannot lead."""
        self._bootstrap = dict(zip(bootstrap_ids(len(bootstrap)), bootstrap, strict=True))
        self._learned: dict[int, tuple[str, int]] = {}
        self._announced: dict[int, tuple[tuple[str, int], Voter | None]] = {}
        """The address a leader announced itself, and its voter record at that time: it may have moved since."""
        self._timeout_ms = request_timeout_ms
        self._peers = Peers(
            loop,
            client_id=f"raft-client-{node_id}",
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=request_timeout_ms,
            reconnect_backoff_ms=RECONNECT_BACKOFF_MS,
            reconnect_backoff_max_ms=RECONNECT_BACKOFF_MAX_MS,
            security=security,
        )
        self._requests: set[asyncio.Task[None]] = set()
        self._pending: dict[int, asyncio.Future[RaftResponse]] = {}
        self._numbers = itertools.count(1)
        self._reported: set[tuple[int, ErrorCode]] = set()
        self._closed = False

    def attach(self, driver: RaftDriver) -> None:
        """Deliver to `driver` what other members send; called once, before anything is served."""
        self.driver = driver

    # Addresses

    def endpoints(self) -> Mapping[int, tuple[str, int]]:
        """Return the known addresses of members of the quorum, by node id."""
        addresses = dict(self._learned)
        for voter in self.driver.core.voters:
            address = self.address(voter.id)
            if address is not None:
                addresses[voter.id] = address
        if self._endpoint is not None:
            # Our own address comes last: it is right even where an old voter record says otherwise.
            addresses[self.driver.config.node_id] = self._endpoint
        return addresses

    def address(self, node_id: int) -> tuple[str, int] | None:
        """Return the address of a member; None when it is unknown."""
        voter = self.driver.core.voters.get(node_id)
        announced = self._announced.get(node_id)
        # An announcement is newer than the voter record it was made with; a changed record is newer than it.
        if announced is not None and announced[1] == voter and self.driver.core.voter_history.latest.dynamic:
            return announced[0]
        if voter is not None and voter.port:
            return voter.host, voter.port
        return self._learned.get(node_id) or self._bootstrap.get(node_id)

    def peer(self, node_id: int) -> Peer | None:
        """Return the connection to a member; None when its address is unknown."""
        address = self.address(node_id)
        return None if address is None else self._peers.get(node_id, *address)

    def reachable(self) -> dict[str, str]:
        """Return the members and those that are not connected, as fields of a log line."""
        members = {voter.id: f"{voter.id}@{voter.host}:{voter.port}" for voter in self.driver.core.voters}
        members |= {node_id: f"{host}:{port}" for node_id, (host, port) in self._bootstrap.items() if not members}
        members.pop(self.driver.config.node_id, None)
        unreachable = [
            text for node_id, text in members.items() if (peer := self.peer(node_id)) is None or not peer.connected
        ]
        return {"members": ",".join(members.values()), "unreachable": ",".join(unreachable)}

    # Outbound

    def send(self, message: RaftMessage) -> None:
        """Send without waiting: a request to its peer, a response to the handler that waits for it."""
        if isinstance(message.body, _REQUESTS):
            if not self._closed:
                task = self._loop.create_task(self._ask(message), name=f"raft request to {message.destination}")
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            return
        # The handler may have been cancelled with its connection.
        waiting = self._pending.pop(message.correlation_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message.body)

    async def _ask(self, message: RaftMessage) -> None:
        node_id = message.destination
        peer = self.peer(node_id)
        if peer is None:
            self.driver.report_lost(message)
            return
        voter = self.driver.core.voters.get(node_id)
        # The id of a bootstrap server is not known until it answers: -1 addresses any replica.
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
            # Refused means dead: a follower then starts an election without waiting for its fetch timeout.
            self.driver.report_lost(message, refused=gone.refused)
            return
        except TopLevelError as refused:
            self._report_refusal(node_id, refused.code)
            self.driver.report_lost(message)
            return
        except (KlammError, ProtocolError, OSError) as error:
            log.debug("raft request failed", peer=node_id, reason=error)
            self.driver.report_lost(message)
            return
        # Bounded: the addresses of responses are kept as long as the node runs.
        if len(self._learned) < ADDRESSES_MAX:
            self._learned.update({node_id: address for node_id, address in endpoints.items() if node_id >= 0})
        self.driver.receive(RaftMessage(node_id, message.source, message.correlation_id, body))

    def _report_refusal(self, node_id: int, code: ErrorCode) -> None:
        """Log a refusal once per peer and reason: one of another cluster would fill the log."""
        if (node_id, code) not in self._reported:
            self._reported.add((node_id, code))
            log.warning("raft request refused by a quorum member", peer=node_id, reason=code.name)

    async def ask_leader(self, request: Any, *, timeout_ms: int) -> Any:
        """Return the leader's response to a request about the quorum; retries until the timeout.

        Uses a connection of its own, so that a slow response does not delay the replication behind it.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        reason: object = "the quorum has no leader"
        repeated = False
        while (left := deadline - self._loop.time()) > 0:
            leader_id = self.driver.leader[0]
            address = None if leader_id is None else self.address(leader_id)
            if leader_id == self.driver.config.node_id:
                # Over the own listener, too: the request is then answered by the handler, as for any other member.
                address = self._endpoint
            if leader_id is not None and address is not None:
                peer = self._peers.get(leader_id, *address, "admin")
                attempt = self._loop.create_task(peer.ask(request, timeout_ms=int(left * 1000) + 1))
                try:
                    await self._wait_while_leading(attempt, leader_id)
                    if attempt.done():
                        response = await attempt
                        if getattr(response, "error_code", 0) not in _NOT_LEADER:
                            return _accept_repeated(request, response) if repeated else response
                    # The first attempt may have been committed after all, and then the second is refused as a
                    # repetition.
                    repeated = True
                    reason = f"{leader_id} no longer leads"
                except (PeerGone, KlammError) as error:
                    repeated = True
                    reason = error
                finally:
                    attempt.cancel()
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        raise KlammError(ErrorCode.REQUEST_TIMED_OUT, f"no leader of the quorum answered in {timeout_ms} ms: {reason}")

    async def _wait_while_leading(self, attempt: "asyncio.Task[Any]", leader_id: int) -> None:
        """Return once there is a response or another node leads, since the former leader may hang."""
        while self.driver.leader[0] in (None, leader_id):
            done, _ = await asyncio.wait((attempt,), timeout=LOOK_AGAIN_SECONDS)
            if done:
                return

    async def forward(self, request: Any, response: Callable[..., Any]) -> Any:
        """Return the leader's response for a client, or a `response` with the error."""
        try:
            return await self.ask_leader(request, timeout_ms=FORWARD_MS)
        except (KlammError, ProtocolError) as error:
            code = error.code if isinstance(error, KlammError) else ErrorCode.UNKNOWN_SERVER_ERROR
            return response(error_code=code, error_message=str(error))

    # Inbound

    async def serve(self, request: Any) -> Any:
        """Answer a request of another member."""
        try:
            incoming = decode_request(request)
        except TopLevelError as refused:
            return refuse(request, refused.code)
        code = self._check_request(incoming)
        if code is not ErrorCode.NONE:
            return refuse(request, code)
        # KIP-853: the request is for a replica with another directory id, whose disk this node no longer has.
        if incoming.voter is not None and not incoming.voter.same_replica(self.driver.config.local):
            leader = self.driver.core.leadership
            return encode_response(reject_wrong_voter(incoming.body, leader.epoch, leader.leader_id), self.endpoints())
        if incoming.endpoint is not None and len(self._announced) < ADDRESSES_MAX:
            self._announced[incoming.source] = (incoming.endpoint, self.driver.core.voters.get(incoming.source))
        # Correlation ids of connections are not unique among members, so the driver gets one of our own.
        number = next(self._numbers)
        waiting: asyncio.Future[RaftResponse] = self._loop.create_future()
        self._pending[number] = waiting
        try:
            self.driver.receive(RaftMessage(incoming.source, self.driver.config.node_id, number, incoming.body))
            body = await waiting
        finally:
            self._pending.pop(number, None)
        return encode_response(body, self.endpoints())

    def _check_request(self, incoming: IncomingRequest) -> ErrorCode:
        if self._closed or not self.driver.running:
            # A code that Kafka's raft client retries.
            return ErrorCode.BROKER_NOT_AVAILABLE
        if incoming.cluster_id is not None and incoming.cluster_id != self._cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if len(self._pending) >= PENDING_MAX:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    async def close(self) -> None:
        """Cancel requests in both directions and close the connections."""
        self._closed = True
        waiting, self._pending = self._pending, {}
        for future in waiting.values():
            future.cancel()
        tasks = list(self._requests)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.close()
