"""Rows of the table of topics, and the facts of one topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from klamm.console.core.samples import ClusterSample, TopicSample
from klamm.console.core.tables import SortKey


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic in the table."""

    name: str
    internal: bool
    partitions: int
    replicas: int
    records: int | None
    size_bytes: int | None
    rate: float | None
    byte_rate: float | None
    groups: int
    lag: int | None
    """Of the group that is furthest behind in this topic; None without groups."""
    state: str
    """healthy, under-replicated or offline."""


TOPIC_COLUMNS: Final[dict[str, SortKey]] = {
    "name": attrgetter("name"),
    "partitions": attrgetter("partitions"),
    "replicas": attrgetter("replicas"),
    "records": attrgetter("records"),
    "size": attrgetter("size_bytes"),
    "rate": attrgetter("rate"),
    "groups": attrgetter("groups"),
    "lag": attrgetter("lag"),
}

HEALTHY: Final = "healthy"
UNDER_REPLICATED: Final = "under-replicated"
OFFLINE: Final = "offline"


def describe_state(topic: TopicSample) -> str:
    """Return the worst state of a topic's partitions."""
    if topic.offline:
        return OFFLINE
    return UNDER_REPLICATED if topic.under_replicated else HEALTHY


def list_topic_rows(sample: ClusterSample) -> list[TopicRow]:
    """Return the rows of all topics."""
    return [_make_row(sample, topic) for topic in sample.topics.values()]


def choose_topic_rows(rows: Iterable[TopicRow], *, internal: bool = False, state: str = "") -> list[TopicRow]:
    """Return the rows without internal topics, unless they are wanted, and of one state only when it is given."""
    return [row for row in rows if (internal or not row.internal) and (not state or row.state == state)]


def _make_row(sample: ClusterSample, topic: TopicSample) -> TopicRow:
    lags = sample.lags_by_topic.get(topic.name, {})
    return TopicRow(
        topic.name,
        topic.internal,
        len(topic.partitions),
        topic.replication_factor,
        topic.records,
        topic.total_bytes,
        sample.rates.get(topic.name),
        sample.byte_rates.get(topic.name),
        len(lags),
        max(lags.values(), default=None),
        describe_state(topic),
    )
