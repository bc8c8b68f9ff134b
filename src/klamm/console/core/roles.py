"""Who may do what in the console: roles by cluster, topic and action.

The console's own rights come on top of the cluster's ACLs, which apply to the console's user as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final


class Action(Enum):
    """What a page or form does."""

    VIEW = "view"
    """Lists, settings, lags: everything but the content of records."""
    READ = "read"
    """The content of records."""
    PRODUCE = "produce"
    TOPICS = "topics"
    """Create, grow, change, empty and delete topics."""
    GROUPS = "groups"
    """Reset, delete and remove members."""
    CLUSTER = "cluster"
    """Settings of brokers, elections, reassignments, transactions."""
    ACCESS = "access"
    """Users, ACLs and quotas."""
    SCHEMAS = "schemas"
    PIPELINES = "pipelines"
    AUDIT = "audit"
    """Read the audit log."""


READING: Final = frozenset({Action.VIEW, Action.READ, Action.AUDIT})
"""The actions that change nothing: all there are in read-only mode."""
_ALL: Final = "*"
"""The pattern of every name."""


@dataclass(frozen=True, slots=True)
class ConsoleRole:
    """Actions on clusters and topics whose names match one of the patterns."""

    name: str
    actions: frozenset[Action]
    clusters: tuple[str, ...] = ("*",)
    topics: tuple[str, ...] = ("*",)
    """Of topics and groups: `orders-*`."""

    def allows(self, action: Action, cluster: str, resource: str | None) -> bool:
        """Whether the role allows an action; `resource` None is the cluster as a whole, or a list."""
        return (
            action in self.actions
            and any(fnmatchcase(cluster, pattern) for pattern in self.clusters)
            and (resource is None or any(fnmatchcase(resource, pattern) for pattern in self.topics))
        )


ADMIN_ROLE: Final = ConsoleRole("admin", frozenset(Action))
VIEWER_ROLE: Final = ConsoleRole("viewer", READING)
BUILT_IN: Final = {role.name: role for role in (ADMIN_ROLE, VIEWER_ROLE)}


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who uses the console, and the roles they have."""

    name: str
    roles: tuple[ConsoleRole, ...]
    read_only: bool = False

    def may(self, action: Action, cluster: str, resource: str | None = None) -> bool:
        """Whether any role allows the action."""
        if self.read_only and action not in READING:
            return False
        return any(role.allows(action, cluster, resource) for role in self.roles)

    def may_everywhere(self, action: Action, cluster: str) -> bool:
        """Whether the action is allowed for all names: what concerns the cluster as a whole needs that."""
        return self.may(action, cluster) and _ALL in self.patterns(cluster, action)

    def visible(self, cluster: str, names: Iterable[str], action: Action = Action.VIEW) -> list[str]:
        """Return the names that may be listed, or for which another action is allowed."""
        patterns = self.patterns(cluster, action)
        if _ALL in patterns:
            return list(names)
        return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]

    def patterns(self, cluster: str, action: Action = Action.VIEW) -> Sequence[str]:
        """Return the patterns of names for which an action is allowed in a cluster."""
        return [
            pattern
            for role in self.roles
            if action in role.actions and any(fnmatchcase(cluster, of_cluster) for of_cluster in role.clusters)
            for pattern in role.topics
        ]


@dataclass(frozen=True, slots=True)
class MaskRule:
    """Fields that are hidden in the records of topics, unless a role is exempt."""

    topics: tuple[str, ...]
    fields: tuple[tuple[str, ...], ...]
    """Paths: ("card", "number") is value.card.number."""
    exempt_roles: frozenset[str] = frozenset()

    def applies(self, topic: str, visitor: Visitor) -> bool:
        """Whether the records of a topic are masked for a visitor."""
        return any(fnmatchcase(topic, pattern) for pattern in self.topics) and not any(
            role.name in self.exempt_roles for role in visitor.roles
        )


def masked_paths(rules: Iterable[MaskRule], topic: str, visitor: Visitor) -> list[tuple[str, ...]]:
    """Return the paths of all fields that a visitor may not see in a topic."""
    return [path for rule in rules if rule.applies(topic, visitor) for path in rule.fields]
