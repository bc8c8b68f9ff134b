"""Entities of quotas: precedence, and what is refused."""

import pytest

from klamm.model.errors import ErrorCode, KlammError
from klamm.security.core.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    AppliedQuota,
    EntityFilter,
    check_limit,
    find_quota,
    read_entity,
)

KEY = PRODUCER_BYTE_RATE
PRECEDENCE = [
    ({"user": "alice", "client-id": "app"}, ("alice", "app")),
    ({"user": "alice", "client-id": None}, ("alice", "app")),
    ({"user": "alice"}, ("alice", "")),
    ({"user": None, "client-id": "app"}, ("alice", "app")),
    ({"user": None, "client-id": None}, ("alice", "app")),
    ({"user": None}, ("alice", "")),
    ({"client-id": "app"}, ("", "app")),
    ({"client-id": None}, ("", "app")),
]
"""Kafka's order, and the clients that share the window."""


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_first_quota_of_the_precedence_applies(first):
    quotas = {
        read_entity(entity.items()): {KEY: float(position + 1)}
        for position, (entity, _) in enumerate(PRECEDENCE)
        if position >= first
    }
    assert find_quota(quotas, "alice", "app", KEY) == AppliedQuota(first + 1.0, *PRECEDENCE[first][1])


def test_an_entity_without_the_key_is_passed_over():
    quotas = {
        read_entity([("user", "alice")]): {CONTROLLER_MUTATION_RATE: 1.0},
        read_entity([("client-id", None)]): {KEY: 2.0},
    }
    assert find_quota(quotas, "alice", "app", KEY) == AppliedQuota(2.0, "", "app")
    assert find_quota(quotas, "bob", "app", CONTROLLER_MUTATION_RATE) is None


@pytest.mark.parametrize(
    "entity",
    [
        [],
        [("group", "g")],
        [("user", "")],
        [("user", "a"), ("user", "b")],
        [("ip", "10.0.0.1"), ("user", "a")],
        [("ip", "not an address")],
    ],
)
def test_entities_that_cannot_have_quotas_are_refused(entity):
    with pytest.raises(KlammError) as refusal:
        read_entity(entity)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ([("user", "a")], "no_such_rate", 1.0),
        ([("user", "a")], CONNECTION_CREATION_RATE, 1.0),
        ([("ip", None)], KEY, 1.0),
        ([("user", "a")], KEY, 0.0),
        ([("user", "a")], KEY, -1.0),
        ([("user", "a")], KEY, 1.5),
        ([("user", "a")], KEY, float("nan")),
        ([("user", "a")], KEY, float("inf")),
    ],
)
def test_limits_that_cannot_be_are_refused(entity, key, value):
    with pytest.raises(KlammError) as refusal:
        check_limit(read_entity(entity), key, value)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_fractions_of_rates_that_are_no_bytes_are_accepted():
    check_limit(read_entity([("user", None), ("client-id", "x")]), CONTROLLER_MUTATION_RATE, 0.5)
    check_limit(read_entity([("ip", "::1")]), CONNECTION_CREATION_RATE, 10.0)


ENTITIES = (
    (("client-id", "app"), ("user", "anna")),
    (("user", "anna"),),
    (("user", None),),
    (("client-id", None),),
    (("ip", "10.0.0.1"),),
)
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.mark.parametrize(
    ("components", "strict", "selected"),
    [
        ([], False, (0, 1, 2, 3, 4)),
        ([], True, ()),
        ([("user", EXACT, "anna")], False, (0, 1)),
        ([("user", EXACT, "anna")], True, (1,)),
        ([("user", DEFAULT, None)], False, (2,)),
        ([("user", SPECIFIED, None)], False, (0, 1, 2)),
        ([("user", SPECIFIED, None), ("client-id", SPECIFIED, None)], True, (0,)),
        ([("client-id", EXACT, "app"), ("user", EXACT, "berta")], False, ()),
        ([("ip", SPECIFIED, None)], False, (4,)),
    ],
)
def test_filters_select(components, strict, selected):
    entity_filter = EntityFilter(components, strict=strict)
    assert [number for number, entity in enumerate(ENTITIES) if entity_filter.matches(entity)] == list(selected)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", EXACT, "x")], ErrorCode.INVALID_REQUEST),
        ([("topic", EXACT, "x")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "x"), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", EXACT, "10.0.0.1"), ("user", DEFAULT, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_kafka_refuses(components, code):
    with pytest.raises(KlammError) as refusal:
        EntityFilter(components, strict=False)
    assert refusal.value.code is code


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [((("user", "anna"),), "producer_byte_rate", 2.0**64), ((("ip", None),), "connection_creation_rate", 2.0**31)],
)
def test_values_that_are_too_large_are_refused(entity, key, value):
    with pytest.raises(KlammError, match="too large"):
        check_limit(entity, key, value)
