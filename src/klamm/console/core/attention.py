"""What needs attention in a cluster, the worst first, each with the page where it is cured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from klamm.console.core.cluster_signs import ClusterSigns
from klamm.console.core.numbers import format_age, format_count, format_share
from klamm.console.core.restarts import VOTER_LAG_MAX
from klamm.console.core.samples import ClusterSample
from klamm.model.units import format_size, pluralize

DISK_WARNING: Final = 0.9
"""As the alert KlammDiskFull."""
DISK_CRITICAL: Final = 0.95
LAG_WARNING: Final = 1000
"""Unread records of a group without members from which it is shown."""
BEHIND_MS: Final = 300_000
"""As the alert KlammGroupBehind."""
_NO_MEMBERS: Final = ("Empty", "Dead")
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


def list_attention(sample: ClusterSample, signs: ClusterSigns | None = None) -> list[AttentionItem]:
    """Return all findings of a sample; thresholds are those of the alerts in `telemetry/dashboards`."""
    signs = signs or ClusterSigns()
    items = [
        *_partitions(sample),
        *_minimums(sample, signs.minimums),
        *_brokers(sample),
        *_quorum(signs),
        *_moves(sample, signs),
        *_groups(sample, signs.growing_groups),
    ]
    if signs.stuck_transactions:
        items.append(
            AttentionItem(
                Severity.WARNING,
                f"{pluralize(signs.stuck_transactions, 'transaction')} open for more than 15 minutes",
                "Consumers with isolation.level=read_committed do not read past an open transaction.",
                "transactions",
                "Look at them and abort",
            )
        )
    if signs.registry_error:
        items.append(
            AttentionItem(
                Severity.WARNING,
                "The schema registry cannot be used",
                f"Producers and consumers that need a new schema wait for it: {signs.registry_error}",
                "schemas",
                "Look at schemas",
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


def _minimums(sample: ClusterSample, minimums: Mapping[str, int]) -> Iterator[AttentionItem]:
    counts = {}
    for name, minimum in minimums.items():
        if name in sample.topics:
            counts[name] = sum(
                # A minimum above the number of replicas counts as that number, as at the broker.
                leader >= 0 and len(isr) < min(minimum, len(replicas))
                for _, leader, replicas, isr in sample.topics[name].layouts()
            )
    below = [name for name, count in counts.items() if count]
    if below:
        yield AttentionItem(
            Severity.CRITICAL,
            f"{pluralize(sum(counts.values()), 'partition')} below min.insync.replicas",
            f"Producers with acks=all cannot write: {_names(below)}.",
            "topics?state=under-replicated&internal=1",
            "Show the topics",
        )


def _quorum(signs: ClusterSigns) -> Iterator[AttentionItem]:
    quorum = signs.quorum
    if signs.quorum_error or (quorum is not None and quorum.leader_id < 0):
        yield AttentionItem(
            Severity.CRITICAL,
            "The controller quorum has no leader",
            f"Topics cannot be changed, and partitions get no new leaders. {signs.quorum_error}".strip(),
            "brokers#quorum",
            "Look at the quorum",
        )
    elif quorum is not None:
        behind = [
            voter
            for voter in quorum.voters
            if voter.replica_id != quorum.leader_id and quorum.high_watermark - voter.log_end_offset > VOTER_LAG_MAX
        ]
        if behind:
            lags = [f"{voter.replica_id} by {quorum.high_watermark - voter.log_end_offset}" for voter in behind]
            yield AttentionItem(
                Severity.WARNING,
                f"{pluralize(len(behind), 'voter')} of the quorum behind",
                f"The metadata log survives fewer failures than configured. Behind, in records: {_names(lags)}.",
                "brokers#quorum",
                "Look at the quorum",
            )


def _moves(sample: ClusterSample, signs: ClusterSigns) -> Iterator[AttentionItem]:
    stalled = [where for where in signs.stalled_moves if where.topic in sample.topics]
    if stalled:
        yield AttentionItem(
            Severity.WARNING,
            f"{pluralize(len(stalled), 'move')} without progress",
            "New replicas have got no bytes for five minutes:"
            f" {_names(f'{where.topic}-{where.partition}' for where in stalled)}.",
            "reassignments",
            "Look at the moves",
        )
    if signs.left_throttle is not None:
        yield AttentionItem(
            Severity.WARNING,
            "A throttle is left",
            f"Nothing moves, and replicas that are behind are copied with at most {format_size(signs.left_throttle)}"
            " a second.",
            "reassignments",
            "Remove the throttle",
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
            elif (share := folder.used_share) is not None and share > DISK_WARNING:
                severity = Severity.CRITICAL if share >= DISK_CRITICAL else Severity.WARNING
                yield AttentionItem(
                    severity,
                    f"Disk {format_share(share)} full: {where}",
                    "A broker with a full disk stops. Lower retention of the largest topics, or add a disk.",
                    "topics?sort=-size&internal=1",
                    "Show the largest topics",
                )


def _groups(sample: ClusterSample, growing: AbstractSet[str]) -> Iterator[AttentionItem]:
    late = [
        (age_ms, group.name)
        for group in sample.groups.values()
        if group.state not in _NO_MEMBERS and (age_ms := sample.lags_ms[group.name]) is not None and age_ms > BEHIND_MS
    ]
    late.sort(reverse=True)
    if late:
        age_ms, name = late[0]
        slower = sum(1 for _, late_name in late if late_name in growing)
        trend = f" {slower} of them read slower than records are written." if slower else ""
        yield AttentionItem(
            Severity.WARNING,
            f"{pluralize(len(late), 'group')} with members more than {format_age(BEHIND_MS)} behind",
            f"The furthest behind: {name}, {format_age(age_ms)}.{trend}",
            "groups?sort=-behind",
            "Show the groups",
        )
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


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more
