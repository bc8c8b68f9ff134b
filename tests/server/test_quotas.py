"""Quotas on a node: set and described by the APIs, reported in responses, and kept by muted connections."""

import pytest

from harness.client_stories import until
from harness.inprocess import NodeThread
from harness.wire import Wire, batch, produce_fields, unique
from klamm.model.errors import ErrorCode

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def admin(node):
    with Wire(node.port, client_id="admin") as wire:
        yield wire


@pytest.fixture
def client(node, admin):
    """A connection with a client id of its own, whose quotas are removed after the test."""
    name = unique("client")
    with Wire(node.port, client_id=name) as wire:
        yield wire
    alter(admin, {"client-id": name}, **dict.fromkeys(KEYS))


KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")


def alter(wire, entity, version=1, validate_only=False, **limits):
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": float(value or 0), "remove": value is None} for key, value in limits.items()],
    }
    answer = wire.call("alter_client_quotas", version, entries=[entry], validate_only=validate_only)
    return answer.entries[0].error_code


def describe(wire, *components, strict=False, version=1):
    listed = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    answer = wire.call("describe_client_quotas", version, components=listed, strict=strict)
    if answer.error_code:
        assert answer.entries is None
        return answer.error_code
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def muted(node, wire):
    """Whether the node's side of a connection is muted."""
    address = wire.sock.getsockname()

    def find(running):
        return next(channel._muted_until > 0 for channel in running.net.channels() if channel.peer_address == address)

    return node.run(find)


def known_prefixes(node, wire):
    address = wire.sock.getsockname()

    def find(running):
        return next(
            len(channel.state.known_prefixes) for channel in running.net.channels() if channel.peer_address == address
        )

    return node.run(find)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(admin, version):
    user = unique("user")
    assert alter(admin, {"user": user, "client-id": None}, version, producer_byte_rate=1000) == 0
    assert alter(admin, {"user": user}, version, request_percentage=12.5) == 0
    pair, alone = frozenset({("user", user), ("client-id", None)}), frozenset({("user", user)})
    assert describe(admin, ("user", EXACT, user), version=version) == {
        pair: {"producer_byte_rate": 1000.0},
        alone: {"request_percentage": 12.5},
    }
    assert describe(admin, ("user", EXACT, user), strict=True, version=version).keys() == {alone}
    assert describe(admin, ("user", SPECIFIED, None), ("client-id", DEFAULT, None)).keys() == {pair}
    assert alter(admin, {"user": user, "client-id": None}, version, producer_byte_rate=None) == 0
    assert alter(admin, {"user": user}, version, request_percentage=None) == 0
    assert describe(admin, ("user", EXACT, user)) == {}


def test_validation_alone_changes_nothing(admin):
    user = unique("user")
    assert alter(admin, {"user": user}, validate_only=True, producer_byte_rate=1) == 0
    assert describe(admin, ("user", EXACT, user)) == {}


@pytest.mark.parametrize(
    ("entity", "limits"),
    [
        ({"user": "anna"}, {"no_such_rate": 1}),
        ({"user": "anna"}, {"producer_byte_rate": -1}),
        ({"user": "anna"}, {"connection_creation_rate": 1}),
        ({"ip": "10.0.0.1", "user": "anna"}, {"connection_creation_rate": 1}),
        ({"ip": "not an address"}, {"connection_creation_rate": 1}),
        ({"user": ""}, {"producer_byte_rate": 1}),
        ({"topic": "t"}, {"producer_byte_rate": 1}),
        ({}, {"producer_byte_rate": 1}),
    ],
)
def test_what_kafka_refuses(admin, entity, limits):
    assert alter(admin, entity, **limits) == ErrorCode.INVALID_REQUEST


def test_filters_that_kafka_refuses(admin):
    assert describe(admin, ("user", EXACT, None)) == ErrorCode.INVALID_REQUEST
    assert describe(admin, ("topic", EXACT, "t")) == ErrorCode.UNSUPPORTED_VERSION


def test_an_address_above_its_connection_rate_is_refused(node, admin):
    alter(admin, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    wires = [Wire(node.port) for _ in range(40)]
    # A window of eleven seconds: the later ones are held and then closed.
    assert any(wire.is_closed_by_peer() for wire in reversed(wires))
    alter(admin, {"ip": "127.0.0.1"}, connection_creation_rate=None)
    for wire in wires:
        wire.close()
    with Wire(node.port) as another:
        assert another.call("api_versions", 0).error_code == 0


def test_a_producer_above_its_quota_is_answered_at_once_and_handled_again_later(admin, client):
    topic = admin.create_topic()
    alter(admin, {"client-id": client.client_id}, producer_byte_rate=1000)
    fields = produce_fields(topic, batch(bytes(10_500)))
    answer = client.call("produce", 9, **fields)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert 500 < answer.throttle_time.total_seconds() * 1000 < 2_000
    # The next request waits in the socket, and is handled when the time is over.
    answer = client.call("produce", 9, **produce_fields(topic, batch(b"v")))
    assert answer.responses[0].partition_responses[0].base_offset == 1


def test_requests_behind_a_throttled_one_in_the_same_read_wait(node, admin, client):
    topic = admin.create_topic()
    alter(admin, {"client-id": client.client_id}, producer_byte_rate=1000)
    numbers = [client.send("produce", 9, **produce_fields(topic, batch(bytes(50_000)))) for _ in range(3)]
    first = client.receive("produce", 9, numbers[0])
    assert first.throttle_time.total_seconds() > 0
    assert admin.end_offset(topic) == 1
    assert muted(node, client)


def test_acks_0_is_muted_without_an_answer(node, admin, client):
    topic = admin.create_topic()
    alter(admin, {"client-id": client.client_id}, producer_byte_rate=1000)
    client.produce(topic, batch(bytes(100_000)), acks=0)
    client.send("metadata", 12, topics=[])
    until(lambda: admin.end_offset(topic) == 1, "the record is written")
    assert muted(node, client)
    assert client.is_silent()


def test_other_clients_are_not_throttled_and_keep_the_quick_path(node, admin, client):
    topic = admin.create_topic()
    alter(admin, {"client-id": client.client_id}, producer_byte_rate=1_000_000)
    for _ in range(3):
        assert (
            client.call("produce", 9, **produce_fields(topic, batch(b"v"), acks=1)).throttle_time.total_seconds() == 0
        )
    assert known_prefixes(node, client) == 0
    with Wire(node.port, client_id=unique("other")) as other:
        for _ in range(3):
            other.call("produce", 9, **produce_fields(topic, batch(b"v"), acks=1))
        assert known_prefixes(node, other) == 1
        # What the quick path has learned is forgotten when this client gets a quota, too.
        alter(admin, {"client-id": other.client_id}, producer_byte_rate=1000)
        assert known_prefixes(node, other) == 0
        answer = other.call("produce", 9, **produce_fields(topic, batch(bytes(20_000)), acks=1))
        assert answer.throttle_time.total_seconds() > 0
        alter(admin, {"client-id": other.client_id}, producer_byte_rate=None)


def fetch(wire, topic, session_id=0, session_epoch=-1, offset=0):
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }
    return wire.call(
        "fetch",
        12,
        replica_id=-1,
        max_wait=0,
        min_bytes=1,
        max_bytes=1 << 25,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[{"topic": topic, "partitions": [part]}],
    )


def test_a_consumer_above_its_quota_gets_an_empty_response(node, admin, client):
    topic = admin.create_topic()
    for _ in range(3):
        admin.produce(topic, batch(bytes(9_000)))
    alter(admin, {"client-id": client.client_id}, consumer_byte_rate=1000)
    first = fetch(client, topic)
    assert len(first.responses[0].partitions[0].records) > 9_000, "a window is 10 s of the quota"
    second = fetch(client, topic, session_epoch=0)
    assert (second.responses, second.session_id, second.error_code) == ((), 0, 0)
    assert second.throttle_time.total_seconds() > 0
    assert muted(node, client)


def test_a_session_survives_a_throttled_response(node, admin, client):
    topic = admin.create_topic()
    admin.produce(topic, batch(bytes(6_000)))
    opened = fetch(client, topic, session_epoch=0)
    assert opened.session_id
    alter(admin, {"client-id": client.client_id}, consumer_byte_rate=1000)
    fetch(client, topic, opened.session_id, 1)
    throttled = fetch(client, topic, opened.session_id, 2)
    assert (throttled.responses, throttled.session_id) == ((), opened.session_id)
    assert throttled.throttle_time.total_seconds() > 0
    alter(admin, {"client-id": client.client_id}, consumer_byte_rate=None)
    assert fetch(client, topic, opened.session_id, 3).error_code == 0


def test_the_quota_of_a_user_applies_to_all_its_connections(node, admin):
    topic = admin.create_topic()
    alter(admin, {"user": "ANONYMOUS", "client-id": "shared"}, producer_byte_rate=1000)
    with Wire(node.port, client_id="shared") as one, Wire(node.port, client_id="shared") as two:
        assert one.call("produce", 9, **produce_fields(topic, batch(bytes(9_000)))).throttle_time.total_seconds() == 0
        assert two.call("produce", 9, **produce_fields(topic, batch(bytes(9_000)))).throttle_time.total_seconds() > 0
        assert not muted(node, one)
        assert muted(node, two)
    alter(admin, {"user": "ANONYMOUS", "client-id": "shared"}, producer_byte_rate=None)


@pytest.fixture
def slow_clock(node):
    """A second of CPU time with every look at the clock."""
    times = iter(range(0, 10**18, 10**9))

    def replace(running):
        before, running.services.quotas.cpu_ns = running.services.quotas.cpu_ns, times.__next__
        return before

    original = node.run(replace)
    yield
    node.run(lambda running: setattr(running.services.quotas, "cpu_ns", original))


JOIN = {
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("metadata", 12, {"topics": []}),
        ("api_versions", 3, {"client_software_name": "test", "client_software_version": "1"}),
        ("describe_cluster", 1, {}),
        ("list_groups", 4, {}),
        ("create_topics", 7, {"topics": [], "timeout": 1000}),
        ("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]}),
        ("heartbeat", 4, {"group_id": "g", "member_id": "m", "generation_id": 1}),
        ("join_group", 3, {"group_id": "throttled", **JOIN}),
        ("fetch", 12, {"replica_id": -1, "max_wait": 0, "topics": []}),
    ],
)
def test_every_response_reports_the_time_of_requests(admin, client, slow_clock, api, version, fields):
    alter(admin, {"client-id": client.client_id}, request_percentage=1)
    answer = client.call(api, version, **fields)
    assert answer.throttle_time.total_seconds() == 1.0


def test_followers_are_not_measured(admin, client, slow_clock):
    alter(admin, {"client-id": client.client_id}, request_percentage=1)
    answer = client.call("fetch", 12, replica_id=99, max_wait=0, topics=[])
    assert (answer.error_code, answer.throttle_time.total_seconds()) == (ErrorCode.INVALID_REQUEST, 0)


def create(wire, version, *names):
    topics = [{"name": name, "num_partitions": 10, "replication_factor": 1} for name in names]
    answer = wire.call("create_topics", version, topics=topics, timeout=10_000)
    return [topic.error_code for topic in answer.topics], answer.throttle_time.total_seconds()


def test_changes_above_the_quota_are_refused_by_new_versions(node, admin, client):
    alter(admin, {"client-id": client.client_id}, controller_mutation_rate=1)
    names = [unique() for _ in range(3)]
    codes, throttle_s = create(client, 7, *names)
    assert codes == [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert throttle_s > 5
    assert muted(node, client)
    topics = {topic.name for topic in admin.call("metadata", 12, topics=None).topics}
    assert topics & set(names) == set(names[:2])


def test_changes_above_the_quota_only_wait_with_old_versions(node, admin, client):
    alter(admin, {"client-id": client.client_id}, controller_mutation_rate=1)
    codes, throttle_s = create(client, 5, *[unique() for _ in range(3)])
    assert codes == [0, 0, 0]
    assert throttle_s > 15
    assert muted(node, client)


def test_requests_with_a_long_client_id_are_not_learned(node, admin):
    """What is learned contains the client id: 256 of 32 KB for each connection would be 8 MB."""
    topic = admin.create_topic()
    with Wire(node.port, client_id="x" * 30_000) as client:
        for _ in range(3):
            client.call("produce", 9, **produce_fields(topic, batch(b"v"), acks=1))
        assert known_prefixes(node, client) == 0
    assert admin.end_offset(topic) == 3
