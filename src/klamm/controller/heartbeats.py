"""Who was heard of when: what the active controller knows about brokers beside the log.

Nothing here is durable. A controller that takes over gives every broker a full session to be heard of.
"""

from dataclasses import dataclass

from klamm.metadata.image import MetadataImage


@dataclass(slots=True)
class _Contact:
    """The last word from one broker."""

    epoch: int
    last_contact_ms: int
    heard: bool
    """Whether the broker itself spoke, to this controller."""
    metadata_offset: int = -1
    shutdown_offset: int = -1
    """Once the others have read this far, nobody looks for leaders on the broker any more."""
    connected: bool = True
    """Whether the connection it last spoke through still stands, as far as is known."""


class Heartbeats:
    """Sessions of all registered brokers, one per broker epoch."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}

    def take_over(self, image: MetadataImage, now_ms: int) -> None:
        """Start anew with the brokers of `image`."""
        self._contacts = {
            broker.id: _Contact(broker.epoch, now_ms, heard=False) for broker in image.cluster.brokers.values()
        }

    def touch(self, broker_id: int, epoch: int, now_ms: int, metadata_offset: int = -1) -> None:
        """The broker spoke."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.epoch != epoch:
            contact = self._contacts[broker_id] = _Contact(epoch, now_ms, heard=True)
        contact.last_contact_ms = now_ms
        contact.heard = True
        contact.connected = True
        contact.metadata_offset = max(contact.metadata_offset, metadata_offset)

    def extend(self, pause_ms: int) -> None:
        """Count a time in which the controller heard nothing because it stood still itself against no broker."""
        for contact in self._contacts.values():
            contact.last_contact_ms += pause_ms

    def disconnected(self, broker_id: int) -> None:
        """The connection the broker spoke through ended."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.connected = False

    def is_connected(self, broker_id: int) -> bool:
        """Whether the broker's connection stands, as far as is known."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.connected

    def forget(self, broker_id: int) -> None:
        """The broker is no longer registered."""
        self._contacts.pop(broker_id, None)

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Whether the broker itself spoke to this controller within the session timeout."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.heard and not self._expired(contact, now_ms)

    def stale_brokers(self, image: MetadataImage, now_ms: int) -> list[int]:
        """The unfenced brokers whose session is over, longest silence first."""
        stale = []
        for broker in image.cluster.brokers.values():
            if broker.fenced:
                continue
            contact = self._contacts.get(broker.id)
            if contact is None or contact.epoch != broker.epoch:
                self._contacts[broker.id] = _Contact(broker.epoch, now_ms, heard=False)
            elif self._expired(contact, now_ms):
                stale.append((contact.last_contact_ms, broker.id))
        return [broker_id for _, broker_id in sorted(stale)]

    def next_expiry_ms(self, image: MetadataImage) -> int | None:
        """When the first unfenced broker will be silent for too long, if nobody speaks until then."""
        times = [
            self._contacts[broker.id].last_contact_ms + self._session_timeout_ms
            for broker in image.cluster.brokers.values()
            if not broker.fenced and broker.id in self._contacts
        ]
        return min(times, default=None)

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Remember where the records end that move leaders off the broker."""
        contact = self._contacts[broker_id]
        if contact.shutdown_offset < 0:
            contact.shutdown_offset = offset

    def may_stop(self, image: MetadataImage, broker_id: int) -> bool:
        """Whether every active broker has read of the leaders' move."""
        limit = self._contacts[broker_id].shutdown_offset
        return all(
            contact.metadata_offset >= limit
            for other, contact in self._contacts.items()
            if other != broker_id and image.cluster.is_active(other)
        )

    def _expired(self, contact: _Contact, now_ms: int) -> bool:
        return now_ms - contact.last_contact_ms >= self._session_timeout_ms
