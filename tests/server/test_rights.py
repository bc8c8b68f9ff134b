"""What the matrix of rights does not show: parts of requests, listings, bit sets, forwarded requests, audit lines."""

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.access import (
    CLUSTER_DENIED,
    SASL_LISTENER,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    allow,
    collect_codes,
    connect_as,
    log_in,
    secured_node,
    set_entries,
)
from harness.inprocess import NodeThread
from harness.wire import Wire, batch, parse_reply, produce_fields, request_bytes, unique
from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclPermission as Permission
from klamm.model.acls import AclResourceType as Type
from klamm.model.acls import PatternType as Pattern
from klamm.protocol.codec import decode
from klamm.protocol.header import decode_response_header
from klamm.security.core.acl import AccessControlEntry
from klamm.security.core.principal import Principal
from klamm.server.controller.channel import ENVELOPE, ForwardedResponse, encode_principal
from klamm.telemetry.log import Level, configure

ALICE = "User:alice"
UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC, INVALID_REQUEST, UNSUPPORTED_VERSION, BAD_PRINCIPAL = 100, 3, 42, 35, 97
NOT_REQUESTED = -(2**31)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with secured_node(tmp_path_factory.mktemp("rights")) as thread:
        yield thread


@pytest.fixture
def admin(node: NodeThread) -> Iterator[Wire]:
    with Wire(node.port) as wire:
        yield wire


@pytest.fixture
def alice(node: NodeThread) -> Iterator[Wire]:
    set_entries(node, [])
    with connect_as(node, ALICE) as wire:
        yield wire


@pytest.fixture
def audit() -> Iterator[io.StringIO]:
    """The log of the process, whose level a test may change."""
    stream = io.StringIO()
    configure(Level.INFO, stream)
    yield stream
    configure()


def audit_lines(stream: io.StringIO) -> list[str]:
    return [
        line.partition("kafka.authorizer.logger ")[2]
        for line in stream.getvalue().splitlines()
        if "kafka.authorizer.logger" in line
    ]


# Missing and forbidden look the same


def test_a_forbidden_topic_looks_like_a_missing_one(node: NodeThread, admin: Wire, alice: Wire) -> None:
    topic, missing = admin.create_topic(), unique("missing")
    reply = alice.call("metadata", 12, topics=[{"name": topic}, {"name": missing}], allow_auto_topic_creation=False)
    assert [(part.error_code, part.topic_id, part.partitions) for part in reply.topics] == [
        (TOPIC_DENIED, None, ()),
        (TOPIC_DENIED, None, ()),
    ]
    assert alice.fetch(topic, 0, version=12).error_code == alice.fetch(missing, 0, version=12).error_code
    assert alice.produce(topic, batch(b"v")).error_code == alice.produce(missing, batch(b"v")).error_code


def test_a_topic_by_id_shows_no_name(node: NodeThread, admin: Wire, alice: Wire) -> None:
    topic_id = admin.topic_id(admin.create_topic())
    reply = alice.call("metadata", 12, topics=[{"name": None, "topic_id": topic_id}])
    assert (reply.topics[0].error_code, reply.topics[0].name) == (TOPIC_DENIED, None)
    deleted = alice.call("delete_topics", 6, topics=[{"name": None, "topic_id": topic_id}])
    assert (deleted.responses[0].error_code, deleted.responses[0].name) == (TOPIC_DENIED, None)
    unknown = alice.call("delete_topics", 6, topics=[{"name": None, "topic_id": b"?" * 16}])
    assert unknown.responses[0].error_code == UNKNOWN_TOPIC_ID


def test_auto_creation_needs_the_right_to_create(node: NodeThread, admin: Wire, alice: Wire) -> None:
    topic = unique("auto")
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.DESCRIBE)]))
    assert alice.call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=True).topics[0].error_code == (
        TOPIC_DENIED
    )
    looked_up = admin.call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    assert looked_up.topics[0].error_code == UNKNOWN_TOPIC
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.DESCRIBE), (Type.TOPIC, topic, Op.CREATE)]))
    while alice.call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=True).topics[0].error_code:
        pass


# Parts of requests


def test_the_allowed_parts_of_a_request_are_carried_out(node: NodeThread, admin: Wire, alice: Wire) -> None:
    mine, other = unique("mine"), admin.create_topic()
    set_entries(
        node,
        allow(ALICE, [(Type.TOPIC, mine, Op.CREATE), (Type.TOPIC, mine, Op.WRITE), (Type.TOPIC, mine, Op.DELETE)]),
    )
    created = alice.call(
        "create_topics",
        7,
        topics=[{"name": name, "num_partitions": 1, "replication_factor": 1} for name in (mine, "others")],
        timeout=10_000,
    )
    by_name = {part.name: part for part in created.topics}
    assert (by_name[mine].error_code, by_name["others"].error_code) == (0, TOPIC_DENIED)
    # Without DESCRIBE_CONFIGS the configs and counts are left out.
    assert (by_name[mine].topic_config_error_code, by_name[mine].num_partitions) == (TOPIC_DENIED, -1)
    fields: dict[str, Any] = produce_fields(mine, batch(b"v"))
    fields["topic_data"] += produce_fields(other, batch(b"v"))["topic_data"]
    reply = alice.call("produce", 9, **fields)
    assert [part.partition_responses[0].error_code for part in reply.responses] == [0, TOPIC_DENIED]
    assert admin.end_offset(mine) == 1
    assert admin.end_offset(other) == 0
    deleted = alice.call("delete_topics", 6, topics=[{"name": name, "topic_id": bytes(16)} for name in (mine, other)])
    assert {part.name: part.error_code for part in deleted.responses} == {mine: 0, other: TOPIC_DENIED}


def test_a_listing_has_what_a_client_may_describe(node: NodeThread, admin: Wire, alice: Wire) -> None:
    seen, hidden = admin.create_topic(unique("seen")), admin.create_topic(unique("hidden"))
    set_entries(node, allow(ALICE, [(Type.TOPIC, seen, Op.READ)]))
    assert [topic.name for topic in alice.call("metadata", 9, topics=None).topics] == [seen]
    listed = alice.call("describe_topic_partitions", 0, topics=[], response_partition_limit=2000, cursor=None)
    assert [topic.name for topic in listed.topics] == [seen]
    assert hidden in [topic.name for topic in admin.call("metadata", 9, topics=None).topics]


def test_a_subscription_by_pattern_has_topics_that_the_member_may_describe(
    node: NodeThread, admin: Wire, alice: Wire
) -> None:
    prefix = unique("pattern")
    seen, hidden = admin.create_topic(f"{prefix}-seen"), admin.create_topic(f"{prefix}-hidden")

    def join(group: str) -> set[bytes]:
        while admin.call("find_coordinator", 4, key_type=0, coordinator_keys=[group]).coordinators[0].error_code:
            pass
        reply = alice.call(
            "consumer_group_heartbeat",
            1,
            group_id=group,
            member_id="m",
            member_epoch=0,
            rebalance_timeout=60_000,
            subscribed_topic_regex=f"{prefix}-.*",
            topic_partitions=[],
        )
        assert reply.error_code == 0, reply
        return {part.topic_id.bytes for part in reply.assignment.topic_partitions}

    grants = [(Type.GROUP, "*", Op.READ), (Type.TOPIC, seen, Op.READ)]
    set_entries(node, allow(ALICE, grants))
    assert join(unique("g")) == {admin.topic_id(seen)}
    set_entries(node, allow(ALICE, [*grants, (Type.TOPIC, hidden, Op.READ)]))
    assert join(unique("g")) == {admin.topic_id(seen), admin.topic_id(hidden)}


def test_deny_by_host(node: NodeThread, admin: Wire, alice: Wire) -> None:
    topic = admin.create_topic()
    here = AccessControlEntry(Type.TOPIC, topic, Pattern.LITERAL, ALICE, "127.0.0.1", Op.READ, Permission.DENY)
    set_entries(node, [*allow(ALICE, [(Type.TOPIC, topic, Op.READ)]), here._replace(host="10.0.0.1")])
    assert alice.fetch(topic, 0).error_code == 0
    set_entries(node, [*allow(ALICE, [(Type.TOPIC, topic, Op.READ)]), here])
    assert alice.fetch(topic, 0).error_code == TOPIC_DENIED


def test_a_fetch_session_ends_with_the_right(node: NodeThread, admin: Wire, alice: Wire) -> None:
    topic = admin.create_topic()
    admin.produce(topic, batch(b"v"))
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.READ)]))
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    part |= {"current_leader_epoch": -1, "last_fetched_epoch": -1}
    topics = [{"topic": topic, "partitions": [part]}]
    common = {"replica_id": -1, "max_wait": 0, "max_bytes": 1000}
    first = alice.call("fetch", 12, session_epoch=0, topics=topics, **common)
    assert first.session_id > 0
    set_entries(node, [])
    later = alice.call("fetch", 12, session_id=first.session_id, session_epoch=1, **common)
    assert later.responses[0].partitions[0].error_code == TOPIC_DENIED
    assert not later.responses[0].partitions[0].records


# Replicas, producers, transactions


def test_a_replica_fetch_needs_cluster_action_and_read_does_not_help(
    node: NodeThread, admin: Wire, alice: Wire
) -> None:
    """CVE-2018-1288: a client that calls itself a replica."""
    topic = admin.create_topic()
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.ALL)]))
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    part |= {"current_leader_epoch": -1, "last_fetched_epoch": -1}
    topics = [{"topic_id": admin.topic_id(topic), "partitions": [part]}]
    reply = alice.call("fetch", 13, replica_id=1, max_wait=0, max_bytes=1000, topics=topics)
    assert collect_codes(reply)[-1] == TOPIC_DENIED


def test_an_idempotent_producer_needs_write_on_any_topic(node: NodeThread, alice: Wire) -> None:
    init = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    assert alice.call("init_producer_id", 4, **init).error_code == CLUSTER_DENIED
    set_entries(node, allow(ALICE, [(Type.TOPIC, "some", Op.WRITE)]))
    assert alice.call("init_producer_id", 4, **init).error_code == 0
    set_entries(node, allow(ALICE, [(Type.CLUSTER, "kafka-cluster", Op.IDEMPOTENT_WRITE)]))
    assert alice.call("init_producer_id", 4, **init).error_code == 0


@pytest.mark.parametrize("transactional_id", [None, "writer"])
def test_cve_2018_17196_transactional_batches_need_the_right_whatever_the_request_says(
    node: NodeThread, admin: Wire, alice: Wire, transactional_id: str | None
) -> None:
    topic = admin.create_topic()
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.WRITE)]))
    records = batch(b"v", transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
    reply = alice.call("produce", 9, transactional_id=transactional_id, **produce_fields(topic, records))
    assert reply.responses[0].partition_responses[0].error_code == TRANSACTIONAL_ID_DENIED
    assert admin.end_offset(topic) == 0


# Bit sets


def test_authorized_operations_are_those_of_the_client(node: NodeThread, admin: Wire, alice: Wire) -> None:
    topic = admin.create_topic()
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.READ)]))
    fields = {"topics": [{"name": topic}], "include_topic_authorized_operations": True}
    reply = alice.call("metadata", 10, include_cluster_authorized_operations=True, **fields)
    assert reply.topics[0].topic_authorized_operations == 1 << Op.READ | 1 << Op.DESCRIBE
    assert reply.cluster_authorized_operations == 0
    assert admin.call("metadata", 10, **fields).topics[0].topic_authorized_operations == 3576
    not_requested = alice.call("metadata", 10, topics=[{"name": topic}])
    assert not_requested.topics[0].topic_authorized_operations == NOT_REQUESTED
    set_entries(node, allow(ALICE, [(Type.CLUSTER, "kafka-cluster", Op.DESCRIBE)]))
    reply = alice.call("describe_cluster", 0, include_cluster_authorized_operations=True)
    assert reply.cluster_authorized_operations == 1 << Op.DESCRIBE
    denied = alice.call("metadata", 10, **fields)
    assert (denied.topics[0].error_code, denied.topics[0].topic_authorized_operations) == (TOPIC_DENIED, NOT_REQUESTED)


# Forwarded requests


def envelope(wire: Wire, inner: bytes, principal: bytes | None, address: bytes = b"\x0a\0\0\x01") -> Any:
    wire.send("envelope", 0, request_data=inner, request_principal=principal, client_host_address=address)
    frame = wire.receive_frame()
    # Not read with kio, which refuses the tagged field for the offset of the change.
    _, start = decode_response_header(frame, ENVELOPE, 0)
    reply, _ = decode(ForwardedResponse, 0, frame, start)
    return reply


def test_a_forwarded_request_is_authorised_as_the_client_in_the_envelope(node: NodeThread) -> None:
    topic = unique()
    inner = request_bytes(
        "create_topics",
        7,
        9,
        "client",
        topics=[{"name": topic, "num_partitions": 1, "replication_factor": 1}],
        timeout=10_000,
    )
    alice = encode_principal(Principal("User", "alice"))
    rule = AccessControlEntry(Type.TOPIC, topic, Pattern.LITERAL, ALICE, "10.0.0.1", Op.CREATE, Permission.ALLOW)
    with Wire(node.node.addresses["CONTROLLER"][1]) as broker:
        set_entries(node, [])
        denied = parse_reply(envelope(broker, inner, alice).response_data, "create_topics", 7, 9)
        assert denied.topics[0].error_code == TOPIC_DENIED
        set_entries(node, [rule])
        elsewhere = envelope(broker, inner, alice, b"\x0a\0\0\x02")
        assert parse_reply(elsewhere.response_data, "create_topics", 7, 9).topics[0].error_code == TOPIC_DENIED
        allowed = parse_reply(envelope(broker, inner, alice).response_data, "create_topics", 7, 9)
        assert allowed.topics[0].error_code == 0


def test_an_envelope_itself_needs_cluster_action(node: NodeThread) -> None:
    inner = request_bytes("list_partition_reassignments", 0, 9, "client", timeout=1000, topics=None)
    root = encode_principal(Principal("User", "ANONYMOUS"))
    set_entries(node, allow(ALICE, [(Type.CLUSTER, "kafka-cluster", Op.ALTER)]))
    with connect_as(node, ALICE, port=node.node.addresses["CONTROLLER"][1]) as wire:
        reply = envelope(wire, inner, root)
        assert (reply.error_code, reply.response_data) == (CLUSTER_DENIED, None)


def test_faults_of_envelopes_have_kafkas_codes(node: NodeThread) -> None:
    root = encode_principal(Principal("User", "ANONYMOUS"))
    inner = request_bytes("list_partition_reassignments", 0, 9, "client", timeout=1000, topics=None)
    not_forwarded = request_bytes("metadata", 12, 9, "client", topics=None)
    with Wire(node.node.addresses["CONTROLLER"][1]) as wire:
        assert envelope(wire, inner, None).error_code == BAD_PRINCIPAL
        assert envelope(wire, inner, b"\0\7abc").error_code == BAD_PRINCIPAL
        assert envelope(wire, inner, root, b"\1\2\3").error_code == UNSUPPORTED_VERSION
        assert envelope(wire, inner[:-3], root).error_code == UNSUPPORTED_VERSION
        assert envelope(wire, struct.pack(">hh", 46, 99) + inner[4:], root).error_code == UNSUPPORTED_VERSION
        assert envelope(wire, not_forwarded, root).error_code == INVALID_REQUEST


# Audit


def test_a_denial_is_an_audit_line_with_kafkas_text(
    node: NodeThread, admin: Wire, alice: Wire, audit: io.StringIO
) -> None:
    topic = admin.create_topic()
    alice.fetch(topic, 0)
    (line,) = audit_lines(audit)
    assert line == (
        f"Principal = User:alice is Denied operation = READ from host = 127.0.0.1 on resource = Topic:LITERAL:{topic}"
        " for request = Fetch with resourceRefCount = 1 based on rule DefaultDeny"
    )


def test_permissions_are_audit_lines_at_debug_and_name_the_rule(
    node: NodeThread, admin: Wire, alice: Wire, audit: io.StringIO
) -> None:
    topic = admin.create_topic()
    rules = allow(ALICE, [(Type.TOPIC, topic, Op.READ)])
    set_entries(node, rules)
    alice.fetch(topic, 0)
    assert audit_lines(audit) == []
    configure(Level.DEBUG, audit)
    alice.fetch(topic, 0)
    (line,) = audit_lines(audit)
    assert line.endswith(f"based on rule MatchingAcl(acl={rules[0]})")
    assert " is Allowed operation = READ " in line


def test_at_debug_every_produce_request_is_an_audit_line(
    node: NodeThread, admin: Wire, alice: Wire, audit: io.StringIO
) -> None:
    topic = admin.create_topic()
    set_entries(node, allow(ALICE, [(Type.TOPIC, topic, Op.WRITE)]))
    configure(Level.DEBUG, audit)
    for _ in range(3):
        assert alice.produce(topic, batch(b"v")).error_code == 0
    lines = [line for line in audit_lines(audit) if " is Allowed operation = WRITE " in line]
    assert len(lines) == 3


def test_listings_and_bit_sets_write_no_audit_lines(node: NodeThread, alice: Wire, audit: io.StringIO) -> None:
    alice.call("metadata", 9, topics=None)
    alice.call("list_groups", 4)
    alice.call("describe_cluster", 0, include_cluster_authorized_operations=True)
    assert audit_lines(audit) == []


def test_a_name_cannot_forge_an_audit_line(node: NodeThread, alice: Wire, audit: io.StringIO) -> None:
    alice.call("describe_groups", 5, groups=["g\nPrincipal = User:admin is Allowed"])
    (line,) = audit_lines(audit)
    assert "Group:LITERAL:g\\nPrincipal" in line


def test_neither_a_principal_nor_a_rule_can_forge_an_audit_line(
    node: NodeThread, admin: Wire, audit: io.StringIO
) -> None:
    """Names of principals come from tokens and certificates, whose issuer may take any text."""
    topic = admin.create_topic()
    name = "User:eve\nPrincipal = User:admin is Allowed\u2028grüße"
    deny = AccessControlEntry(Type.TOPIC, topic, Pattern.LITERAL, name, "*", Op.ALL, Permission.DENY)
    set_entries(node, [deny])
    with connect_as(node, name) as eve:
        eve.fetch(topic, 0)
    (line,) = audit_lines(audit)
    assert line.startswith(
        "Principal = User:eve\\nPrincipal = User:admin is Allowed\\u2028grüße is Denied operation = READ"
    )
    assert "principal=User:eve\\nPrincipal" in line


def test_a_long_name_is_cut_in_the_audit_line(node: NodeThread, alice: Wire, audit: io.StringIO) -> None:
    alice.call("describe_groups", 5, groups=["g" * 30_000])
    (line,) = audit_lines(audit)
    assert f"on resource = Group:LITERAL:{'g' * 256}...(30000 characters) for request" in line


# Login


def test_rights_are_those_of_the_user_that_logged_in(tmp_path: Path) -> None:
    with secured_node(tmp_path, *SASL_LISTENER) as thread:
        with Wire(thread.port) as admin:
            topic = admin.create_topic()
        set_entries(thread, allow(ALICE, [(Type.TOPIC, topic, Op.READ)]))
        for user, password, code in (("alice", "one", 0), ("bob", "two", TOPIC_DENIED)):
            with log_in(thread, user, password) as wire:
                assert wire.fetch(topic, 0).error_code == code, user
