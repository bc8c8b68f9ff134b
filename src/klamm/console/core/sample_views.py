"""What pages show of a sample, made once when it is taken: a page sorts and cuts, and computes nothing per topic."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from klamm.console.core.attention import AttentionItem, list_attention
from klamm.console.core.cluster_signs import ClusterSigns
from klamm.console.core.group_rows import GroupRow, list_group_rows
from klamm.console.core.samples import ClusterSample
from klamm.console.core.topic_rows import TopicRow, list_topic_rows


@dataclass(frozen=True, slots=True)
class SampleViews:
    """A sample, and the rows of its tables."""

    sample: ClusterSample
    topic_rows: list[TopicRow]
    group_rows: list[GroupRow]
    attention: list[AttentionItem]
    partitions: int
    in_sync: int
    """Partitions with a leader and all replicas in sync."""
    signs: ClusterSigns

    def choose_attention(self, topics: AbstractSet[str], groups: AbstractSet[str]) -> list[AttentionItem]:
        """Return the findings about some topics and groups, and about brokers: others are neither named nor counted."""
        sample = self.sample
        if len(topics) == len(sample.topics) and len(groups) == len(sample.groups):
            return self.attention
        seen = dataclasses.replace(
            sample,
            topics={name: topic for name, topic in sample.topics.items() if name in topics},
            groups={name: group for name, group in sample.groups.items() if name in groups},
        )
        return list_attention(seen, self.signs)


def make_views(sample: ClusterSample, before: ClusterSample | None, signs: ClusterSigns) -> SampleViews:
    """Return the views of a sample; `before` is the one that trends are computed from."""
    groups = list_group_rows(sample, before)
    growing = frozenset(row.name for row in groups if row.lag_change is not None and row.lag_change > 0)
    signs = dataclasses.replace(signs, growing_groups=growing)
    return SampleViews(
        sample,
        list_topic_rows(sample),
        groups,
        list_attention(sample, signs),
        sum(len(topic.partitions) for topic in sample.topics.values()),
        sum(topic.in_sync for topic in sample.topics.values()),
        signs,
    )
