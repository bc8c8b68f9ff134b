"""Decisions about classic groups in the making: settings and time of the decision, and the timers of members."""

from klamm.coordinator.core.shard import Now
from klamm.coordinator.groups.classic.group import ClassicGroup
from klamm.coordinator.groups.classic.member import ClassicMember
from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.decision_builder import DecisionBuilder

# The first parts of a classic group's timer keys: (SESSION, group, member), (JOIN, group), (SYNC, group).
SESSION = "session"
JOIN = "join"
SYNC = "sync"


class ClassicDecisionBuilder(DecisionBuilder):
    """Collects a decision about a classic group made at `now` under `config`."""

    __slots__ = ("config", "now")

    def __init__(self, config: GroupConfig, now: Now) -> None:
        super().__init__()
        self.config = config
        self.now = now

    def start_session_timer(self, group: ClassicGroup, member: ClassicMember, within_ms: int | None = None) -> None:
        """Remove the member unless it sends a request within its session timeout, or `within_ms`."""
        delay_ms = member.session_timeout_ms if within_ms is None else within_ms
        self.set_timer((SESSION, group.group_id, member.member_id), self.now.ms + delay_ms)

    def cancel_session_timer(self, group: ClassicGroup, member_id: str) -> None:
        """Stop waiting for requests of a member that has left or was replaced."""
        self.cancel_timer((SESSION, group.group_id, member_id))
