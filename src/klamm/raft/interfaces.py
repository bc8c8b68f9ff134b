"""What a running member stands between: the state machine above it, the network beside it."""

from typing import Protocol

from klamm.raft.core.messages import Message


class Listener(Protocol):
    """The state machine on top of the log. Calls come in log order, from the loop, exactly once per start."""

    def on_commit(self, first_offset: int, epoch: int, values: list[bytes], append_time_ms: int) -> None:
        """A batch is committed; it is applied whole."""

    def on_snapshot(self, offset: int, epoch: int, values: list[bytes]) -> None:
        """Forget everything: this is the state after every record below `offset`."""

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        """Who leads now. A new leader itself hears it after `on_commit` of everything committed before its epoch."""


class Transport(Protocol):
    """Carries messages to other members, who pass them to their driver's `receive`; it may lose any."""

    def send(self, message: Message) -> None:
        """Send without waiting."""
