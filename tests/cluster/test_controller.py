"""Three real processes: any broker takes admin requests, the dead are noticed, leaders and replicas move.

Topics, configs and records are made with librdkafka; what became of them is read from every broker's own Metadata.
"""

import contextlib
import time
from operator import attrgetter

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from harness import KlammCluster, Wire, unique
from klamm.model.errors import ErrorCode

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]

PATIENCE_S = 60.0
SETTINGS = {
    "broker.session.timeout.ms": "60000",
    "auto.leader.rebalance.enable": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A session lasts a minute here: who is fenced sooner was noticed by its refused connection."""

    with KlammCluster(tmp_path_factory.mktemp("cluster"), overrides=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def everybody_is_back(request):
    """Each story starts and ends with three nodes."""
    cluster = request.getfixturevalue("cluster" if "cluster" in request.fixturenames else "hasty")
    yield
    for node in cluster.nodes:
        if node.process is None:
            node.start()
    for node in cluster.nodes:
        wait_until(lambda node=node: brokers(node) == [1, 2, 3], f"node {node.node_id} knows all")


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def ask(node, api, version, **fields):
    with Wire(node.port) as wire:
        return wire.call(api, version, **fields)


def brokers(node):
    """Those that are not fenced; Metadata still names for a session one that has left."""
    return sorted(broker.broker_id for broker in ask(node, "describe_cluster", 1).brokers)


def partitions(node, topic):
    described = ask(node, "metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False).topics[0]
    return sorted(described.partitions, key=attrgetter("partition_index"))


def leaders(node, topic):
    return [partition.leader_id for partition in partitions(node, topic)]


def in_sync(node, topic):
    return all(sorted(partition.isr_nodes) == sorted(partition.replica_nodes) for partition in partitions(node, topic))


def controller(cluster, node=None):
    requested = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = ask(node or cluster.nodes[0], "describe_quorum", 2, topics=requested)
    return cluster.node(answer.topics[0].partitions[0].leader_id)


def others(cluster, *nodes):
    return [node for node in cluster.nodes if node not in nodes]


def create(cluster, partitions=3, replication_factor=3, **configs):
    name = unique()
    configs = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, partitions, replication_factor, config=configs)])[name].result(PATIENCE_S)
    for node in cluster.nodes:
        if node.process is not None:
            wait_until(lambda node=node: len(leaders(node, name)) == partitions, "every node knows the topic")
    return name


def assign(cluster, *replicas):
    """A topic with its replicas placed by hand, whose leader may be in sync alone."""
    name = unique()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    placed = [list(replica) for replica in replicas]
    topic = NewTopic(name, len(replicas), replica_assignment=placed, config={"min.insync.replicas": "1"})
    admin.create_topics([topic])[name].result(PATIENCE_S)
    return name


def write(cluster, topic, count=100, partition=0):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    failed = []
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=partition,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(cluster, topic, count, partition=0):
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(int(message.value()))
    consumer.close()
    return values


def test_every_broker_takes_admin_requests(cluster):
    """Two of three brokers are not the controller: what they are asked travels."""
    for node in cluster.nodes:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        name = unique()
        with Wire(node.port) as wire:
            wire.create_topic(name, partitions=2)
            described = wire.call("metadata", 12, topics=[{"name": name}]).topics[0]
            assert (described.error_code, len(described.partitions)) == (0, 2), "known here as soon as it is answered"
            grown = wire.call("create_partitions", 3, topics=[{"name": name, "count": 4}], timeout=10_000)
            assert grown.results[0].error_code == 0
            assert len(wire.call("metadata", 12, topics=[{"name": name}]).topics[0].partitions) == 4
        resource = ConfigResource(
            ConfigResource.Type.TOPIC,
            name,
            incremental_configs=[ConfigEntry("retention.ms", "4711", incremental_operation=AlterConfigOpType.SET)],
        )
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

        def retention(admin=admin, name=name):
            configs = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)])
            return next(iter(configs.values())).result(PATIENCE_S)["retention.ms"].value

        # Another broker than the one that was told may answer.
        wait_until(lambda: retention() == "4711", "the setting is known")
        admin.delete_topics([name])[name].result(PATIENCE_S)
        for other in cluster.nodes:
            wait_until(lambda o=other, n=name: not partitions(o, n), "the topic is gone everywhere")


def test_quotas_of_changes_hold_wherever_a_client_is_connected(cluster):
    for node in cluster.nodes:
        client_id = unique("client")
        limit = {"key": "controller_mutation_rate", "value": 1.0, "remove": False}
        entity = [{"entity_type": "client-id", "entity_name": client_id}]
        entry = {"entity": entity, "ops": [limit]}
        altered = ask(node, "alter_client_quotas", 1, entries=[entry], validate_only=False)
        assert altered.entries[0].error_code == 0
        component = {"entity_type": "client-id", "match_type": 0, "match": client_id}
        for other in cluster.nodes:
            wait_until(
                lambda other=other, component=component: (
                    ask(other, "describe_client_quotas", 1, components=[component], strict=True).entries
                ),
                f"node {other.node_id} has the quota",
            )
        # Two of the nodes forward the request in an Envelope; the third is the controller itself.
        names = [unique() for _ in range(3)]
        topics = [{"name": name, "num_partitions": 10, "replication_factor": 1} for name in names]
        with Wire(node.port, client_id=client_id) as wire:
            reply = wire.call("create_topics", 7, topics=topics, timeout=30_000)
        codes = {topic.name: topic.error_code for topic in reply.topics}
        assert codes == dict(zip(names, (0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED), strict=True))
        assert reply.throttle_time.total_seconds() > 0


def test_refusals_are_the_controllers_own(cluster):
    """Errors decided far away come back in the words of the API."""
    name = create(cluster)
    for node in cluster.nodes:
        reply = ask(node, "create_topics", 7, topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}])
        assert ErrorCode(reply.topics[0].error_code) is ErrorCode.TOPIC_ALREADY_EXISTS
        wish = {"name": unique(), "num_partitions": 1, "replication_factor": 9}
        reply = ask(node, "create_topics", 7, topics=[wish], timeout=10_000)
        assert ErrorCode(reply.topics[0].error_code) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_leaders_and_replicas_are_spread(cluster):
    name = create(cluster, partitions=9, replication_factor=2)
    placed = partitions(cluster.nodes[0], name)
    held = [replica for partition in placed for replica in partition.replica_nodes]
    assert sorted(partition.leader_id for partition in placed) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert sorted(held) == [1] * 6 + [2] * 6 + [3] * 6


def test_producer_ids_differ_between_brokers(cluster):
    given = [ask(node, "init_producer_id", 4, transactional_id=None).producer_id for node in cluster.nodes * 3]
    assert len(set(given)) == len(given)


def test_a_killed_broker_is_noticed_at_once(cluster):
    name = create(cluster)
    active = controller(cluster)
    victim, other = others(cluster, active)
    write(cluster, name)
    victim.kill9()
    wait_until(lambda: brokers(other) == sorted([active.node_id, other.node_id]), "the dead broker is fenced")
    assert victim.node_id not in leaders(other, name)
    write(cluster, name)
    victim.start()
    wait_until(lambda: in_sync(other, name), "it has caught up")
    assert read(cluster, name, 200) == [*range(100), *range(100)]


def test_a_killed_controller_is_noticed_by_the_next_one(cluster):
    name = create(cluster)
    active = controller(cluster)
    rest = others(cluster, active)
    active.kill9()
    wait_until(lambda: brokers(rest[0]) == [node.node_id for node in rest], "the next controller fenced the last")
    assert active.node_id not in leaders(rest[0], name)
    assert create(cluster, replication_factor=2), "admin requests find the new controller"


def test_a_stopped_broker_hands_its_leaders_over(cluster):
    """From the first to the last moment every partition has a leader in every broker's eyes."""
    name = create(cluster, partitions=6)
    active = controller(cluster)
    victim, other = others(cluster, active)
    victim.ask_to_stop()
    while victim.process.poll() is None:
        assert -1 not in leaders(other, name)
        time.sleep(0.005)
    victim.wait_stopped()
    assert victim.node_id not in leaders(other, name)
    assert brokers(other) == sorted([active.node_id, other.node_id])


def test_a_stopped_controller_hands_over_too(cluster):
    name = create(cluster, partitions=6)
    active = controller(cluster)
    rest = others(cluster, active)
    active.stop()
    wait_until(lambda: active.node_id not in leaders(rest[0], name) + brokers(rest[0]), "it has gone")
    assert -1 not in leaders(rest[0], name)


def test_without_a_majority_nothing_is_decided_and_that_is_said(cluster):
    survivor, *rest = cluster.nodes
    name = create(cluster, partitions=1)
    for node in rest:
        node.kill9()
    wish = {"name": unique(), "num_partitions": 1, "replication_factor": 1}
    with Wire(survivor.port) as wire:
        reply = wire.call("create_topics", 7, topics=[wish], timeout=1_000)
        assert ErrorCode(reply.topics[0].error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert reply.topics[0].error_message
        requested = [{"topic": name, "partitions": [0]}]
        reply = wire.call("elect_leaders", 2, topic_partitions=requested, timeout=1_000)
        assert ErrorCode(reply.error_code) is ErrorCode.REQUEST_TIMED_OUT
        assert len(wire.call("metadata", 12, topics=[{"name": name}]).topics[0].partitions) == 1, "reading goes on"


def test_preferred_leaders_come_back_on_request(cluster):
    name = assign(cluster, [1, 2, 3], [2, 3, 1], [3, 1, 2])
    cluster.node(3).restart()
    wait_until(lambda: in_sync(cluster.node(1), name), "all replicas are in sync")
    assert leaders(cluster.node(1), name)[2] != 3
    reply = ask(cluster.node(2), "elect_leaders", 2, topic_partitions=None, timeout=10_000)
    assert reply.error_code == 0
    wait_until(lambda: leaders(cluster.node(1), name) == [1, 2, 3], "each leads its own")
    requested = [{"topic": name, "partitions": [0]}]
    reply = ask(cluster.node(2), "elect_leaders", 2, topic_partitions=requested, timeout=10_000)
    result = reply.replica_election_results[0].partition_result[0]
    assert ErrorCode(result.error_code) is ErrorCode.ELECTION_NOT_NEEDED


def move(node, topic, replicas, partition=0):
    part = {"partition_index": partition, "replicas": replicas}
    wish = [{"name": topic, "partitions": [part]}]
    reply = ask(node, "alter_partition_reassignments", 0, timeout=10_000, topics=wish)
    assert reply.error_code == 0
    assert reply.responses[0].partitions[0].error_code == 0, reply


def moving(node, topic):
    reassigned = ask(node, "list_partition_reassignments", 0, timeout=10_000, topics=None).topics
    return topic in [entry.name for entry in reassigned]


def test_replicas_move_with_their_records(cluster):
    name = assign(cluster, [1])
    write(cluster, name)
    node = cluster.node(2)
    move(node, name, [2, 3])
    wait_until(lambda: not moving(node, name), "the move is over")
    wait_until(lambda: partitions(node, name)[0].replica_nodes == (2, 3), "it lives elsewhere")
    assert leaders(node, name) == [2]
    assert read(cluster, name, 100) == list(range(100))
    write(cluster, name)
    assert read(cluster, name, 200) == [*range(100), *range(100)]
    move(node, name, [3, 1, 2])
    wait_until(lambda: not moving(node, name) and in_sync(node, name), "it has grown")
    move(node, name, [1])
    wait_until(lambda: partitions(node, name)[0].replica_nodes == (1,), "it has shrunk")
    assert read(cluster, name, 200) == [*range(100), *range(100)]


def test_a_move_to_a_dead_broker_waits_and_can_be_taken_back(cluster):
    name = assign(cluster, [1, 2])
    write(cluster, name)
    cluster.node(3).kill9()
    node = cluster.node(1)
    wait_until(lambda: brokers(node) == [1, 2], "3 is gone")
    move(node, name, [3, 2])
    assert moving(node, name)
    move(node, name, None)
    assert not moving(node, name)
    assert sorted(partitions(node, name)[0].replica_nodes) == [1, 2]
    assert read(cluster, name, 100) == list(range(100))


def test_only_an_eligible_replica_leads_until_unclean_election_is_allowed(cluster):
    name = assign(cluster, [1, 2])
    write(cluster, name)
    cluster.node(2).kill9()
    node = cluster.node(3)
    wait_until(lambda: partitions(node, name)[0].isr_nodes == (1,), "1 alone is in sync")
    write(cluster, name, 10)
    cluster.node(1).kill9()
    cluster.node(2).start()
    wait_until(lambda: brokers(node) == [2, 3], "2 is back, 1 is not")
    assert leaders(node, name) == [-1], "2 does not have the last ten records"
    requested = [{"topic": name, "partitions": [0]}]
    reply = ask(node, "elect_leaders", 2, election_type=1, topic_partitions=requested, timeout=10_000)
    assert reply.replica_election_results[0].partition_result[0].error_code == 0
    wait_until(lambda: leaders(node, name) == [2], "the unclean election takes the old leader")
    assert read(cluster, name, 100) == list(range(100))


def test_a_broker_that_will_not_come_back_is_forgotten(cluster):
    cluster.node(3).stop()
    node = cluster.node(1)
    wait_until(lambda: brokers(node) == [1, 2], "3 has gone")
    assert ask(node, "unregister_broker", 0, broker_id=3).error_code == 0
    described = ask(cluster.node(2), "describe_cluster", 1, endpoint_type=1)
    assert sorted(broker.broker_id for broker in described.brokers) == [1, 2]
    reply = ask(node, "unregister_broker", 0, broker_id=3)
    assert ErrorCode(reply.error_code) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_every_broker_describes_the_cluster_alike(cluster):
    descriptions = []
    for node in cluster.nodes:
        described = ask(node, "describe_cluster", 1, endpoint_type=1)
        assert described.controller_id in (1, 2, 3)
        descriptions.append((described.cluster_id, sorted((b.broker_id, b.host, b.port) for b in described.brokers)))
    assert descriptions[0] == descriptions[1] == descriptions[2]
    assert [port for _, _, port in descriptions[0][1]] == [node.port for node in cluster.nodes]


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """With short times, for what happens by itself."""
    overrides = {
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "300",
        "leader.imbalance.check.interval.seconds": "1",
        "unclean.leader.election.interval.ms": "1000",
    }
    with KlammCluster(tmp_path_factory.mktemp("hasty"), overrides=overrides) as running:
        yield running


class TestTimers:
    """What happens by itself."""

    def test_a_paused_broker_loses_its_session_and_comes_back(self, hasty):
        name = create(hasty)
        active = controller(hasty)
        victim, other = others(hasty, active)
        victim.pause()
        try:
            wait_until(lambda: victim.node_id not in brokers(other), "its session is over")
            assert victim.node_id not in leaders(other, name)
            assert -1 not in leaders(other, name)
        finally:
            victim.resume()
        wait_until(lambda: brokers(other) == [1, 2, 3], "it is let in again")
        wait_until(lambda: in_sync(other, name), "it has caught up")

    def test_leaders_go_home_by_themselves(self, hasty):
        name = assign(hasty, [1, 2, 3], [2, 3, 1], [3, 1, 2])
        hasty.node(2).restart()
        wait_until(lambda: leaders(hasty.node(1), name) == [1, 2, 3], "each leads its own again")

    def test_allowing_an_unclean_leader_is_heard(self, hasty):
        name = assign(hasty, [1, 2])
        write(hasty, name)
        hasty.node(2).kill9()
        node = hasty.node(3)
        wait_until(lambda: partitions(node, name)[0].isr_nodes == (1,), "1 alone is in sync")
        write(hasty, name, 10)
        hasty.node(1).kill9()
        hasty.node(2).start()
        wait_until(lambda: brokers(node) == [2, 3], "2 is back, 1 is not")
        assert leaders(node, name) == [-1]
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        wait_until(lambda: leaders(node, name) == [2], "the topic allows it now")
