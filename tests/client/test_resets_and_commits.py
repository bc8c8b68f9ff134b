"""Where a consumer begins that has no offset, and what it is told when its group went on without it."""

import time

import pytest

import klamm.testing
from klamm.client import AsyncConsumer, CommitFailedError, ConfigError, Consumer
from klamm.model.errors import ErrorCode

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker(config={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def test_a_duration_says_how_far_back_to_begin(broker):
    topic = broker.topic()
    now_ms = time.time_ns() // 1_000_000
    with broker.producer() as producer:
        for hours in (-48, -2, 0.25):  # ahead of now: no wait is short enough to pass it over
            producer.send(topic, b"x", timestamp=now_ms + int(hours * HOUR_MS))
    for span, offset in (("P7D", 0), ("P1DT2H", 1), ("PT1H", 2), ("PT1.5S", 2), ("pt0s", 2), ("P36500D", 0)):
        settings = {"auto_offset_reset": f"by_duration:{span}", "group_id": klamm.testing.unique("g")}
        with broker.consumer(**settings) as consumer:
            consumer.assign([(topic, 0)])
            assert consumer.position((topic, 0)) == offset, span


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("span", ["P1W", "P1M", "Pfoo", "PT1.5H", "-PT1S", ""])
def test_what_is_no_duration_is_refused_before_a_request(kind, span):
    with pytest.raises(ConfigError, match=r"e\.g\. by_duration:P7D or by_duration:PT1\.5S"):
        kind(bootstrap_servers="127.0.0.1:1", auto_offset_reset=f"by_duration:{span}")


def test_a_member_that_was_put_out_learns_what_to_do(broker):
    topic, group = broker.topic(), klamm.testing.unique("g")
    with broker.producer() as producer:
        producer.send(topic, b"x")
    with broker.consumer(topic, group_id=group, enable_auto_commit=False) as consumer, broker.admin() as admin:
        assert [record.value for record in consumer.poll(20)] == [b"x"]
        admin.remove_members(group)
        with pytest.raises(CommitFailedError) as refused:
            consumer.commit()
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    for words in (f"{topic}-0", "to another member", "poll more often", "max.poll.interval.ms", "max.poll.records"):
        assert words in str(refused.value)


def test_a_stranger_learns_that_the_group_has_members(broker):
    topic, group = broker.topic(), klamm.testing.unique("g")
    with broker.producer() as producer:
        producer.send(topic, b"x")
    with (
        broker.consumer(topic, group_id=group, enable_auto_commit=False) as member,
        broker.consumer(group_id=group, enable_auto_commit=False) as stranger,
    ):
        assert member.poll(20)
        stranger.assign([(topic, 0)])
        with pytest.raises(CommitFailedError, match="the group has members and this consumer is none of them"):
            stranger.commit({(topic, 0): 1})
