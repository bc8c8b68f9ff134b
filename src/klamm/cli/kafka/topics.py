"""kafka-topics: make, list, describe, alter and delete topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from klamm.cli.command_errors import error_detail
from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, java_integer, one_action
from klamm.cli.kafka.script import ToolFailed, connect, read_flags, run_check
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition, uuid_to_str

if TYPE_CHECKING:
    from klamm.client.admin.config_types import ConfigEntry
    from klamm.client.admin.replica_types import Reassignment
    from klamm.client.admin.topic_types import PartitionDescription, TopicDescription
    from klamm.client.blocking_cluster import BlockingCluster

ACTIONS: Final = ("create", "list", "alter", "describe", "delete")
_ACTION_SENTENCE = "Command must include exactly one action: --list, --describe, --create, --alter or --delete"
_COLLISION = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide."
    " To avoid issues it is best to use either, but not both."
)
FLAGS: Final = Flags(
    "kafka-topics",
    BOOTSTRAP,
    COMMAND_CONFIG,
    Flag("create", "Create a topic."),
    Flag("list", "List topics."),
    Flag("alter", "Change how many partitions a topic has."),
    Flag("describe", "Show topics and their partitions."),
    Flag("delete", "Delete topics."),
    Flag("topic", "The topic; a regular expression except with --create.", "topic"),
    Flag("topic-id", "The topic's id, for --describe.", "id"),
    Flag("config", "A setting of a new topic.", "name=value"),
    Flag("partitions", "How many partitions; the cluster's default otherwise.", "number"),
    Flag("replication-factor", "Replicas of each partition; the cluster's default otherwise.", "number"),
    Flag("replica-assignment", "Brokers of each partition: 1:2,2:1", "list"),
    Flag("under-replicated-partitions", "Describe only partitions with replicas out of sync."),
    Flag("unavailable-partitions", "Describe only partitions without a live leader."),
    Flag("under-min-isr-partitions", "Describe only partitions with fewer in sync than min.insync.replicas."),
    Flag("at-min-isr-partitions", "Describe only partitions with exactly min.insync.replicas in sync."),
    Flag("topics-with-overrides", "Describe only topics that have settings of their own."),
    Flag("if-exists", "Succeed when the topic does not exist."),
    Flag("if-not-exists", "Succeed when the topic exists already."),
    Flag("exclude-internal", "Leave out internal topics."),
    Flag("partition-size-limit-per-response", "Most partitions in one response.", "number"),
)
_REPORTS = (
    "under-replicated-partitions",
    "unavailable-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
)


def main(args: list[str]) -> int:
    """Run kafka-topics."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    action = ""

    def check() -> None:
        nonlocal action
        action = one_action(parsed, ACTIONS, _ACTION_SENTENCE)
        if not parsed.has("bootstrap-server"):
            raise Usage("--bootstrap-server must be specified", flags=False)
        if action in ("create", "alter", "delete") and not parsed.has("topic"):
            raise Usage('Missing required argument "[topic]"')
        if action == "alter" and not parsed.has("partitions"):
            raise Usage('Missing required argument "[partitions]"')
        if action == "create" and parsed.has("replica-assignment"):
            for name in ("partitions", "replication-factor"):
                if parsed.has(name):
                    raise Usage(f'Option "[replica-assignment]" can\'t be used with option "[{name}]"')

    run_check(FLAGS, check)
    with connect(parsed) as cluster:
        try:
            _ACTIONS[action](cluster, parsed)
        except (KlammError, Usage) as error:
            message = error_detail(error) if isinstance(error, KlammError) else str(error)
            raise ToolFailed(f"Error while executing topic command : {message}", out=True) from None
    return 0


def _topic_error(sentence: str) -> Usage:
    return Usage(sentence, flags=False)


def _create(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.topics import create_topic

    name = parsed.text("topic")
    if "." in name or "_" in name:
        print(_COLLISION)
    partitions, factor = parsed.integer("partitions"), parsed.integer("replication-factor")
    configs = _configs(parsed)
    if partitions is not None and partitions < 1:
        raise _topic_error("The partitions must be greater than 0")
    # The replication factor is a 16-bit number on the wire.
    if factor is not None and not 1 <= factor <= 32767:
        raise _topic_error("The replication factor must be between 1 and 32767 inclusive")
    try:
        create_topic(
            cluster,
            name,
            partitions=partitions or -1,
            replication_factor=factor or -1,
            assignment=_assignment(parsed),
            configs=configs,
        )
    except KlammError as error:
        if error.code == ErrorCode.TOPIC_ALREADY_EXISTS and parsed.has("if-not-exists"):
            return
        raise
    print(f"Created topic {name}.")


def _configs(parsed: Parsed) -> dict[str, str]:
    from klamm.model.topic_configs import TOPIC_CONFIGS

    values = {}
    known = {key.name for key in TOPIC_CONFIGS}
    for text in parsed.all("config"):
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise _topic_error(
                'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
            )
        # Kafka's tool validates names itself, with a sentence of its own.
        if name.strip() not in known:
            raise _topic_error(f"Unknown topic config name: {name.strip()}")
        values[name.strip()] = value.strip()
    return values


def _assignment(parsed: Parsed) -> dict[int, list[int]] | None:
    text = parsed.get("replica-assignment")
    if text is None:
        return None
    lists = []
    for replicas_text in text.split(","):
        brokers = [java_integer(broker) for broker in replicas_text.split(":")]
        if None in brokers:
            wrong = replicas_text.split(":")[brokers.index(None)]
            raise _topic_error(f'For input string: "{wrong}"')
        lists.append([broker for broker in brokers if broker is not None])
    for index, replicas in enumerate(lists):
        twice = [str(broker) for broker in dict.fromkeys(replicas) if replicas.count(broker) > 1]
        if twice:
            raise _topic_error(f"Partition replica lists may not contain duplicate entries: {','.join(twice)}")
        if len(replicas) != len(lists[0]):
            raise _topic_error(f"Partition {index} has different replication factor: {replicas}")
    return dict(enumerate(lists))


def _matching(cluster: BlockingCluster, parsed: Parsed) -> list[TopicDescription]:
    from klamm.cli.queries.topics import list_topics

    topics = list_topics(cluster)
    if parsed.has("exclude-internal"):
        topics = [topic for topic in topics if not topic.internal]
    pattern = parsed.get("topic")
    if pattern is None:
        return topics
    try:
        # Quotes and spaces are removed and commas are alternatives, as in Kafka's IncludeList.
        wanted = re.compile(pattern.strip().strip("\"'").replace(",", "|").replace(" ", ""))
    except re.error:
        raise _topic_error(f"{pattern} is an invalid regex.") from None
    return [topic for topic in topics if wanted.fullmatch(topic.name)]


def _ensure(topics: list[TopicDescription], parsed: Parsed) -> None:
    name = parsed.get("topic")
    if name and not topics and not parsed.has("if-exists"):
        raise _topic_error(f"Topic '{name}' does not exist as expected")


def _list(cluster: BlockingCluster, parsed: Parsed) -> None:
    print("\n".join(topic.name for topic in _matching(cluster, parsed)))


def _alter(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.topics import add_partitions

    topics = _matching(cluster, parsed)
    _ensure(topics, parsed)
    count = parsed.integer("partitions") or 0
    given = _assignment(parsed)
    for topic in topics:
        # --replica-assignment lists all partitions; only those of the new ones are sent.
        new = None if given is None else [given[i] for i in range(len(topic.partitions), len(given))]
        add_partitions(cluster, topic.name, count, new)


def _delete(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries.topics import delete_topics

    topics = _matching(cluster, parsed)
    _ensure(topics, parsed)
    if topics:
        for code, message in delete_topics(cluster, [topic.name for topic in topics]).values():
            if code:
                raise KlammError(code, message or code.text)


def _describe(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.cli.queries import configs
    from klamm.cli.queries.topics import describe_topics

    wanted = parsed.get("topic-id")
    if wanted is not None:
        # By id the flags --topic and --exclude-internal do not apply.
        listed = [topic for topic in _matching(cluster, Parsed()) if uuid_to_str(topic.topic_id) == wanted]
        if not listed and not parsed.has("if-exists"):
            raise _topic_error(f"TopicId '{wanted}' does not exist as expected")
    else:
        listed = _matching(cluster, parsed)
        _ensure(listed, parsed)
    names = [topic.name for topic in listed]
    topics = describe_topics(cluster, names, parsed.integer("partition-size-limit-per-response"))
    settings = configs.describe_all(cluster, configs.TOPIC, names) if names else {}
    moves = _reassignments(cluster) if names else {}
    alive = set(cluster.broker_ids)
    for topic in topics:
        _print_topic(topic, settings[topic.name], moves, alive, parsed)


def _print_topic(
    topic: TopicDescription,
    settings: list[ConfigEntry],
    moves: Mapping[TopicPartition, Reassignment],
    alive: set[int],
    parsed: Parsed,
) -> None:

    own = [setting for setting in settings if not setting.is_default]
    reports = [name for name in _REPORTS if parsed.has(name)]
    if not reports and (own or not parsed.has("topics-with-overrides")):
        words = ",".join(f"{setting.name}={setting.value}" for setting in own)
        factor = _factor(topic.partitions[0], moves.get(TopicPartition(topic.name, topic.partitions[0].partition)))
        print(
            f"Topic: {topic.name}\tTopicId: {uuid_to_str(topic.topic_id)}\tPartitionCount: {len(topic.partitions)}"
            f"\tReplicationFactor: {factor}\tConfigs: {words}"
        )
    if parsed.has("topics-with-overrides"):
        return
    min_isr = int(next((setting.value for setting in settings if setting.name == "min.insync.replicas"), "1") or 1)
    for partition in topic.partitions:
        move = moves.get(TopicPartition(topic.name, partition.partition))
        if not reports or any(_reported(name, partition, move, min_isr, alive) for name in reports):
            print(_partition_line(topic.name, partition, move))


def _factor(partition: PartitionDescription, move: Reassignment | None) -> int:
    # During a reassignment the replica list has the new brokers too.
    return len(move.replicas) - len(move.adding) if move else len(partition.replicas)


def _reported(
    name: str,
    partition: PartitionDescription,
    move: Reassignment | None,
    min_isr: int,
    alive: set[int],
) -> bool:
    if name == "under-replicated-partitions":
        return _factor(partition, move) > len(partition.isr)
    if name == "unavailable-partitions":
        # Kafka compares with the live brokers of the cluster, so a fenced leader counts as unavailable.
        return partition.leader not in alive
    if name == "under-min-isr-partitions":
        return partition.leader < 0 or len(partition.isr) < min_isr
    return len(partition.isr) == min_isr


def _partition_line(name: str, partition: PartitionDescription, move: Reassignment | None) -> str:
    def ids(brokers: Sequence[int]) -> str:
        return ",".join(map(str, brokers))

    moving = f"\tAdding Replicas: {ids(move.adding)}\tRemoving Replicas: {ids(move.removing)}" if move else ""
    elr = "N/A" if partition.elr is None else ids(partition.elr)
    last = "N/A" if partition.last_known_elr is None else ids(partition.last_known_elr)
    leader = partition.leader if partition.leader >= 0 else "none"
    return (
        f"\tTopic: {name}\tPartition: {partition.partition}\tLeader: {leader}\tReplicas: {ids(partition.replicas)}"
        f"\tIsr: {ids(partition.isr)}{moving}\tElr: {elr}\tLastKnownElr: {last}"
    )


def _reassignments(cluster: BlockingCluster) -> Mapping[TopicPartition, Reassignment]:
    from klamm.cli.queries.replicas import list_reassignments

    try:
        return list_reassignments(cluster)
    except KlammError as error:
        # As Kafka's tool: reassignments are left out where they cannot be listed.
        if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            return {}
        raise


_ACTIONS: Final = {"create": _create, "list": _list, "alter": _alter, "describe": _describe, "delete": _delete}
