"""The rules of replication as clients see them, on three real processes: who is in sync, what acks=all needs, racks.

One cluster serves all stories; each makes its own topic and leaves every node running.
"""

import time
import uuid

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from harness.cluster import KlammCluster
from harness.wire import Wire, batch, produce_fields
from klamm.model.errors import ErrorCode

pytestmark = pytest.mark.timeout(400)

PATIENCE_S = 90.0
QUIET = {"log_level": 0, "topic.metadata.refresh.interval.ms": 500}
NOT_ENOUGH_REPLICAS = 19


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    overrides = {
        "replica.lag.time.max.ms": "1000",
        "broker.session.timeout.ms": "60000",
        "replica.fetch.max.bytes": "20000",
        "replica.fetch.response.max.bytes": "50000",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with KlammCluster(tmp_path_factory.mktemp("rules"), 3, overrides=overrides, racks=True) as made:
        yield made


@pytest.fixture
def admin(cluster):
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})


@pytest.fixture
def make(admin):
    def create(partitions: int = 1, **config: str) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        config = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, 3, config=config)])[name].result(PATIENCE_S)
        return name

    return create


def partition(admin, topic):
    return admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0]


def wait(what, condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def wait_in_sync(admin, topic, count=3):
    wait(f"{count} in sync", lambda: len(partition(admin, topic).isrs) == count)


def send(cluster, topic, *values, acks="all", **settings) -> list[KafkaError | None]:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks, **QUIET, **settings})
    outcomes: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(PATIENCE_S)
    return outcomes


def test_a_follower_that_stands_still_leaves_and_comes_back(cluster, admin, make):
    """It is neither dead nor fenced: the leader alone notices, after replica.lag.time.max.ms."""
    topic = make(min_insync_replicas="1")
    wait_in_sync(admin, topic)
    chosen = partition(admin, topic)
    victim = next(n for n in chosen.replicas if n != chosen.leader)
    cluster.node(victim).pause()
    try:
        assert send(cluster, topic, b"x", **{"bootstrap.servers": cluster.node(chosen.leader).bootstrap}) == [None]
        others = AdminClient({"bootstrap.servers": cluster.node(chosen.leader).bootstrap, **QUIET})
        wait_in_sync(others, topic, 2)
    finally:
        cluster.node(victim).resume()
    wait_in_sync(admin, topic)


def test_too_few_in_sync_refuse_acks_all_and_nothing_else(cluster, admin, make):
    topic = make(min_insync_replicas="3")
    wait_in_sync(admin, topic)
    assert send(cluster, topic, b"before") == [None]
    chosen = partition(admin, topic)
    victim = next(n for n in chosen.replicas if n != chosen.leader)
    cluster.node(victim).kill9()
    try:
        others = AdminClient({"bootstrap.servers": cluster.node(chosen.leader).bootstrap, **QUIET})
        wait_in_sync(others, topic, 2)
        with Wire(cluster.node(chosen.leader).port) as wire:
            refused = wire.call("produce", 9, **{**produce_fields(topic, batch(b"no")), "acks": -1})
            assert refused.responses[0].partition_responses[0].error_code == NOT_ENOUGH_REPLICAS
            taken = wire.call("produce", 9, **{**produce_fields(topic, batch(b"yes")), "acks": 1})
            assert taken.responses[0].partition_responses[0].error_code == 0
            assert wire.list_offset(topic, -1).offset == 1, "nothing becomes visible while too few are in sync"
    finally:
        cluster.start([victim])
    wait_in_sync(admin, topic)
    with Wire(cluster.node(partition(admin, topic).leader).port) as wire:
        wait("it is visible now", lambda: wire.list_offset(topic, -1).offset == 2)


def test_partitions_that_do_not_fit_into_an_answer_get_their_turn(cluster, admin, make):
    """One request appends more than followers fetch at once; what was passed over must not be forgotten."""
    topic = make(partitions=24)
    wait_in_sync(admin, topic)
    parts = [{"index": index, "records": batch(bytes(18_000))} for index in range(24)]
    fields = {"acks": -1, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": parts}]}
    with Wire(cluster.node(1).port) as wire:
        answers = wire.call("produce", 9, **fields).responses[0].partition_responses
    led = [answer.error_code for answer in answers if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert len(led) == 8
    assert set(led) == {0}


def test_a_consumer_is_sent_to_its_rack_and_reads_there(cluster, admin, make):
    topic = make()
    wait_in_sync(admin, topic)
    assert send(cluster, topic, b"near") == [None]
    chosen = partition(admin, topic)
    near = next(n for n in chosen.replicas if n != chosen.leader)
    with Wire(cluster.node(chosen.leader).port) as wire:
        topic_id = wire.topic_id(topic)
        body = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        fields = {
            "replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1000,
            "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [body]}],
        }  # fmt: skip

        def preferred(rack):
            return wire.call("fetch", 13, rack_id=rack, **fields).responses[0].partitions[0]

        assert preferred(f"rack-{chosen.leader}").preferred_read_replica == -1
        assert preferred("elsewhere").preferred_read_replica == -1
        wait("the follower is known to have it", lambda: preferred(f"rack-{near}").preferred_read_replica == near)
        assert preferred(f"rack-{near}").records in (None, b"")
    with Wire(cluster.node(near).port) as wire:

        def read():
            return wire.call("fetch", 13, rack_id=f"rack-{near}", **fields).responses[0].partitions[0]

        wait("the follower knows what is committed", lambda: bool(read().records))
        assert b"near" in bytes(read().records)
        old = wire.call("fetch", 10, **fields).responses[0].partitions[0]
        assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "an old consumer must read from the leader"
        body["fetch_offset"] = 1000
        assert read().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "OFFSET_OUT_OF_RANGE would make it reset"
    with Wire(cluster.node(chosen.leader).port) as wire:
        assert (
            wire.call("fetch", 13, rack_id="", **fields).responses[0].partitions[0].error_code
            == ErrorCode.OFFSET_OUT_OF_RANGE
        )


def test_deleted_records_do_not_come_back_with_another_leader(cluster, admin, make):
    topic = make(min_insync_replicas="1")
    wait_in_sync(admin, topic)
    assert send(cluster, topic, *[b"%d" % number for number in range(10)]) == [None] * 10
    first = partition(admin, topic).leader
    with Wire(cluster.node(first).port) as wire:
        body = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 5}]}]
        answer = wire.call("delete_records", 2, topics=body, timeout=60_000).topics[0].partitions[0]
        assert (answer.error_code, answer.low_watermark) == (0, 5)
    cluster.node(first).kill9()
    try:
        alive = next(node for node in cluster.nodes if node.node_id != first)
        others = AdminClient({"bootstrap.servers": alive.bootstrap, **QUIET})
        wait("another leader", lambda: partition(others, topic).leader not in (first, -1))
        with Wire(cluster.node(partition(others, topic).leader).port) as wire:
            assert wire.list_offset(topic, -2).offset == 5
    finally:
        cluster.start([first])
    wait_in_sync(admin, topic)


def test_a_throttled_copy_is_slow_and_arrives(cluster, admin, make):
    """A follower that has to copy much does so at the rate it was given; those in sync are never slowed."""
    topic = make()
    wait_in_sync(admin, topic)
    chosen = partition(admin, topic)
    victim = next(n for n in chosen.replicas if n != chosen.leader)
    cluster.node(victim).kill9()
    names = AdminClient({"bootstrap.servers": cluster.node(chosen.leader).bootstrap, **QUIET})
    try:
        wait_in_sync(names, topic, 2)
        wanted = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}
        _alter(names, topic, wanted)
        _set_rates(cluster.node(chosen.leader).port, "200000")
        values = [bytes(100_000)] * 20
        assert (
            send(cluster, topic, *values, **{"bootstrap.servers": cluster.node(chosen.leader).bootstrap}) == [None] * 20
        )
    finally:
        began = time.monotonic()
        cluster.start([victim])
    wait_in_sync(admin, topic)
    took = time.monotonic() - began
    _set_rates(cluster.node(chosen.leader).port, None)
    assert took > 3.0, "2 MB at 200 KB/s do not arrive at once"


def _set_rates(port, rate):
    """For all brokers, which confluent-kafka has no name for."""
    names = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    configs = [{"name": name, "config_operation": 0 if rate else 1, "value": rate} for name in names]
    with Wire(port) as wire:
        body = [{"resource_type": 4, "resource_name": "", "configs": configs}]
        reply = wire.call("incremental_alter_configs", 1, resources=body, validate_only=False)
        assert [response.error_code for response in reply.responses] == [0]


def _alter(admin, topic, values):
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)
