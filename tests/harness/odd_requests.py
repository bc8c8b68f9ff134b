"""Requests that few clients send, as a raw client sends them; each returns what there is to compare of the answers.

A probe gets a connection to one broker alone and makes its own topics and groups. What differs between any two
clusters (ids, ports, texts of errors) is left out.
"""

import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from harness.wire import TOPIC_IDS_SINCE, Wire, batch, unique
from klamm.model.errors import ErrorCode

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND = 0, 1, 2
MAX_LONG: Final = 2**63 - 1
LOADING, MEMBER_ID_REQUIRED = (14, 15, 16), 79
NEW, FULL = 0, -1
"""A fetch session's first epoch, and the epoch of a request outside any session."""

Probe = Callable[[Wire], Any]


def _alter(wire: Wire, kind: int, name: str, config: str, operation: int, value: str | None) -> int:
    configs = [{"name": config, "config_operation": operation, "value": value}]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [response] = wire.call("incremental_alter_configs", 1, resources=[resource]).responses
    return int(response.error_code)


def _described(wire: Wire, kind: int, name: str, config: str) -> str | None:
    """The value of one config once a change has had time to arrive."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [config]}
    [result] = wire.call("describe_configs", 4, resources=[resource]).results
    return result.configs[0].value if result.configs else None


def _until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


def _served(wire: Wire) -> bool:
    """Whether a topic can be made, written and read."""
    topic = wire.create_topic()
    _until(lambda: wire.produce(topic, batch(b"value")).error_code == 0, "a new topic takes records")
    return wire.values(topic) == [b"value"]


def removed_min_isr(wire: Wire) -> Any:
    """Removing what eligible leader replicas count by; the cluster serves on."""
    return (
        _alter(wire, BROKER, "", "min.insync.replicas", DELETE, None),
        _alter(wire, BROKER, "1", "min.insync.replicas", SET, "1"),
        _alter(wire, BROKER, "1", "min.insync.replicas", DELETE, None),
        _served(wire),
    )


def padded_number(wire: Wire) -> Any:
    """A number followed by a control character, for all brokers and for a topic."""
    topic = wire.create_topic()
    answer = [
        _alter(wire, BROKER, "", "log.retention.ms", SET, "3600000\x01"),
        _alter(wire, TOPIC, topic, "segment.ms", SET, "\x023600000 "),
        _served(wire),
    ]
    _until(lambda: _described(wire, TOPIC, topic, "retention.ms") == "3600000", "the retention is in force")
    answer += [
        _described(wire, TOPIC, topic, "segment.ms"),
        _alter(wire, BROKER, "", "log.retention.ms", DELETE, None),
        _served(wire),
    ]
    return answer


def long_value(wire: Wire) -> Any:
    """A value that grows longer than older versions of DescribeConfigs can return."""
    topic, name = wire.create_topic(), "leader.replication.throttled.replicas"
    low, high = (",".join(f"{partition}:1" for partition in range(start, start + 3000)) for start in (0, 5000))
    return _alter(wire, TOPIC, topic, name, SET, low), _alter(wire, TOPIC, topic, name, APPEND, high)


def metadata_by_id_and_name(wire: Wire) -> Any:
    """An unknown id, with a name, an empty name and no name beside it, in every version with ids."""
    answers = []
    wire.create_topic("known-by-name")
    for version in (10, 11, 12, 13):
        for name in ("", None, "known-by-name")[: 2 if version >= 12 else 3]:
            unknown = {"topic_id": uuid.uuid4().bytes, "name": name}
            reply = wire.call("metadata", version, topics=[unknown])
            topics = [(int(topic.error_code), topic.name, topic.topic_id is None) for topic in reply.topics]
            answers.append((version, name, topics, len(reply.brokers), reply.cluster_id is None))
    return answers


def _join(wire: Wire, group: str, protocols: list[str], member_id: str = "") -> Any:
    named = [{"name": name, "metadata": b"\0\1\0\0\0\0\0\0\0\0"} for name in protocols]
    deadline = time.monotonic() + 30
    while True:
        reply = wire.call(
            "join_group",
            7,
            group_id=group,
            session_timeout=10_000,
            rebalance_timeout=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=named,
        )
        if reply.error_code not in (*LOADING, MEMBER_ID_REQUIRED) or time.monotonic() > deadline:
            return reply
        if reply.error_code == MEMBER_ID_REQUIRED:
            member_id = reply.member_id
        else:
            time.sleep(0.1)


def _coordinator(wire: Wire, group: str) -> None:
    _until(
        lambda: wire.call("find_coordinator", 4, key_type=0, coordinator_keys=[group]).coordinators[0].error_code == 0,
        "the group has a coordinator",
    )


def protocol_named_twice(wire: Wire) -> Any:
    """A member that names one protocol twice beside another; Kafka never answers one that names nothing else."""
    answers = []
    for protocols in (["range", "sticky", "range"], ["range", "range", "sticky"]):
        group = unique("twice")
        _coordinator(wire, group)
        reply = _join(wire, group, protocols)
        answers.append((int(reply.error_code), len(reply.members)))
    return answers


def far_retention(wire: Wire) -> Any:
    """OffsetCommit with a retention time that ends after the last time of a 64-bit clock."""
    topic, group = wire.create_topic(), unique("far")
    _coordinator(wire, group)
    answers: list[Any] = []
    retentions = (MAX_LONG, MAX_LONG - 1, 2**62, 1, 0, -1, -2, -(2**63))
    for version in (2, 3, 4):
        answers += [(version, ms, _commit(wire, version, group, topic, ms)) for ms in retentions]
    fetched = wire.call("offset_fetch", 5, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}])
    answers.append(fetched.topics[0].partitions[0].committed_offset)
    return answers


def _commit(wire: Wire, version: int, group: str, topic: str, retention_ms: int) -> int:
    """By hand: the number of milliseconds is more than a timedelta can hold."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    partition = struct.pack(">iq", 0, 5) + text("")
    body = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">q", retention_ms)
    body += struct.pack(">i", 1) + text(topic) + struct.pack(">i", 1) + partition
    wire.send_frame(struct.pack(">hhi", 8, version, 77) + text("wire") + body)
    reply = wire.receive("offset_commit", version, 77)
    return int(reply.topics[0].partitions[0].error_code)


# Fetch sessions over topics that go and come again


def _fetch(wire: Wire, version: int, topics: dict[Any, list[int]], session: int, epoch: int, **fields: Any) -> Any:
    named = "topic_id" if version >= TOPIC_IDS_SINCE else "topic"
    listed = [
        {
            named: topic,
            "partitions": [
                {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
                for index in partitions
            ],
        }
        for topic, partitions in topics.items()
    ]
    return wire.call(
        "fetch",
        version,
        replica_id=-1,
        max_wait=fields.pop("max_wait", 0),
        min_bytes=0,
        max_bytes=1 << 20,
        session_id=session,
        session_epoch=epoch,
        topics=listed,
        **fields,
    )


def _codes(reply: Any, names: dict[Any, str]) -> Any:
    """A reply's error, and error and high watermark of each partition; the grouping of partitions does not matter."""
    partitions = []
    for topic in reply.responses:
        key = topic.topic_id.bytes if hasattr(topic, "topic_id") and topic.topic_id else getattr(topic, "topic", None)
        partitions += [
            (names.get(key, key), p.partition_index, int(p.error_code), p.high_watermark) for p in topic.partitions
        ]
    return int(reply.error_code), sorted(partitions, key=str)


def _topic(wire: Wire, name: str | None = None) -> tuple[str, bytes]:
    topic = wire.create_topic(name)
    _until(lambda: wire.produce(topic, batch(b"value")).error_code == 0, "a new topic takes records")
    return topic, wire.topic_id(topic)


def _delete(wire: Wire, topic: str) -> None:
    reply = wire.call("delete_topics", 6, topics=[{"name": topic}], timeout=10_000)
    assert reply.responses[0].error_code == 0, reply
    _until(lambda: _metadata(wire, topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is gone")


def _metadata(wire: Wire, topic: str) -> Any:
    return wire.call("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).topics[0]


def _sessions(version: int) -> Iterator[Probe]:
    def named(name: str, topic_id: bytes) -> Any:
        return topic_id if version >= TOPIC_IDS_SINCE else name

    def deleted_inside_a_session(wire: Wire) -> Any:
        (gone, gone_id), (kept, kept_id) = _topic(wire), _topic(wire)
        names = {gone_id: "gone", kept_id: "kept", gone: "gone", kept: "kept"}
        partitions = {named(gone, gone_id): [0], named(kept, kept_id): [0]}
        first = _fetch(wire, version, partitions, 0, NEW)
        _delete(wire, gone)
        replies = [first, *(_fetch(wire, version, {}, first.session_id, epoch) for epoch in (1, 2))]
        return [_codes(reply, names) for reply in replies]

    def made_anew_inside_a_session(wire: Wire) -> Any:
        (again, old_id), (kept, kept_id) = _topic(wire), _topic(wire)
        names = {old_id: "old", kept_id: "kept", again: "again", kept: "kept"}
        first = _fetch(wire, version, {named(again, old_id): [0], named(kept, kept_id): [0]}, 0, NEW)
        _delete(wire, again)
        _, new_id = _topic(wire, again)
        names[new_id] = "new"
        replies = [first, *(_fetch(wire, version, {}, first.session_id, epoch) for epoch in (1, 2))]
        replies.append(_fetch(wire, version, {named(again, new_id): [0]}, first.session_id, 3))
        replies.append(_fetch(wire, version, {}, first.session_id, 4))
        return [_codes(reply, names) for reply in replies]

    def unknown_from_the_start(wire: Wire) -> Any:
        kept, kept_id = _topic(wire)
        unknown_name, unknown_id = unique("unknown"), uuid.uuid4().bytes
        names = {unknown_id: "unknown", kept_id: "kept", unknown_name: "unknown", kept: "kept"}
        partitions = {named(unknown_name, unknown_id): [0], named(kept, kept_id): [0, 7]}
        outside = _fetch(wire, version, partitions, 0, FULL)
        first = _fetch(wire, version, partitions, 0, NEW)
        second = _fetch(wire, version, {}, first.session_id, 1)
        return [_codes(reply, names) for reply in (outside, first, second)]

    def unknown_that_comes_to_be(wire: Wire) -> Any:
        """Only a name can come to be; an id never comes back."""
        kept, kept_id = _topic(wire)
        late = unique("late")
        first = _fetch(wire, version, {late: [0], kept: [0]}, 0, NEW)
        _, late_id = _topic(wire, late)
        names = {late_id: "late", kept_id: "kept", late: "late", kept: "kept"}
        replies = [first, *(_fetch(wire, version, {}, first.session_id, epoch) for epoch in (1, 2))]
        return [_codes(reply, names) for reply in replies]

    def names_and_ids_mixed(wire: Wire) -> Any:
        """A session that begins with names continues with ids, or the other way round."""
        topic, topic_id = _topic(wire)
        names = {topic_id: "topic", topic: "topic"}
        first = _fetch(wire, version, {named(topic, topic_id): [0]}, 0, NEW)
        other = TOPIC_IDS_SINCE - 1 if version >= TOPIC_IDS_SINCE else TOPIC_IDS_SINCE
        reply = _fetch(wire, other, {}, first.session_id, 1)
        return _codes(first, names), _codes(reply, names)

    yield deleted_inside_a_session
    yield made_anew_inside_a_session
    yield unknown_from_the_start
    if version < TOPIC_IDS_SINCE:
        yield unknown_that_comes_to_be
    yield names_and_ids_mixed


# Requests of administration tools


def share_coordinator(wire: Wire) -> Any:
    """FindCoordinator for share groups, with keys good and bad."""
    answers = []
    good = f"{unique('group')}:{uuid.uuid4()}:0"
    for version in (3, 4, 5, 6):
        for key_type, key in (
            (2, "group"),
            (2, "group:no-uuid:0"),
            (2, ":x:0"),
            (2, good),
            (3, "x"),
            (7, "x"),
            (-1, "x"),
        ):
            if version < 4:
                reply = wire.call("find_coordinator", version, key_type=key_type, key=key)
                answers.append((version, key_type, key != good and key, int(reply.error_code)))
            else:
                reply = wire.call("find_coordinator", version, key_type=key_type, coordinator_keys=[key])
                codes = [int(coordinator.error_code) for coordinator in reply.coordinators]
                answers.append((version, key_type, key != good and key, codes))
    return answers


def acls(wire: Wire) -> Any:
    """Access rules where there is no authorizer."""
    answers = []
    rule = {
        "resource_type": 2,
        "resource_name": "topic",
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    listing = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    removing = {
        "resource_type_filter": 2,
        "resource_name_filter": "topic",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    for version in (1, 2, 3):
        reply = wire.call("describe_acls", version, **listing)
        answers.append((version, int(reply.error_code), reply.error_message, len(reply.resources)))
        created = wire.call("create_acls", version, creations=[rule, rule])
        answers.append([(int(result.error_code), result.error_message) for result in created.results])
        deleted = wire.call("delete_acls", version, filters=[removing])
        answers.append([(int(r.error_code), r.error_message, len(r.matching_acls)) for r in deleted.filter_results])
    return answers


def authorized_operations(wire: Wire) -> Any:
    """Authorized operations without an authorizer: requested and not requested."""
    topic, group, modern = wire.create_topic(), unique("classic"), unique("modern")
    _coordinator(wire, group)
    _coordinator(wire, modern)
    _join(wire, group, ["range"])
    heartbeat = {
        "group_id": modern,
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    _until(lambda: wire.call("consumer_group_heartbeat", 1, **heartbeat).error_code == 0, "a member has joined")
    answers: list[Any] = []
    for ask in (False, True):
        for version in (8, 9, 10, 12, 13):
            more = {"include_cluster_authorized_operations": ask} if version <= 10 else {}
            reply = wire.call(
                "metadata",
                version,
                topics=[{"name": topic}, {"name": "no-such-topic"}],
                include_topic_authorized_operations=ask,
                allow_auto_topic_creation=False,
                **more,
            )
            cluster = getattr(reply, "cluster_authorized_operations", None)
            topics = [(int(t.error_code), t.topic_authorized_operations) for t in reply.topics]
            answers.append(("metadata", version, ask, cluster, topics))
        for version in (0, 1, 2):
            reply = wire.call("describe_cluster", version, include_cluster_authorized_operations=ask)
            answers.append(("describe_cluster", version, ask, reply.cluster_authorized_operations))
        for version in (3, 4, 5, 6):
            reply = wire.call("describe_groups", version, groups=[group, "no-such"], include_authorized_operations=ask)
            answers.append(
                ("describe_groups", version, ask, [(int(g.error_code), g.authorized_operations) for g in reply.groups])
            )
        for version in (0, 1):
            reply = wire.call(
                "consumer_group_describe", version, group_ids=[modern, "no-such"], include_authorized_operations=ask
            )
            answers.append(
                ("group", version, ask, [(int(g.error_code), g.authorized_operations) for g in reply.groups])
            )
        reply = wire.call("describe_topic_partitions", 0, topics=[{"name": topic}], response_partition_limit=10)
        answers.append(("describe_topic_partitions", [t.topic_authorized_operations for t in reply.topics]))
    return answers


def static_voters(wire: Wire) -> Any:
    """Voters named in a properties file are shown without directory ids, the leader too."""
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    partition = wire.call("describe_quorum", 2, topics=topics).topics[0].partitions[0]
    return [(voter.replica_id, voter.replica_directory_id is None) for voter in partition.current_voters]


def sasl_on_plaintext(wire: Wire) -> Any:
    """SASL where a connection needs no authentication: listed, and refused when it is begun; the connection goes on."""
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in wire.call("api_versions", 0).api_keys}
    answers: list[Any] = [listed.get(17), listed.get(36)]
    for version in (0, 1):
        reply = wire.call("sasl_handshake", version, mechanism="PLAIN")
        answers.append((version, int(reply.error_code), list(reply.mechanisms)))
    for version in (0, 1, 2):
        reply = wire.call("sasl_authenticate", version, auth_bytes=b"\0user\0secret")
        answers.append((version, int(reply.error_code), reply.error_message, reply.auth_bytes))
    return answers


PROBES: Final[dict[str, Probe]] = {
    probe.__name__: probe
    for probe in (
        removed_min_isr,
        padded_number,
        long_value,
        metadata_by_id_and_name,
        protocol_named_twice,
        far_retention,
        share_coordinator,
        acls,
        authorized_operations,
        static_voters,
        sasl_on_plaintext,
    )
} | {f"{probe.__name__}_v{version}": probe for version in (12, 13, 17) for probe in _sessions(version)}
