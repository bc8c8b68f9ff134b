"""Three nodes: leaders and coordinators move while records flow; nothing is lost, nothing comes twice."""

import threading

import pytest

from harness import KlammCluster, unique
from harness.client_stories import PATIENCE_S, read_all, reader, until
from klamm.client import Admin, Producer, TopicPartition

COUNT = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with KlammCluster(tmp_path_factory.mktemp("cluster"), overrides={"group.initial.rebalance.delay.ms": "0"}) as nodes:
        yield nodes


def replicated(bootstrap, partitions=3):
    name = unique("client")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(name, partitions, 3)
    return name


def leader_of(admin, name):
    return admin.describe_topics([name])[name].partitions[0].leader


def coordinator_of(admin, group):
    return admin.describe_groups([group])[group].coordinator.id


@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_leaders_and_coordinators_move(cluster, protocol):
    name, group = replicated(cluster.bootstrap), unique("group")
    seen: list[int] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def consume():
        try:
            with reader(cluster.bootstrap, group_id=group, group_protocol=protocol) as consumer:
                consumer.subscribe([name])
                while not stop.is_set():
                    seen.extend(int(record.value) for record in consumer.poll(0.2))
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        with (
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Admin(bootstrap_servers=cluster.bootstrap) as admin,
        ):
            promised = []
            for number in range(COUNT):
                promised.append(producer.send(name, b"%d" % number, partition=number % 3))
                if number in (300, 600):
                    lost = leader_of(admin, name) if number == 300 else coordinator_of(admin, group)
                    cluster.node(lost).kill9()
                    promised[-1].result(PATIENCE_S)
                    cluster.node(lost).start()
            producer.flush(PATIENCE_S)
            assert all(delivery.metadata.offset >= 0 for delivery in promised)
        until(lambda: failures or len(set(seen)) == COUNT, "everything is read")
        assert not failures
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    records = read_all(cluster.bootstrap, name, COUNT)
    for partition in range(3):
        assert [int(record.value) for record in records if record.partition == partition] == list(
            range(partition, COUNT, 3)
        )


@pytest.mark.timeout(240)
@pytest.mark.parametrize("coordinator", [False, True], ids=["leader", "coordinator"])
def test_a_transaction_survives_the_loss_of_a_leader_and_of_its_coordinator(cluster, coordinator):
    name, transactional_id = replicated(cluster.bootstrap), unique("tx")
    with (
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap, transactional_id=transactional_id) as producer,
    ):
        producer.init_transactions()
        with producer.transaction():
            for number in range(30):
                producer.send(name, b"%d" % number, partition=number % 3)
            producer.flush(PATIENCE_S)
            described = admin.describe_transactions([transactional_id])[transactional_id]
            lost = described.coordinator if coordinator else leader_of(admin, name)
            cluster.node(lost).kill9()
            for number in range(30, 60):
                producer.send(name, b"%d" % number, partition=number % 3)
        cluster.node(lost).start()
    records = read_all(cluster.bootstrap, name, 60, isolation_level="read_committed")
    assert sorted(int(record.value) for record in records) == list(range(60))
    assert {record.topic_partition for record in records} == {TopicPartition(name, index) for index in range(3)}


@pytest.mark.timeout(240)
def test_a_consumer_reads_from_the_replica_of_its_rack(tmp_path):
    overrides = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with KlammCluster(tmp_path, overrides=overrides, racks=True) as nodes:
        name = replicated(nodes.bootstrap, 1)
        with Producer(bootstrap_servers=nodes.bootstrap) as producer:
            for number in range(100):
                producer.send(name, b"%d" % number)
        with Admin(bootstrap_servers=nodes.bootstrap) as admin:
            leader = leader_of(admin, name)
        near = next(node for node in (1, 2, 3) if node != leader)
        with reader(nodes.bootstrap, client_rack=f"rack-{near}") as consumer:
            consumer.assign([(name, 0)])
            records: list = []
            until(lambda: records.extend(consumer.poll(0.5)) or len(records) == 100, "all records come")
            assert consumer._inner.subscription_state.state(TopicPartition(name, 0)).preferred == near
