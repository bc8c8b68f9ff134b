"""Gathers what a decision consists of while it is being made."""

from collections.abc import Hashable
from typing import Any

from klamm.coordinator.core.shard import Decision, Event, Record, ReplyTo


class Outcome:
    """A decision in the making; the last word on a timer counts."""

    __slots__ = ("events", "records", "replies", "timers")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.replies: list[tuple[ReplyTo, Any]] = []
        self.timers: dict[Hashable, int | None] = {}
        self.events: list[Event] = []

    def reply(self, reply_to: ReplyTo, response: Any) -> None:
        """Answer somebody."""
        self.replies.append((reply_to, response))

    def timer(self, key: Hashable, deadline_ms: int | None) -> None:
        """Set or cancel a deadline."""
        self.timers[key] = deadline_ms

    def event(self, text: str, **fields: Any) -> None:
        """Tell people."""
        self.events.append(Event(text, fields))

    def decision(self) -> Decision:
        """What was gathered."""
        return Decision(tuple(self.records), tuple(self.replies), tuple(self.timers.items()), tuple(self.events))
