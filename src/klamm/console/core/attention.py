"""What needs attention in a cluster, the worst first, each with the page where it is cured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from klamm.console.core.numbers import format_count, format_share
from klamm.console.core.samples import ClusterSample
from klamm.model.units import pluralize

DISK_WARNING: Final = 0.85
DISK_CRITICAL: Final = 0.95
LAG_WARNING: Final = 1000
"""Unread records of a group without members from which it is shown."""
_NAMED: Final = 3


class Severity(IntEnum):
    """How bad it is: data cannot be read or written, less safe than configured, or worth knowing."""

    CRITICAL = 0
    WARNING = 1
    NOTICE = 2


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One finding; `path` is below the cluster's, `cure` the words of its link."""

    severity: Severity
    title: str
    detail: str
    path: str
    cure: str


def list_attention(sample: ClusterSample, stuck_transactions: int = 0) -> list[AttentionItem]:
    """Return all findings of a sample."""
    items = [*_partitions(sample), *_brokers(sample), *_groups(sample)]
    if stuck_transactions:
        items.append(
            AttentionItem(
                Severity.WARNING,
                f"{pluralize(stuck_transactions, 'transaction')} open for more than 15 minutes",
                "Consumers with isolation.level=read_committed do not read past an open transaction.",
                "transactions",
                "Look at them and abort",
            )
        )
    items += [
        AttentionItem(Severity.NOTICE, "Part of the cluster could not be read", reason, "brokers", "Look at brokers")
        for reason in sample.partial
    ]
    return sorted(items, key=_severity)


def _severity(item: AttentionItem) -> int:
    return item.severity


def _partitions(sample: ClusterSample) -> Iterator[AttentionItem]:
    topics = list(sample.topics.values())
    offline = [topic for topic in topics if topic.offline]
    if offline:
        count = sum(topic.offline for topic in offline)
        yield AttentionItem(
            Severity.CRITICAL,
            f"{pluralize(count, 'partition')} without a leader",
            f"Records can be neither written nor read: {_names(topic.name for topic in offline)}.",
            "topics?state=offline&internal=1",
            "Show the topics",
        )
    behind = [topic for topic in topics if topic.under_replicated]
    if behind:
        count = sum(topic.under_replicated for topic in behind)
        yield AttentionItem(
            Severity.WARNING,
            f"{pluralize(count, 'partition')} under-replicated",
            f"Fewer copies than configured are in sync: {_names(topic.name for topic in behind)}.",
            "topics?state=under-replicated&internal=1",
            "Show the topics",
        )
    unfenced = {broker.id for broker in sample.brokers if not broker.fenced}
    moved = sum(
        1
        for topic in topics
        for _, leader, replicas, isr in topic.layouts()
        if replicas
        and leader >= 0
        and leader != replicas[0]
        # Only a preferred leader that is in sync can take over.
        and replicas[0] in isr
        and replicas[0] in unfenced
    )
    if moved:
        yield AttentionItem(
            Severity.NOTICE,
            f"{pluralize(moved, 'partition')} led by another than the preferred replica",
            "Load is uneven until the preferred leaders are elected, which takes milliseconds.",
            "brokers#elect",
            "Elect preferred leaders",
        )
    single = [topic for topic in topics if topic.replication_factor == 1 and not topic.internal]
    if single and len(sample.brokers) > 1:
        yield AttentionItem(
            Severity.NOTICE,
            f"{pluralize(len(single), 'topic')} with one replica",
            f"They are lost with their broker: {_names(topic.name for topic in single)}.",
            "topics?sort=replicas",
            "Show the topics",
        )


def _brokers(sample: ClusterSample) -> Iterator[AttentionItem]:
    for broker in sample.brokers:
        if broker.fenced:
            yield AttentionItem(
                Severity.CRITICAL,
                f"Broker {broker.id} is fenced",
                f"{broker.host}:{broker.port} is down or has not caught up with the metadata log.",
                "brokers",
                "Look at brokers",
            )
        for folder in broker.log_dirs:
            where = f"{folder.path} of broker {broker.id}"
            if folder.error_code:
                yield AttentionItem(
                    Severity.CRITICAL, f"Log dir failed: {where}", "Its replicas are offline.", "brokers", "Look at it"
                )
            elif (share := folder.used_share) is not None and share >= DISK_WARNING:
                severity = Severity.CRITICAL if share >= DISK_CRITICAL else Severity.WARNING
                yield AttentionItem(
                    severity,
                    f"Disk {format_share(share)} full: {where}",
                    "A broker with a full disk stops. Lower retention of the largest topics, or add a disk.",
                    "topics?sort=-size&internal=1",
                    "Show the largest topics",
                )


def _groups(sample: ClusterSample) -> Iterator[AttentionItem]:
    idle = [
        (lag, group.name)
        for group in sample.groups.values()
        if group.state == "Empty" and (lag := sample.lags[group.name]) is not None and lag >= LAG_WARNING
    ]
    idle.sort(reverse=True)
    if idle:
        lag, name = idle[0]
        yield AttentionItem(
            Severity.NOTICE,
            f"{pluralize(len(idle), 'group')} without members and with unread records",
            f"The furthest behind: {name}, {format_count(lag)} records.",
            "groups?state=Empty&sort=-lag",
            "Show the groups",
        )


def _names(names: Iterator[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
