"""The metrics and the health of three real processes: lag of partitions of other nodes, a node that is killed."""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from harness import KlammCluster, Wire, batch, unique
from harness.members import wait_until
from harness.scrapes import Scrape, check_health, served_address
from harness.wire import produce_fields

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]

SETTINGS = {
    "metrics.listeners": "127.0.0.1:0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
CONTROLLER = "kafka_controller_kafkacontroller_"
REPLICAS = "kafka_server_replicamanager_"
RAFT = "kafka_server_raftmetrics_"
PURGATORY = "kafka_server_delayedoperationpurgatory_purgatorysize"
MAX_LAG = "kafka_server_replicafetchermanager_maxlag"
SECONDS = "kafka_consumergroup_group_lag_seconds"
GROUPS = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KlammCluster(tmp_path_factory.mktemp("metrics"), overrides=SETTINGS) as running:
        yield running


@pytest.fixture(autouse=True)
def delete_topics(cluster):
    """Restarts elect leaders of the partitions with one replica, which would count in other tests."""
    yield
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]
    for future in admin.delete_topics(topics).values() if topics else ():
        future.result(60)


def addresses(cluster):
    return [served_address(node.log()) for node in cluster.nodes if node.process is not None]


def create_topic(cluster, partitions, factor, **config):
    name = unique("metrics")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, partitions, factor, config=config)])[name].result(60)
    return name


def produce(cluster, topic, times_ms, partitions):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20})
    for time_ms in times_ms:
        for partition in range(partitions):
            producer.produce(topic, b"x", partition=partition, timestamp=time_ms)
    assert producer.flush(60) == 0


def find_lags(cluster, topic, group):
    """The lag in seconds by partition, over all nodes: the coordinator's; None where it is not served."""
    scrapes = [Scrape(address) for address in addresses(cluster)]
    lags = {}
    for partition in ("0", "1", "2"):
        values = [scrape.find(SECONDS, group=group, topic=topic, partition=partition) for scrape in scrapes]
        lags[partition] = next((value for value in values if value is not None), None)
    return lags


def test_a_group_that_commits_between_scrapes_always_has_a_lag_in_seconds(cluster):
    """Two of three partitions have no replica on the group's coordinator."""
    topic, group = create_topic(cluster, 3, 1), unique("moving")
    now_ms = int(time.time() * 1000)
    # One record a minute in each partition, the first one five hours old.
    produce(cluster, topic, [now_ms - (300 - number) * 60_000 for number in range(300)], 3)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        for offset in range(40, 280, 30):
            partitions = [TopicPartition(topic, partition, offset) for partition in range(3)]
            consumer.commit(offsets=partitions, asynchronous=False)
            if offset == 40:
                wait_until(lambda: None not in find_lags(cluster, topic, group).values(), what="no lag is served")
            lags = find_lags(cluster, topic, group)
            age_s = time.time() - (now_ms / 1000 - (300 - offset) * 60)
            for partition, lag in lags.items():
                assert lag is not None, f"no lag of partition {partition} at {offset}"
                # Interpolated until the leaders are asked again: by far nearer than the hours between the records.
                assert abs(lag - age_s) <= max(0.1 * age_s, 60), f"partition {partition} at {offset}"

        def is_exact():
            age_s = time.time() - (now_ms / 1000 - (300 - 250) * 60)
            return all(abs(lag - age_s) <= max(0.03 * age_s, 2) for lag in find_lags(cluster, topic, group).values())

        wait_until(is_exact, what="the lag did not become exact")
    finally:
        consumer.close()


def test_a_group_that_has_read_everything_of_other_nodes_has_no_lag(cluster):
    topic, group = create_topic(cluster, 3, 1), unique("done")
    produce(cluster, topic, [1_700_000_000_000] * 5, 3)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, index, 5) for index in range(3)], asynchronous=False)
    finally:
        consumer.close()
    wait_until(lambda: find_lags(cluster, topic, group) == {"0": 0.0, "1": 0.0, "2": 0.0})


def test_hundreds_of_groups_have_their_lag_after_a_few_scrapes(cluster):
    topic = create_topic(cluster, 3, 1)
    now_ms = int(time.time() * 1000)
    produce(cluster, topic, [now_ms - 3_600_000 + number * 3_000 for number in range(1_000)], 3)
    groups = [unique("many") for _ in range(GROUPS)]
    by_node = {}
    with Wire(cluster.nodes[0].port) as wire:
        for coordinator in wire.call("find_coordinator", 4, key_type=0, coordinator_keys=groups).coordinators:
            by_node.setdefault(coordinator.node_id, []).append(coordinator.key)
    for node_id, keys in by_node.items():
        with Wire(cluster.node(node_id).port) as wire:
            for key in keys:
                offset = 3 * groups.index(key)
                partitions = [{"partition_index": index, "committed_offset": offset} for index in range(3)]
                fields = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
                wire.call(
                    "offset_commit", 8, group_id=key, topics=[{"name": topic, "partitions": partitions}], **fields
                )

    def count_served():
        served = 0
        for address in addresses(cluster):
            scrape = Scrape(address)
            served += sum(labels["topic"] == topic for labels in scrape.labels(SECONDS))
        return served

    wait_until(lambda: count_served() == 3 * GROUPS, what="groups without a lag in seconds")
    scrapes = [Scrape(address) for address in addresses(cluster)]
    for number, group in enumerate(groups):
        seconds = sum(scrape.sum("kafka_consumergroup_group_max_lag_seconds", group=group) for scrape in scrapes)
        age_s = time.time() - now_ms / 1000 + 3_600 - 9 * number
        assert abs(seconds - age_s) <= 0.05 * age_s, f"group {number}"


def scrape_all(cluster):
    """Scrapes of the running nodes, by node."""
    return {node.node_id: Scrape(served_address(node.log())) for node in cluster.nodes if node.process is not None}


def total(cluster, name, **labels):
    return sum(scrape.sum(name, **labels) for scrape in scrape_all(cluster).values())


def active_controller(cluster):
    """The node that alone says that its controller is active."""

    def find():
        active = [
            node for node, scrape in scrape_all(cluster).items() if scrape.value(CONTROLLER + "activecontrollercount")
        ]
        return active[0] if len(active) == 1 else None

    wait_until(lambda: find() is not None, what="not one active controller")
    return cluster.node(find())


def wait_whole(cluster):
    """Until every replica is in sync and every node knows it."""

    def is_whole():
        return all(check_health(address, "/health/cluster")[0] == 200 for address in addresses(cluster))

    wait_until(is_whole, what="the cluster does not become healthy")


def assigned_topic(cluster, *replicas, **config):
    name = unique("assigned")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(name, len(replicas), replica_assignment=list(replicas), config=config)
    admin.create_topics([topic])[name].result(60)
    return name


def test_a_killed_node_shows_in_metrics_and_health_until_it_is_back(cluster):
    controller = active_controller(cluster)
    victim, other = (node for node in cluster.nodes if node is not controller)
    safe = assigned_topic(cluster, *[[controller.node_id, victim.node_id, other.node_id]] * 4)
    single = assigned_topic(cluster, [victim.node_id])
    wait_whole(cluster)
    before = scrape_all(cluster)
    at_controller = before[controller.node_id]
    assert at_controller.value(CONTROLLER + "offlinepartitionscount") == 0
    assert at_controller.value(CONTROLLER + "activebrokercount") == 3
    assert before[other.node_id].value(CONTROLLER + "globalpartitioncount") == 0, "only the active controller counts"
    assert {scrape.value(RAFT + "current_leader") for scrape in before.values()} == {controller.node_id}
    assert before[controller.node_id].value(RAFT + "current_state", current_state="leader") == 1
    assert before[other.node_id].value(RAFT + "current_state", current_state="follower") == 1
    assert at_controller.value(RAFT + "number_of_voters") == 3
    shrinks = at_controller.value(REPLICAS + "isrshrinks_total")
    expands = at_controller.value(REPLICAS + "isrexpands_total")

    victim.kill9()
    address = served_address(controller.log())
    wait_until(lambda: check_health(address, "/ready/cluster")[0] == 503, what="still ready")
    status, readiness = check_health(address, "/ready/cluster")
    assert (status, readiness["status"]) == (503, "failing")
    assert readiness["problems"] == [f"partitions without a leader: {readiness['offline_partitions']}"]
    assert readiness["active_brokers"] == 2
    status, health = check_health(address, "/health/cluster")
    assert status == 503
    assert f"brokers are fenced: {victim.node_id}" in health["problems"]
    assert health["under_replicated_partitions"] >= 5
    for path in ("/health", "/ready"):
        assert check_health(address, path)[0] == 200, "the node itself is well"
    scrape = Scrape(address)
    assert scrape.value(CONTROLLER + "offlinepartitionscount") >= 1
    assert scrape.value(CONTROLLER + "fencedbrokercount") == 1
    assert scrape.value("kafka_brokers") == 2
    assert scrape.value(REPLICAS + "underreplicatedpartitions") >= 4
    assert scrape.value(REPLICAS + "isrshrinks_total") >= shrinks + 4
    for index in range(4):
        labels = {"topic": safe, "partition": str(index)}
        assert scrape.value("kafka_cluster_partition_underreplicated", **labels) == 1
        assert scrape.value("kafka_cluster_partition_insyncreplicascount", **labels) == 2
        assert scrape.value("kafka_cluster_partition_atminisr", **labels) == 1
    assert scrape.find("kafka_topic_partition_leader", topic=single, partition="0") is None

    victim.start()
    wait_whole(cluster)
    scrape = Scrape(address)
    assert scrape.value(CONTROLLER + "offlinepartitionscount") == 0
    assert scrape.value(REPLICAS + "underreplicatedpartitions") == 0
    assert scrape.value(REPLICAS + "isrexpands_total") >= expands + 4
    back = Scrape(served_address(victim.log()))
    wait_until(
        lambda: Scrape(served_address(victim.log())).value(RAFT + "current_state", current_state="follower") == 1
    )
    assert back.value(RAFT + "log_end_offset") > 0


def test_another_controller_takes_over_in_a_new_epoch(cluster):
    controller = active_controller(cluster)
    wait_whole(cluster)
    epoch = Scrape(served_address(controller.log())).value(RAFT + "current_epoch")
    controller.kill9()
    try:
        successor = active_controller(cluster)
        assert successor is not controller
        scrape = Scrape(served_address(successor.log()))
        assert scrape.value(RAFT + "current_epoch") > epoch
        assert scrape.value(RAFT + "current_vote") == successor.node_id
        wait_until(
            lambda: Scrape(served_address(successor.log())).value(CONTROLLER + "fencedbrokercount") == 1,
            what="the killed node is not fenced",
        )
    finally:
        controller.start()
    wait_whole(cluster)


def test_an_unclean_election_is_counted_once(cluster):
    name = "kafka_controller_controllerstats_uncleanleaderelections_total"
    controller = active_controller(cluster)
    leader, follower = (node for node in cluster.nodes if node is not controller)
    config = {"min.insync.replicas": "1"}
    topic = assigned_topic(cluster, [leader.node_id, follower.node_id], **config)
    wait_whole(cluster)
    before = total(cluster, name)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    follower.kill9()

    def is_alone():
        scrape = Scrape(served_address(leader.log()))
        return scrape.find("kafka_cluster_partition_insyncreplicascount", topic=topic, partition="0") == 1

    wait_until(is_alone, what="the follower stays in the ISR")
    producer.produce(topic, b"lost", partition=0)
    assert producer.flush(60) == 0
    leader.kill9()
    follower.start()
    try:
        address = served_address(controller.log())
        wait_until(lambda: Scrape(address).value("kafka_brokers") == 2, what="the follower is not back")
        assert total(cluster, name) == before
        requested = [{"topic": topic, "partitions": [0]}]
        with Wire(active_controller(cluster).port) as wire:
            wire.call("elect_leaders", 2, election_type=1, topic_partitions=requested, timeout=10_000)
        wait_until(lambda: total(cluster, name) == before + 1, what="the election is not counted")
    finally:
        leader.start()
    wait_whole(cluster)
    assert total(cluster, name) == before + 1


def test_a_transaction_whose_markers_cannot_be_written_stays_open(cluster):
    """It has ended for its producer, but a leader that is down has not taken its marker."""
    controller = active_controller(cluster)
    victim, _ = (node for node in cluster.nodes if node is not controller)
    topic = assigned_topic(cluster, [victim.node_id])
    wait_whole(cluster)
    assert total(cluster, "klamm_transactions_open") == 0
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": unique("txn")})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(60)
    assert total(cluster, "klamm_transactions_open") == 1
    assert total(cluster, "klamm_partition_transactions_open") == 1
    assert total(cluster, "klamm_transactions_stuck") == 0
    victim.kill9()
    try:
        wait_until(lambda: check_health(served_address(controller.log()), "/ready/cluster")[0] == 503)
        producer.commit_transaction(60)
        assert total(cluster, "klamm_transactions_open") == 1
        wait_until(lambda: total(cluster, "klamm_transactions_oldest_seconds") > 1)
    finally:
        victim.start()
    wait_until(lambda: total(cluster, "klamm_transactions_open") == 0, what="the transaction stays open")
    assert total(cluster, "klamm_partition_transactions_open") == 0
    wait_whole(cluster)


def test_an_append_that_waits_for_a_follower_is_in_the_purgatory(cluster):
    controller = active_controller(cluster)
    victim, _ = (node for node in cluster.nodes if node is not controller)
    config = {"min.insync.replicas": "1"}
    topic = assigned_topic(cluster, [controller.node_id, victim.node_id], **config)
    wait_whole(cluster)
    address = served_address(controller.log())
    with Wire(controller.port, timeout=60) as wire:
        victim.pause()
        try:
            wire.send("produce", 9, **produce_fields(topic, batch(b"x")))
            wait_until(lambda: Scrape(address).value(PURGATORY, delayedOperation="Produce") == 1)
            assert Scrape(address).value("klamm_follower_max_lag_records") >= 1
        finally:
            victim.resume()
        wire.receive("produce", 9)
    wait_until(lambda: Scrape(address).value(PURGATORY, delayedOperation="Produce") == 0)
    wait_whole(cluster)


def test_a_throttled_follower_tells_how_far_it_is_behind(cluster):
    controller = active_controller(cluster)
    victim, _ = (node for node in cluster.nodes if node is not controller)
    config = {"min.insync.replicas": "1", "follower.replication.throttled.replicas": "*"}
    topic = assigned_topic(cluster, [controller.node_id, victim.node_id], **config)
    wait_whole(cluster)
    # Before: librdkafka sends settings of a broker to that broker.
    set_rate(cluster, victim, "20000")
    victim.kill9()
    # In batches of one record each, more than the follower may copy in a second.
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 1, "linger.ms": 0})
    for _ in range(60):
        producer.produce(topic, b"x" * 50_000, partition=0)
    assert producer.flush(60) == 0
    victim.start()
    try:
        address = served_address(victim.log())
        wait_until(lambda: Scrape(address).value(MAX_LAG, clientId="Replica") >= 10, what="no lag of the follower")
    finally:
        set_rate(cluster, victim, None)
    wait_whole(cluster)
    wait_until(lambda: Scrape(address).value(MAX_LAG, clientId="Replica") == 0)


def set_rate(cluster, node, rate):
    """Set how many bytes a second a node copies of throttled replicas; None for no limit."""
    operation = AlterConfigOpType.DELETE if rate is None else AlterConfigOpType.SET
    entry = ConfigEntry("follower.replication.throttled.rate", rate, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node.node_id), incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)
