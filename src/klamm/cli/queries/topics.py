"""Topics: listing and describing them, creating and deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from klamm.client.admin.topics import PARTITION_LIMIT, TopicsAdmin
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError, SomeFailed
from klamm.model.errors import ErrorCode, KlammError

if TYPE_CHECKING:
    from klamm.cli.queries.outcomes import ItemOutcome
    from klamm.client.admin.topic_types import TopicDescription


def list_topics(cluster: BlockingCluster) -> list[TopicDescription]:
    """All topics, by name."""
    topics = cluster.run(TopicsAdmin(cluster).describe_topics_by_metadata())
    return sorted(topics.values(), key=attrgetter("name"))


def find_topics(cluster: BlockingCluster, names: Sequence[str]) -> list[TopicDescription]:
    """Topics by name, in that order; KlammError names the first that does not exist."""
    if not names:
        return []
    try:
        topics = cluster.run(TopicsAdmin(cluster).describe_topics_by_metadata(names))
    except KafkaError as error:
        raise _lookup_error(cluster, error) from None
    return [topics[name] for name in names]


def describe_topics(
    cluster: BlockingCluster, names: Sequence[str], response_partition_limit: int | None = None
) -> list[TopicDescription]:
    """As `find_topics`, with the eligible leader replicas where the broker reports them."""
    limit = PARTITION_LIMIT if response_partition_limit is None else response_partition_limit
    try:
        topics = cluster.run(TopicsAdmin(cluster).describe_topics(names, response_partition_limit=limit))
    except KafkaError as error:
        raise _lookup_error(cluster, error) from None
    return [topics[name] for name in names]


def _lookup_error(cluster: BlockingCluster, error: KafkaError) -> KlammError:
    first = next(iter(error.failures.values())) if isinstance(error, SomeFailed) else error
    if first.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and first.item is not None:
        return missing_topic(cluster, first.item)
    return first


def missing_topic(cluster: BlockingCluster, name: str) -> KlammError:
    """The error for a topic that does not exist, with the nearest name among those that do."""
    import difflib

    near = difflib.get_close_matches(name, [topic.name for topic in list_topics(cluster)], 1)
    hint = f"; did you mean topic {near[0]}?" if near else ""
    return KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}{hint}")


def create_topic(
    cluster: BlockingCluster,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> tuple[int, int]:
    """Create a topic; -1 leaves a count to the cluster. Returns how many partitions and replicas it has."""
    from klamm.client.admin.topic_changes import TopicChangesAdmin

    created = cluster.run(
        TopicChangesAdmin(cluster).create_topic(
            name,
            partitions,
            replication_factor,
            configs=configs,
            replica_assignment=assignment,
            validate_only=validate_only,
        )
    )
    return created.num_partitions, created.replication_factor


def delete_topics(cluster: BlockingCluster, names: Iterable[str]) -> dict[str, ItemOutcome]:
    """Delete topics; the outcome of each."""
    from klamm.cli.queries.outcomes import item_outcomes
    from klamm.client.admin.topic_changes import TopicChangesAdmin

    wanted = list(dict.fromkeys(names))
    return item_outcomes(cluster, TopicChangesAdmin(cluster).delete_topics(wanted), wanted)


def add_partitions(
    cluster: BlockingCluster,
    name: str,
    count: int,
    assignment: Sequence[Sequence[int]] | None = None,
    *,
    validate_only: bool = False,
) -> None:
    """Raise the number of partitions of a topic to `count`."""
    from klamm.client.admin.topic_changes import TopicChangesAdmin
    from klamm.client.types import NewPartitions

    counts = {name: NewPartitions(count, assignment)}
    cluster.run(TopicChangesAdmin(cluster).create_partitions(counts, validate_only=validate_only))
