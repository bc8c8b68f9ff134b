"""What clients count, and whom they tell."""

import asyncio
import threading

import pytest

import klamm.testing
from klamm.client import AsyncProducer, Consumer, IllegalStateError, Producer
from klamm.client.errors import AuthorizationError, ConfigError, KafkaTimeoutError
from klamm.client.metrics import RateSampler


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker() as running:
        yield running


def test_a_producer_counts_what_it_sent_and_a_consumer_what_it_handed_out(broker):
    topic = broker.topic()
    with broker.producer(linger_ms=0) as producer:
        before = producer.metrics()
        assert (before["record-send-total"], before["batch-size-avg"]) == (0, 0)
        for number in range(100):
            producer.send(topic, b"x" * 100, key=b"%d" % number)
        producer.flush()
        metrics = producer.metrics()
        assert metrics["record-send-total"] == 100
        assert metrics["record-error-total"] == metrics["record-retry-total"] == 0
        assert metrics["outgoing-byte-total"] > 10_000
        assert metrics["response-total"] == metrics["request-total"] > 0
        assert 0 < metrics["request-latency-avg"] <= metrics["request-latency-max"]
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"] == 32 << 20
        assert metrics["requests-in-flight"] == 0
        assert metrics["connection-count"] >= 1
    with broker.consumer(enable_auto_commit=False) as consumer:
        consumer.assign([(topic, 0)])
        records = []
        while len(records) < 40:
            records += consumer.poll(30, max_records=40 - len(records))
        metrics = consumer.metrics()
        assert metrics["records-consumed-total"] == 40
        assert metrics["bytes-consumed-total"] > 10_000
        assert metrics["records-lag-max"] == 60
        assert metrics["assigned-partitions"] == 1
        assert metrics["fetch-total"] >= 1
        for count, _ in enumerate(consumer, start=1):
            if count == 10:
                break
        consumer.commit({(topic, 0): 50})  # what the iteration did not use goes back first
        consumer.seek((topic, 0), 50)
        assert consumer.metrics()["records-consumed-total"] == 50
        while consumer.metrics()["records-consumed-total"] < 100:
            consumer.poll_arrow(30)
        assert consumer.metrics()["records-lag-max"] == 0


def test_failures_and_attempts_are_counted(broker):
    with klamm.testing.broker() as own:
        topic = own.topic()
        with own.producer(linger_ms=0, delivery_timeout_ms=1500, request_timeout_ms=1000) as producer:
            producer.send(topic, b"first").result(30)
            own.refuse("NOT_ENOUGH_REPLICAS", "Produce", times=1)
            producer.send(topic, b"again").result(30)
            assert producer.metrics()["record-retry-total"] == 1
            own.refuse("NOT_ENOUGH_REPLICAS", "Produce")
            with pytest.raises(KafkaTimeoutError):
                producer.send(topic, b"never").result(30)
            assert producer.metrics()["record-error-total"] == 1
            own.heal()


@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_a_function_gets_the_metrics_again_and_again(broker, kind):
    reports, enough = [], threading.Event()

    def report(metrics):
        reports.append(metrics)
        if len(reports) == 1:
            raise RuntimeError("a mistake in a callback stops nothing")
        if len(reports) >= 3:
            enough.set()

    with kind(
        bootstrap_servers=broker.bootstrap, client_id="till", statistics_interval_ms=20, statistics_callback=report
    ):
        assert enough.wait(30)
    count = len(reports)
    assert reports[0]["type"] == kind.__name__.lower()
    assert reports[0]["client-id"] == "till"
    assert reports[1]["time-ms"] >= reports[0]["time-ms"] > 0
    assert reports[1]["request-total"] >= 1
    assert len(reports) == count  # closed: nothing more


def test_nothing_is_told_without_an_interval_or_a_function(broker):
    reports = []
    with Producer(bootstrap_servers=broker.bootstrap, statistics_callback=reports.append) as producer:
        producer.send(broker.topic(), b"value").result(30)
    assert reports == []
    with pytest.raises(ConfigError, match=r"statistics\.callback='print' is no function"):
        Producer(bootstrap_servers=broker.bootstrap, statistics_interval_ms=20, statistics_callback="print")


def test_a_client_that_is_not_started_has_no_metrics():
    async def ask():
        AsyncProducer(bootstrap_servers="127.0.0.1:1").metrics()

    with pytest.raises(IllegalStateError, match="not started"):
        asyncio.run(ask())


def test_rates_are_of_the_last_half_minute():
    total, now = {"record-send-total": 0.0, "rebalance-total": 0.0, "batch-size-avg": 5.0}, [100.0]
    rates = RateSampler(total.copy, clock=lambda: now[0])
    total["record-send-total"] = 50.0
    now[0] += 0.5
    assert rates.snapshot()["record-send-rate"] == 50.0, "less than a second counts as one"
    now[0] = 110.0
    snapshot = rates.snapshot()
    assert (snapshot["record-send-rate"], snapshot["record-send-total"], snapshot["batch-size-avg"]) == (5.0, 50.0, 5.0)
    total["rebalance-total"] = 1.0
    assert rates.snapshot()["rebalance-rate-per-hour"] == 360.0
    assert "rebalance-rate" not in rates.snapshot()
    for _ in range(4):
        rates.sample()
        now[0] += 10.0
    assert rates.snapshot()["record-send-rate"] == 0.0, "what was sent long ago is no rate of now"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_commits_and_rebalances_are_counted(broker, protocol):
    topic, group = broker.topic(), f"counted-{protocol}"
    settings = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False}
    with broker.producer() as producer:
        producer.send(topic, b"value").result(30)
        assert producer.metrics()["record-send-rate"] > 0
    with broker.consumer(topic, **settings) as consumer:
        before = consumer.metrics()
        assert (before["commit-total"], before["rebalance-total"], before["commit-latency-avg"]) == (0, 0, 0)
        while not consumer.poll(30):
            pass
        consumer.commit()
        consumer.commit()
        metrics = consumer.metrics()
        assert metrics["commit-total"] == 2
        assert 0 < metrics["commit-latency-avg"] <= metrics["commit-latency-max"]
        assert metrics["rebalance-total"] == 1
        assert 0 < metrics["rebalance-latency-avg"] == metrics["rebalance-latency-max"]
        assert metrics["rebalance-rate-per-hour"] > 0
        assert metrics["failed-rebalance-total"] == 0
        assert metrics["records-consumed-rate"] > 0
        assert metrics["fetch-rate"] > 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_that_is_refused_is_counted_as_failed(protocol):
    with klamm.testing.broker() as own:
        api = "JoinGroup" if protocol == "classic" else "ConsumerGroupHeartbeat"
        own.refuse("GROUP_AUTHORIZATION_FAILED", api)
        with own.consumer(own.topic(), group_id="refused", group_protocol=protocol) as consumer:
            with pytest.raises(AuthorizationError):
                consumer.poll(60)
            metrics = consumer.metrics()
            assert (metrics["rebalance-total"], metrics["failed-rebalance-total"]) == (0, 1)
