"""Which connection may be opened, and which one is closed: Kafka's rules without a socket."""

import pytest

from klamm.net.core.connection_quotas import ConnectionLimits, ConnectionQuotas
from klamm.net.core.request_memory import RequestMemory

CLIENT, INNER = "CLIENT", "INNER"


def quotas(protected: str = INNER, **limits) -> ConnectionQuotas:
    made = ConnectionQuotas(ConnectionLimits(**limits), protected)
    made.add_listener(CLIENT)
    made.add_listener(INNER)
    return made


def test_a_listener_waits_at_its_own_limit_only():
    limited = quotas(listener_connections={CLIENT: 1})
    limited.add(CLIENT, "10.0.0.1")
    assert not limited.has_slot(CLIENT)
    assert limited.has_slot(INNER)
    limited.remove(CLIENT, "10.0.0.1")
    assert limited.has_slot(CLIENT)


def test_the_total_does_not_concern_the_inter_broker_listener():
    limited = quotas(connections=1)
    limited.add(CLIENT, "10.0.0.1")
    assert not limited.has_slot(CLIENT)
    assert limited.has_slot(INNER)
    assert limited.excess == 0
    limited.add(INNER, "10.0.0.2")
    assert limited.excess == 1
    assert limited.is_protected(INNER)
    assert not limited.is_protected(CLIENT)


def test_the_inter_broker_listener_has_its_own_limit_too():
    limited = quotas(listener_connections={INNER: 1})
    limited.add(INNER, "10.0.0.2")
    assert not limited.has_slot(INNER)


def test_an_only_listener_is_not_exempt():
    limited = ConnectionQuotas(ConnectionLimits(connections=1), INNER)
    limited.add_listener(INNER)
    limited.add(INNER, "10.0.0.1")
    assert not limited.has_slot(INNER)


def test_an_override_replaces_the_limit_of_an_address():
    limited = quotas(connections_per_ip=1, per_ip_overrides={"10.0.0.2": 2, "10.0.0.3": 0})
    for ip in ("10.0.0.1", "10.0.0.2"):
        assert not limited.exceeds_ip_limit(ip)
        limited.add(CLIENT, ip)
    assert limited.exceeds_ip_limit("10.0.0.1")
    assert not limited.exceeds_ip_limit("10.0.0.2")
    assert limited.exceeds_ip_limit("10.0.0.3")
    limited.remove(CLIENT, "10.0.0.1")
    assert not limited.exceeds_ip_limit("10.0.0.1")


def test_addresses_without_connections_take_no_memory():
    limited = quotas()
    for number in range(100):
        limited.exceeds_ip_limit(f"10.0.0.{number}")
        limited.add(CLIENT, f"10.0.1.{number}")
        limited.remove(CLIENT, f"10.0.1.{number}")
    assert len(limited._per_ip) == 0


def test_the_creation_rate_allows_a_window_at_once_and_then_delays_up_to_a_second():
    limited = quotas(creation_rate=2)
    delays = [limited.record_delay_ms(CLIENT, 0) for _ in range(60)]
    assert delays[:20] == [0] * 20  # ten full samples of quota
    assert 0 < delays[20] < 1000
    assert delays[-1] == 1000
    assert limited.record_delay_ms(CLIENT, 60_000) == 0


def test_the_creation_rate_of_the_broker_does_not_delay_the_inter_broker_listener():
    limited = quotas(creation_rate=1, listener_creation_rates={INNER: 5})
    for _ in range(30):
        limited.record_delay_ms(CLIENT, 0)
    assert limited.record_delay_ms(CLIENT, 0) == 1000
    assert limited.record_delay_ms(INNER, 0) == 0
    assert max(limited.record_delay_ms(INNER, 0) for _ in range(60)) > 0


def test_a_rate_of_zero_delays_every_connection():
    assert quotas(creation_rate=0).record_delay_ms(CLIENT, 5) == 1000


# queued.max.request.bytes


def test_memory_is_exceeded_by_one_request_at_most():
    memory = RequestMemory(100)
    assert memory.take("a", 60)
    assert memory.take("b", 1000)
    assert not memory.take("c", 1)
    assert memory.take("a", 60)  # asked again: it has its bytes
    memory.release("b")
    assert list(memory.waiting()) == ["c"]


def test_waiting_requests_are_served_in_order():
    memory = RequestMemory(10)
    memory.take("a", 10)
    assert [memory.take(owner, 10) for owner in "bcd"] == [False] * 3
    memory.release("c")  # closed while it waited
    assert list(memory.waiting()) == []
    memory.release("a")
    served = [owner for owner in memory.waiting() if memory.take(owner, 10)]
    assert served == ["b"]
    memory.release("b")
    assert [owner for owner in memory.waiting() if memory.take(owner, 10)] == ["d"]
    memory.release("d")
    assert not memory.exhausted


@pytest.mark.parametrize("ip", ["::ffff:192.0.2.1", "192.0.2.1"])
def test_a_mapped_address_is_the_ipv4_address(ip):
    from klamm.net.sockets import strip_mapping

    assert strip_mapping(ip) == "192.0.2.1"
    assert strip_mapping("::1") == "::1"
    assert strip_mapping("::ffff:1") == "::ffff:1"
