"""The interfaces of the driver to its surroundings: the state machine and the network."""

from typing import Protocol

from klamm.raft.core.messages import RaftMessage


class RaftListener(Protocol):
    """The state machine on top of the log.

    Called on the event loop, in log order, exactly once per batch between two starts.
    """

    def on_commit(self, first_offset: int, epoch: int, values: list[bytes], append_time_ms: int) -> None:
        """Apply a committed batch."""

    def on_snapshot(self, offset: int, epoch: int, values: list[bytes]) -> None:
        """Replace the state by that of a snapshot of every record below `offset`."""

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """The leader has changed. On a new leader itself this follows `on_commit` of all records before its epoch."""


class Transport(Protocol):
    """Carries messages to the `receive` of other members' drivers; it may lose any of them."""

    def send(self, message: RaftMessage) -> None:
        """Send `message` without waiting for its response."""
