"""One member of a classic group."""

from dataclasses import dataclass

from klamm.coordinator.core.shard import ReplyTo

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata), the preferred one first."""


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member's identity, protocols, assignment, and waiting requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    awaiting_join: ReplyTo | None = None
    awaiting_sync: ReplyTo | None = None
    is_new: bool = False
    """Its first join is not answered yet, so it cannot send heartbeats."""

    @property
    def is_static(self) -> bool:
        """Whether it has an instance id, so that its membership survives a restart (KIP-345)."""
        return self.instance_id is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether it needs no heartbeats because a join or sync of it waits; a new member has a deadline even then."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol: str | None) -> bytes | None:
        """Return its metadata for a protocol, or None when it does not offer it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return None

    def vote(self, candidates: set[str]) -> str:
        """Return the candidate it prefers."""
        return next(name for name, _ in self.protocols if name in candidates)
