"""Broker sessions: when the active controller last received a heartbeat from each broker.

Nothing here is durable. A controller that becomes active gives every broker a full session timeout.
"""

from dataclasses import dataclass

from klamm.metadata.image import MetadataImage


@dataclass(slots=True)
class _BrokerSession:
    """The session of one broker epoch."""

    epoch: int
    last_heartbeat_ms: int
    confirmed: bool
    """Whether this controller has received a heartbeat; False for a session taken over from the image."""
    metadata_offset: int = -1
    shutdown_offset: int = -1
    """Once the other active brokers have read this far, none of them looks for leaders on this broker."""
    connected: bool = True
    """Whether the connection of its last heartbeat is open, as far as is known."""


class Heartbeats:
    """Sessions of all registered brokers, one per broker epoch."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _BrokerSession] = {}

    def take_over(self, image: MetadataImage, now_ms: int) -> None:
        """Start with a full session for every broker of `image`."""
        self._sessions = {
            broker.id: _BrokerSession(broker.epoch, now_ms, confirmed=False)
            for broker in image.cluster.brokers.values()
        }

    def touch(self, broker_id: int, epoch: int, now_ms: int, metadata_offset: int = -1) -> None:
        """Record a heartbeat."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            session = self._sessions[broker_id] = _BrokerSession(epoch, now_ms, confirmed=True)
        session.last_heartbeat_ms = now_ms
        session.confirmed = True
        session.connected = True
        # A delayed heartbeat must not take the offset back.
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def extend(self, pause_ms: int) -> None:
        """Extend all sessions by a pause of the controller itself, during which it could receive no heartbeat."""
        for session in self._sessions.values():
            session.last_heartbeat_ms += pause_ms

    def mark_disconnected(self, broker_id: int) -> None:
        """Record that the broker's connection was closed."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.connected = False

    def is_connected(self, broker_id: int) -> bool:
        """Whether the broker's connection is open, as far as is known."""
        session = self._sessions.get(broker_id)
        return session is not None and session.connected

    def forget(self, broker_id: int) -> None:
        """Remove the session of a broker that is not registered any more."""
        self._sessions.pop(broker_id, None)

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Whether this controller received a heartbeat of the broker within the session timeout."""
        session = self._sessions.get(broker_id)
        # A session taken over from the image does not prove that the broker is alive.
        return session is not None and session.confirmed and not self._expired(session, now_ms)

    def stale_brokers(self, image: MetadataImage, now_ms: int) -> list[int]:
        """The unfenced brokers whose session has expired, the longest expired first."""
        stale = []
        for broker in image.cluster.brokers.values():
            if broker.fenced:
                continue
            session = self._sessions.get(broker.id)
            if session is None or session.epoch != broker.epoch:
                # No session of this broker epoch yet: it starts with this check.
                self._sessions[broker.id] = _BrokerSession(broker.epoch, now_ms, confirmed=False)
            elif self._expired(session, now_ms):
                stale.append((session.last_heartbeat_ms, broker.id))
        return [broker_id for _, broker_id in sorted(stale)]

    def next_expiry_ms(self, image: MetadataImage) -> int | None:
        """When the next session of an unfenced broker expires without further heartbeats."""
        times = [
            self._sessions[broker.id].last_heartbeat_ms + self._session_timeout_ms
            for broker in image.cluster.brokers.values()
            if not broker.fenced and broker.id in self._sessions
        ]
        return min(times, default=None)

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Record the offset of the last record that moves leaders off the broker."""
        session = self._sessions[broker_id]
        # Only the first time: later heartbeats must not move the goal that the other brokers have to reach.
        if session.shutdown_offset < 0:
            session.shutdown_offset = offset

    def may_stop(self, image: MetadataImage, broker_id: int) -> bool:
        """Whether every other active broker has read the records that move its leaders."""
        limit = self._sessions[broker_id].shutdown_offset
        return all(
            session.metadata_offset >= limit
            for other, session in self._sessions.items()
            if other != broker_id and image.cluster.is_active(other)
        )

    def _expired(self, session: _BrokerSession, now_ms: int) -> bool:
        return now_ms - session.last_heartbeat_ms >= self._session_timeout_ms
