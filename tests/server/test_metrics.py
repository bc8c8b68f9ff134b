"""The metrics and the health of a node, as Prometheus and a kubelet read them."""

import json
import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from harness import Wire
from harness.members import wait_until
from harness.scrapes import get
from klamm.model.errors import ErrorCode
from klamm.testing import broker as make_broker


def scrape(address):
    """Samples by (name, labels)."""
    status, _, text = get(address, "/metrics")
    assert status == 200
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def broker():
    with make_broker(config={"metrics.listeners": "127.0.0.1:0", "group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture(scope="module")
def address(broker):
    (address,) = broker.node.metrics_addresses
    return address


def test_traffic_is_counted_by_topic_on_the_quick_path_and_beside_it(broker, address):
    topic = broker.topic("traffic", partitions=2)
    before = scrape(address)
    with broker.producer(linger_ms=0) as producer:
        for number in range(30):
            producer.send(topic, f"value {number}".encode(), partition=number % 2)
            producer.flush()
    with broker.consumer(topic, auto_offset_reset="earliest") as consumer:
        read = 0
        while read < 30:
            read += len(consumer.poll(1.0))
    after = scrape(address)

    def value(name, **labels):
        return after[(name, *sorted(labels.items()))]

    prefix = "kafka_server_brokertopicmetrics_"
    assert value(prefix + "messagesin_total", topic=topic) == 30
    size = sum(value("kafka_log_log_size", topic=topic, partition=str(index)) for index in (0, 1))
    assert value(prefix + "bytesin_total", topic=topic) == size
    assert value(prefix + "bytesout_total", topic=topic) >= size
    assert value(prefix + "totalproducerequests_total", topic=topic) == 30
    assert value(prefix + "totalfetchrequests_total", topic=topic) > 0
    assert value(prefix + "messagesin_total") - before[(prefix + "messagesin_total",)] >= 30
    assert value("kafka_topic_partition_current_offset", topic=topic, partition="0") == 15
    requests = value("kafka_network_requestmetrics_requests_total", request="Produce")
    assert requests >= 30
    assert value("kafka_network_requestmetrics_totaltimems_count", request="Produce") == requests
    assert value("klamm_request_seconds_count", request="Fetch", phase="local") > 0
    assert value("kafka_network_requestmetrics_remotetimems_count", request="JoinGroup") > 0
    replica = broker.node.services.replicas.find(topic, 0)
    assert replica.quick_produces > 0, "the quick path of Produce was not taken"


def test_the_lag_of_a_group_has_records_and_seconds(broker, address):
    topic = broker.topic("lag")
    old_ms = int(time.time() * 1000) - 3_600_000
    with broker.producer() as producer:
        for number in range(10):
            producer.send(topic, b"x", partition=0, timestamp=old_ms + number * 60_000)
            producer.flush()
    with broker.consumer(
        topic, group_id='a "group"', auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        records = consumer.poll(30.0, max_records=4)
        assert records
        consumer.commit()
        consumed = records[-1].offset + 1
        labels = {"topic": topic, "partition": "0"}
        samples = scrape(address)
        group = ("consumergroup", 'a "group"')
        assert samples[("kafka_consumergroup_lag", group, *sorted(labels.items(), reverse=True)[::-1])] == 10 - consumed
        by_time = ("group", 'a "group"')
        seconds = samples[("kafka_consumergroup_group_lag_seconds", by_time, ("partition", "0"), ("topic", topic))]
        # The first record that was not read is an hour old, less a minute for each one before it.
        assert 3600 - 60 * consumed <= seconds <= 3600 - 60 * consumed + 300
        assert samples[("kafka_consumergroup_group_max_lag_seconds", by_time)] == seconds
        assert samples[("kafka_consumergroup_members", group)] == 1
        while consumed < 10:
            consumed = consumer.poll(30.0)[-1].offset + 1
        consumer.commit()
        samples = scrape(address)
        assert samples[("kafka_consumergroup_group_max_lag_seconds", by_time)] == 0
        assert samples[("kafka_consumergroup_lag_sum", group, ("topic", topic))] == 0


def test_openmetrics_is_served_to_those_who_prefer_it(address):
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"
    status, kind, text = get(address, "/metrics", Accept=accept)
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert len(list(parse_openmetrics(text))) > 80


def test_single_metrics_can_be_selected(address):
    _, _, text = get(address, "/metrics?name[]=kafka_brokers&name[]=process_open_fds")
    assert {family.name for family in parse_text(text)} == {"kafka_brokers", "process_open_fds"}


def test_a_node_that_serves_is_healthy_and_ready(broker, address):
    for path in ("/health", "/ready", "/ready/cluster"):
        status, kind, text = get(address, path)
        assert (status, kind, json.loads(text)["problems"]) == (200, "application/json", [])
    assert get(address, "/nothing")[0] == 404


def test_a_fenced_broker_is_not_ready(broker, address, monkeypatch):
    from klamm.server.cluster.lifecycle import BrokerState

    lifecycle = broker.node._broker.lifecycle
    monkeypatch.setattr(lifecycle, "state", BrokerState.FENCED)
    status, _, text = get(address, "/ready")
    assert status == 503
    assert json.loads(text)["problems"] == ["the broker is fenced"]
    assert get(address, "/health")[0] == 200


def test_errors_of_whole_requests_are_counted(broker, address):
    with Wire(int(broker.bootstrap.rpartition(":")[2])) as wire:
        wire.call("init_producer_id", 4, transactional_id="", transaction_timeout=1)
    samples = scrape(address)
    errors = [key for key in samples if key[0] == "kafka_network_requestmetrics_errors_total"]
    assert (("error", "INVALID_REQUEST"), ("request", "InitProducerId")) in [key[1:] for key in errors]


def test_errors_of_partitions_and_groups_are_counted(broker, address):
    topic = broker.topic("failing")
    fetch_body = {"partition": 9, "fetch_offset": 0, "partition_max_bytes": 1000}
    common = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1000}
    committed = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    member = {"group_id": "failing", "generation_id_or_member_epoch": 3, "member_id": "stranger"}
    with Wire(int(broker.bootstrap.rpartition(":")[2])) as wire:
        wire.call(
            "fetch", 12, topics=[{"topic": topic, "partitions": [fetch_body, fetch_body | {"partition": 0}]}], **common
        )
        # Creates the topic of offsets.
        wire.call("find_coordinator", 2, key="failing", key_type=0)
        # This form of OffsetCommit and SyncGroup takes a quick path once the group's shard has loaded.
        topics = [{"name": topic, "partitions": [committed]}]

        def commit() -> int:
            return wire.call("offset_commit", 8, topics=topics, **member).topics[0].partitions[0].error_code

        wait_until(lambda: commit() == ErrorCode.ILLEGAL_GENERATION)
        wire.call("sync_group", 3, group_id="failing", generation_id=3, member_id="stranger", assignments=[])
    samples = scrape(address)

    def count(request, error):
        return samples.get(("kafka_network_requestmetrics_errors_total", ("error", error), ("request", request)))

    assert count("Fetch", "UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert count("OffsetCommit", "ILLEGAL_GENERATION") == 1
    assert count("SyncGroup", "UNKNOWN_MEMBER_ID") == 1


def test_throttled_requests_are_counted(broker, address):
    topic = broker.topic("throttled")
    with broker.admin() as admin:
        admin.alter_client_quotas({(("client-id", "greedy"),): {"producer_byte_rate": 1000.0}})
    quota = (("client_id", "greedy"), ("ip", ""), ("quota", "producer_byte_rate"), ("user", ""))
    wait_until(lambda: ("klamm_quota_limit", *quota) in scrape(address))
    with broker.producer(client_id="greedy") as producer:
        producer.send(topic, b"x" * 20_000)
        producer.flush()
    samples = scrape(address)
    assert samples[("klamm_quota_throttled_requests_total", ("quota", "produce"))] >= 1
    assert samples[("klamm_quota_throttle_seconds_total", ("quota", "produce"))] > 0
