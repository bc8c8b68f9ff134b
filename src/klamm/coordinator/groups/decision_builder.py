"""Collects the records, replies, timers and events of a decision while it is being made."""

from collections.abc import Hashable
from typing import Any

from klamm.coordinator.core.shard import CoordinatorRecord, Decision, LoggedEvent, ReplyTo


class DecisionBuilder:
    """A decision in the making. Setting a timer again replaces its earlier deadline."""

    __slots__ = ("events", "records", "replies", "timers")

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.replies: list[tuple[ReplyTo, Any]] = []
        self.timers: dict[Hashable, int | None] = {}
        self.events: list[LoggedEvent] = []

    def reply(self, reply_to: ReplyTo, response: Any) -> None:
        """Send `response` once the decision is committed."""
        self.replies.append((reply_to, response))

    def set_timer(self, key: Hashable, deadline_ms: int) -> None:
        """Set or move a deadline on the monotonic clock."""
        self.timers[key] = deadline_ms

    def cancel_timer(self, key: Hashable) -> None:
        """Cancel a deadline, if it is set."""
        self.timers[key] = None

    def log_event(self, text: str, **fields: Any) -> None:
        """Write a log line when the decision is carried out."""
        self.events.append(LoggedEvent(text, fields))

    def build(self) -> Decision:
        """Return what was collected."""
        return Decision(tuple(self.records), tuple(self.replies), tuple(self.timers.items()), tuple(self.events))
