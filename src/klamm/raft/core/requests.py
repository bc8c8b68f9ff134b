"""Messages to other members: at most one request in flight per peer, and the outbox of the next Ready."""

from klamm.raft.core.events import QuorumTimeouts
from klamm.raft.core.messages import RaftMessage, RaftRequest, RaftResponse

NO_CORRELATION_ID = -1
"""The correlation id of a peer that is only backed off from: no response carries it."""


class Requests:
    """Tracks what is in flight to each peer.

    One request per peer bounds the traffic of a member whose peers are slow: the next poll sends again what could not
    be sent now, so nothing has to be queued.
    """

    __slots__ = ("_in_flight", "_last_correlation_id", "_local_id", "_outbox", "_timeouts")

    def __init__(self, local_id: int, timeouts: QuorumTimeouts, first_correlation_id: int) -> None:
        self._local_id = local_id
        self._timeouts = timeouts
        self._last_correlation_id = first_correlation_id
        self._in_flight: dict[int, tuple[int, int]] = {}
        """Peer -> correlation id of its request, and the time at which it is given up."""
        self._outbox: list[RaftMessage] = []

    def __bool__(self) -> bool:
        """Whether any request is in flight, or any peer is backed off from."""
        return bool(self._in_flight)

    @property
    def deadlines_ms(self) -> list[int]:
        """When each request in flight is given up."""
        return [deadline_ms for _, deadline_ms in self._in_flight.values()]

    @property
    def has_outgoing(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._outbox)

    def send(self, peer: int, body: RaftRequest, now_ms: int) -> None:
        """Send a request to `peer` unless one is in flight to it."""
        if peer in self._in_flight:
            return  # not queued: the role may have changed by the time it could be sent
        self._last_correlation_id += 1
        self._in_flight[peer] = (self._last_correlation_id, now_ms + self._timeouts.request_timeout_ms)
        self._outbox.append(RaftMessage(self._local_id, peer, self._last_correlation_id, body))

    def reply(self, request: RaftMessage, body: RaftResponse) -> None:
        """Answer `request`."""
        self._outbox.append(RaftMessage(self._local_id, request.source, request.correlation_id, body))

    def back_off(self, peer: int, now_ms: int) -> None:
        """Send nothing to `peer` for the retry backoff: it was unreachable or returned an error."""
        self._in_flight[peer] = (NO_CORRELATION_ID, now_ms + self._timeouts.retry_backoff_ms)

    def is_in_flight(self, peer: int, correlation_id: int) -> bool:
        """Whether the request with `correlation_id` still waits for its response from `peer`."""
        pending = self._in_flight.get(peer)
        return pending is not None and pending[0] == correlation_id

    def complete(self, response: RaftMessage) -> bool:
        """Match a response with its request; False when it is late or a duplicate and must be ignored."""
        if not self.is_in_flight(response.source, response.correlation_id):
            return False
        del self._in_flight[response.source]
        return True

    def expire(self, now_ms: int) -> None:
        """Give up requests whose timeout has passed."""
        for peer in [peer for peer, (_, deadline_ms) in self._in_flight.items() if now_ms >= deadline_ms]:
            del self._in_flight[peer]

    def abandon(self) -> None:
        """Ignore all responses still to come: they answer requests of a former role."""
        self._in_flight.clear()

    def take_outgoing(self) -> tuple[RaftMessage, ...]:
        """Return the messages to send, and empty the outbox."""
        messages = tuple(self._outbox)
        self._outbox.clear()
        return messages
