"""Subscriptions by pattern: resolved by the broker, kept, refreshed, shared, forgotten."""

from coordinator.consumer_groups_world import CONFIG, Consumer, ConsumerWorld
from klamm.coordinator.core.shard import decode_key, decode_value, record_type
from klamm.coordinator.groups.consumer.heartbeat import WAITING_INTERVAL_MS
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.group_records import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)


def regex_records(world):
    return [
        (
            decode_key(ConsumerGroupRegularExpressionKey, record.key).regular_expression,
            None if record.value is None else decode_value(ConsumerGroupRegularExpressionValue, record.value).topics,
        )
        for entry in world.log
        for record in entry.records
        if record_type(record.key) == 16
    ]


def names(world, consumer):
    return sorted({world.image.topics.by_id[topic].name for topic, _ in consumer.owned})


def test_a_pattern_finds_its_topics_and_those_that_come_later():
    world = ConsumerWorld(orders=1, payments=1)
    one = Consumer(world, "one", topics=None, regex="orders.*").join()
    assert names(world, one) == ["orders"]
    world.create("orders-eu", 2)
    world.create("shipments", 1)
    one.beat()
    assert names(world, one) == ["orders", "orders-eu"]
    assert regex_records(world) == [("orders.*", ["orders"]), ("orders.*", ["orders", "orders-eu"])]
    world.delete("orders")
    world.read_all(one)
    assert names(world, one) == ["orders-eu"]


def test_names_and_a_pattern_add_up():
    world = ConsumerWorld(a=1, b1=1, b2=1)
    one = Consumer(world, "one", topics=("a",), regex="b[0-9]").join()
    assert names(world, one) == ["a", "b1", "b2"]


def test_an_invalid_pattern_is_refused_and_nothing_has_happened():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one", topics=None, regex="(unclosed")
    assert one.beat() is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not world.log
    assert not world.shard.groups
    one = Consumer(world, "one").join()
    one.regex = "a**"
    assert one.beat(full=True) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert one.me.subscribed_topic_regex == ""


def test_an_empty_pattern_ends_the_subscription_by_pattern():
    world = ConsumerWorld(t=1, u=1)
    one = Consumer(world, "one", topics=("t",), regex="u").join()
    assert names(world, one) == ["t", "u"]
    one.subscribe("t")
    world.read_all(one)
    assert names(world, one) == ["t"]
    assert regex_records(world)[-1] == ("u", None)


def test_a_pattern_two_members_share_is_kept_until_the_last_one_goes():
    world = ConsumerWorld(t=2)
    one = Consumer(world, "one", topics=None, regex="t").join()
    two = Consumer(world, "two", topics=None, regex="t").join()
    world.read_all(one, two)
    assert len(regex_records(world)) == 1, "resolved once"
    one.leave()
    assert ("t", None) not in regex_records(world)
    two.leave()
    assert regex_records(world)[-1] == ("t", None)


def test_members_with_different_patterns_share_what_both_match():
    world = ConsumerWorld(ab=4, b=2, a=2)
    one = Consumer(world, "one", topics=None, regex="a.*").join()
    two = Consumer(world, "two", topics=None, regex=".*b").join()
    world.read_all(one, two)
    assert len(one.owned) == len(two.owned) == 4
    assert "a" in names(world, one)
    assert "b" in names(world, two)


def test_patterns_survive_a_restart():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one", topics=None, regex="t.*").join()
    world.restart()
    before = len(world.log)
    one.beat()
    assert len(world.log) == before
    world.create("t2", 1)
    one.beat()
    assert names(world, one) == ["t", "t2"]


def test_patterns_go_with_their_group():
    world = ConsumerWorld(t=1)
    one = Consumer(world, "one", topics=None, regex="t.*").join()
    one.leave()
    assert world.consumers().resolved == {}


def test_a_member_whose_topics_are_not_known_yet_sends_its_next_heartbeat_soon():
    """A topic is created on one broker and its first consumer joins at another, which gets the metadata a moment later.

    Otherwise a client would wait for the whole interval.
    """
    world = ConsumerWorld(payments=1)
    for subscription in ({"topics": None, "regex": "orders.*"}, {"topics": ("shipments",)}):
        consumer = Consumer(world, f"reads {subscription}", **subscription).join()
        assert consumer.last.heartbeat_interval_ms == WAITING_INTERVAL_MS
        consumer.beat()
        assert consumer.last.heartbeat_interval_ms == WAITING_INTERVAL_MS, "as long as there is nothing"
        world.create("orders-eu" if "regex" in subscription else "shipments", 1)
        consumer.beat()
        assert len(consumer.owned) == 1
        assert consumer.last.heartbeat_interval_ms == CONFIG.consumer.heartbeat_interval_ms
