"""Labels of metrics are bounded: series beyond a limit are omitted and counted, and totals count everything."""

import pytest

from harness import Wire
from harness.members import wait_until
from harness.scrapes import Scrape
from klamm.server.metrics import limits
from klamm.testing import broker as make_broker

TRAFFIC = "kafka_server_brokertopicmetrics_"
REPLICAS = "kafka_server_replicamanager_"


@pytest.fixture(scope="module")
def broker():
    with make_broker(config={"metrics.listeners": "127.0.0.1:0", "offsets.topic.num.partitions": "1"}) as broker:
        yield broker


@pytest.fixture
def scrape(broker):
    (address,) = broker.node.metrics_addresses
    return lambda: Scrape(address)


def produce(broker, topic, partitions, count):
    with broker.producer(linger_ms=0) as producer:
        for number in range(count):
            producer.send(topic, b"x", partition=number % partitions)
            producer.flush()


def commit(broker, groups, topic, partitions):
    fields = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
    positions = [{"partition_index": index, "committed_offset": 0} for index in range(partitions)]
    with Wire(int(broker.bootstrap.rpartition(":")[2])) as wire:
        for group in groups:
            wire.call("find_coordinator", 2, key=group, key_type=0)
            topics = [{"name": topic, "partitions": positions}]
            wait_until(
                lambda group=group, topics=topics: (
                    not wire.call("offset_commit", 8, group_id=group, topics=topics, **fields)
                    .topics[0]
                    .partitions[0]
                    .error_code
                )
            )


def test_totals_count_replicas_that_have_no_metrics_of_their_own(broker, scrape, monkeypatch):
    topic = broker.topic("capped", partitions=6)
    produce(broker, topic, 6, 30)
    whole = scrape()
    replicas = whole.value(REPLICAS + "partitioncount")
    monkeypatch.setattr(limits, "PARTITIONS_MAX", 4)
    capped = scrape()
    assert len(capped.labels("kafka_log_log_size")) == 4
    assert capped.value("klamm_metrics_omitted", kind="partitions") == replicas - 4
    for name in ("partitioncount", "leadercount", "underreplicatedpartitions", "atminisrpartitioncount"):
        assert capped.value(REPLICAS + name) == whole.value(REPLICAS + name), name
    for name in ("messagesin", "bytesin", "totalproducerequests"):
        assert capped.value(f"{TRAFFIC}{name}_total") == whole.value(f"{TRAFFIC}{name}_total"), name
    # A topic is served with all of its replicas or not at all.
    for labels in capped.labels(TRAFFIC + "messagesin_total"):
        name = TRAFFIC + "messagesin_total"
        assert capped.value(name, **labels) == whole.value(name, **labels)


def test_groups_beyond_the_limit_are_counted_and_omitted(broker, scrape, monkeypatch):
    topic = broker.topic("groups")
    commit(broker, [f"many-{number}" for number in range(5)], topic, 1)
    whole = scrape()
    groups = whole.value("kafka_coordinator_group_groupmetadatamanager_numgroups")
    assert groups >= 5
    monkeypatch.setattr(limits, "GROUPS_MAX", 2)
    capped = scrape()
    assert len(capped.labels("kafka_consumergroup_members")) == 2
    assert capped.value("klamm_metrics_omitted", kind="groups") == groups - 2
    assert capped.value("kafka_coordinator_group_groupmetadatamanager_numgroups") == groups
    assert capped.value("kafka_coordinator_group_groupmetadatamanager_numgroupsempty") == groups


def test_positions_are_omitted_by_whole_groups(broker, scrape, monkeypatch):
    topic = broker.topic("positions", partitions=3)
    commit(broker, ["wide-1", "wide-2"], topic, 3)
    monkeypatch.setattr(limits, "GROUP_PARTITIONS_MAX", 0)
    empty = scrape()
    assert empty.labels("kafka_consumergroup_lag") == []
    assert len(empty.labels("kafka_consumergroup_members")) >= 2
    monkeypatch.setattr(limits, "GROUP_PARTITIONS_MAX", 4)
    capped = scrape()
    by_group = {}
    for labels in capped.labels("kafka_consumergroup_lag"):
        by_group.setdefault(labels["consumergroup"], set()).add((labels["topic"], labels["partition"]))
    assert sum(map(len, by_group.values())) <= 4
    assert all(len(by_group[group]) == 3 for group in by_group if group.startswith("wide"))
    assert capped.value("klamm_metrics_omitted", kind="group positions") >= 3


def test_topics_of_the_cluster_beyond_the_limit_are_omitted(broker, scrape, monkeypatch):
    for number in range(4):
        broker.topic(f"topics-{number}")
    monkeypatch.setattr(limits, "TOPICS_MAX", 3)
    capped = scrape()
    topics = capped.value("kafka_controller_kafkacontroller_globaltopiccount")
    assert len(capped.labels("kafka_topic_partitions")) == 3
    assert capped.value("klamm_metrics_omitted", kind="topics") == topics - 3


def test_quotas_beyond_the_limit_are_omitted(broker, scrape, monkeypatch):
    with broker.admin() as admin:
        admin.alter_client_quotas(
            {(("client-id", f"limited-{number}"),): {"producer_byte_rate": 1e9} for number in range(5)}
        )
    limited = {f"limited-{number}" for number in range(5)}
    wait_until(lambda: limited <= {labels["client_id"] for labels in scrape().labels("klamm_quota_limit")})
    quotas = len(scrape().labels("klamm_quota_limit"))
    monkeypatch.setattr(limits, "QUOTAS_MAX", 2)
    assert scrape().value("klamm_metrics_omitted", kind="quotas") == quotas - 2
    assert len(scrape().labels("klamm_quota_limit")) == 2


def test_clients_of_a_default_quota_beyond_the_limit_are_omitted(broker, scrape, monkeypatch):
    """Each client id has a window of its own, and clients choose as many ids as they like."""
    topic = broker.topic("windows")
    with broker.admin() as admin:
        admin.alter_client_quotas({(("client-id", None),): {"consumer_byte_rate": 1e9}})
    wait_until(lambda: any(labels["client_id"] == "<default>" for labels in scrape().labels("klamm_quota_limit")))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    topics = [{"topic": topic, "partitions": [partition]}]
    for number in range(6):
        with Wire(int(broker.bootstrap.rpartition(":")[2]), client_id=f"window-{number}") as wire:
            wire.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1000, topics=topics)
    used = [labels for labels in scrape().labels("klamm_quota_rate") if labels["client_id"].startswith("window-")]
    assert len(used) == 6
    monkeypatch.setattr(limits, "QUOTAS_MAX", 2)
    capped = scrape()
    assert len(capped.labels("klamm_quota_rate")) <= 2
    assert capped.value("klamm_metrics_omitted", kind="quota usage") >= 4
    # Clients with a quota do not take the quick path of Produce, which another test needs.
    with broker.admin() as admin:
        admin.alter_client_quotas({(("client-id", None),): {"consumer_byte_rate": None}})
    wait_until(
        lambda: (
            ("client-id", None)
            not in [part for entity in broker.node.services.image.client_quotas for part in entity.parts]
        )
    )


def test_totals_never_decrease_when_a_topic_is_deleted(broker, scrape):
    """The counts of a removed replica stay in the totals: Prometheus would take a decrease for a restart."""
    topic = broker.topic("removed", partitions=2)
    produce(broker, topic, 2, 40)
    before = scrape()
    assert broker.node.services.replicas.find(topic, 0).quick_produces > 0, "the quick path of Produce was not taken"
    with broker.admin() as admin:
        admin.delete_topics([topic])
    wait_until(lambda: broker.node.services.replicas.find(topic, 0) is None)
    after = scrape()
    for name in ("messagesin", "bytesin", "totalproducerequests"):
        assert after.value(f"{TRAFFIC}{name}_total") >= before.value(f"{TRAFFIC}{name}_total"), name
    requests = "kafka_network_requestmetrics_requests_total"
    assert after.value(requests, request="Produce") >= before.value(requests, request="Produce")
