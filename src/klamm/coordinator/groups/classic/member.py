"""One member of a classic group."""

from dataclasses import dataclass

from klamm.coordinator.core.shard import ReplyTo

Protocols = tuple[tuple[str, bytes], ...]
"""(name, what the member says in it), the one it likes best first."""


@dataclass(slots=True, eq=False)
class ClassicMember:
    """Who a member is, what it offers, what it was given, and whether it waits for an answer."""

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
    """It has not had an answer to its first join yet, so it cannot send heartbeats."""

    @property
    def is_static(self) -> bool:
        """Whether its place outlives its process."""
        return self.instance_id is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether silence is fine: it waits for us. A new member is not believed that long."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol: str | None) -> bytes | None:
        """What it says in a protocol; None when it does not speak it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return None

    def vote(self, candidates: set[str]) -> str:
        """The candidate it likes best."""
        return next(name for name, _ in self.protocols if name in candidates)
