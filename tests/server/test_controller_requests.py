"""What brokers ask the controller, spoken by hand: a broker that exists only on paper joins a real controller.

Whatever it sends is written by another project's code, and what comes of it is seen through the real broker's Metadata.
"""

import contextlib
import itertools
import socket
import time

import pytest

from harness import NodeThread, Wire, unique
from harness.wire import parse_reply, request_bytes
from klamm.model.errors import ErrorCode
from klamm.protocol.codec import decode
from klamm.protocol.header import decode_response_header
from klamm.protocol.messages.envelope import EnvelopeResponse

PATIENCE_S = 30.0
FEATURES = {"metadata.version": (7, 30), "eligible.leader.replicas.version": (0, 1)}
FEATURES |= {"group.version": (0, 1), "transaction.version": (0, 2)}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("controller"), "broker.session.timeout.ms=60000") as made:
        yield made


@pytest.fixture
def client(node):
    with Wire(node.port) as wire:
        yield wire


@pytest.fixture
def controller(node):
    with Wire(node.node.addresses["CONTROLLER"][1]) as wire:
        yield wire


class PaperBroker:
    """A broker id, a socket that listens as a broker would, and a connection to beat over."""

    def __init__(self, node, broker_id, rack=None):
        self.node_id = broker_id
        self.cluster_id = node.node.services.cluster_id
        self.controller_port = node.node.addresses["CONTROLLER"][1]
        self.incarnation = bytes([broker_id]) * 16
        self.directory = bytes([broker_id, 7]) * 8
        self.rack = rack
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.wire = Wire(self.controller_port)
        self.epoch = -1
        self.offset = -1

    def register(self, **fields):
        spans = [
            {"name": n, "min_supported_version": lo, "max_supported_version": hi} for n, (lo, hi) in FEATURES.items()
        ]
        listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": self.port, "security_protocol": 0}
        wish = {
            "broker_id": self.node_id,
            "cluster_id": self.cluster_id,
            "incarnation_id": self.incarnation,
            "listeners": [listener],
            "features": spans,
            "rack": self.rack,
            "log_dirs": [self.directory],
            **fields,
        }
        reply = self.wire.call("broker_registration", 4, **wish)
        if reply.error_code == 0:
            self.epoch = reply.broker_epoch
        return reply

    def beat(self, **fields):
        wish = {"broker_id": self.node_id, "broker_epoch": self.epoch, "current_metadata_offset": 1 << 40, **fields}
        return self.wire.call("broker_heartbeat", 1, **wish)

    def join(self):
        assert self.register().error_code == 0
        assert not self.beat().is_fenced
        return self

    def die(self):
        """As a killed process: its port refuses connections, and the connection ends."""
        self.socket.close()
        self.wire.close()


@pytest.fixture
def paper(node, controller):
    made = []

    def make(broker_id, **fields):
        made.append(PaperBroker(node, broker_id, **fields))
        return made[-1]

    yield make
    for broker in made:
        with contextlib.suppress(OSError):
            broker.die()
        controller.call("unregister_broker", 0, broker_id=broker.node_id)


def brokers(client):
    """Those that are not fenced; Metadata still names for a session one that has left."""
    return sorted(broker.broker_id for broker in client.call("describe_cluster", 1).brokers)


def partition(client, topic, index=0):
    return client.call("metadata", 12, topics=[{"name": topic}]).topics[0].partitions[index]


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


def create(client, assignments):
    name = unique()
    wanted = [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(assignments)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": wanted}
    reply = client.call("create_topics", 7, topics=[topic], timeout=10_000)
    assert reply.topics[0].error_code == 0, reply
    return name


def test_a_broker_registers_beats_and_is_seen(client, paper):
    broker = paper(2, rack="r2")
    assert broker.register().error_code == 0
    assert brokers(client) == [1], "it is fenced until it has caught up"
    reply = broker.beat(current_metadata_offset=0)
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    reply = broker.beat()
    assert (reply.is_caught_up, reply.is_fenced, reply.should_shut_down) == (True, False, False)
    seen = {b.node_id: (b.host, b.port, b.rack) for b in client.call("metadata", 12, topics=[]).brokers}
    assert seen[2] == ("127.0.0.1", broker.port, "r2")
    described = client.call("describe_cluster", 1, endpoint_type=1)
    assert sorted(b.broker_id for b in described.brokers) == [1, 2]
    assert described.controller_id in (1, 2), "any live broker may be named"


def test_what_is_refused(paper, node):
    broker = paper(2)
    assert ErrorCode(broker.register(cluster_id="another").error_code) is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert ErrorCode(broker.register(log_dirs=[]).error_code) is ErrorCode.INVALID_REGISTRATION
    assert ErrorCode(broker.register(features=[]).error_code) is ErrorCode.UNSUPPORTED_VERSION
    broker.join()
    other = paper(2)
    other.incarnation = b"x" * 16
    assert ErrorCode(other.register().error_code) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert ErrorCode(broker.beat(broker_epoch=broker.epoch - 1).error_code) is ErrorCode.STALE_BROKER_EPOCH


def test_a_dead_process_is_fenced_at_once(client, paper):
    """With a session of a minute, only the refused connection can tell."""
    broker = paper(2).join()
    topic = create(client, [[2, 1]])
    assert partition(client, topic).leader_id == 2
    broker.die()
    wait_until(lambda: brokers(client) == [1], "the broker is fenced")
    wait_until(lambda: partition(client, topic).leader_id == 1, "its partition is led by another")


def test_a_broker_that_only_lost_its_connection_stays(client, paper):
    broker = paper(2).join()
    broker.wire.close()
    broker.wire = Wire(broker.controller_port)
    for _ in range(100):
        assert brokers(client) == [1, 2], "its address accepts connections: it keeps its session"
        time.sleep(0.01)
    assert not broker.beat().is_fenced


def test_the_next_process_at_the_same_address_need_not_wait(client, paper):
    broker = paper(2).join()
    first = broker.epoch
    broker.wire.close()
    broker.wire = Wire(broker.controller_port)
    broker.incarnation = b"y" * 16
    wait_until(lambda: broker.register().error_code == 0, "the second process is taken")
    assert broker.epoch > first


def test_controlled_shutdown_moves_leaders_first(client, paper):
    broker = paper(2).join()
    topic = create(client, [[2, 1], [1, 2]])
    reply = broker.beat(want_shut_down=True)
    assert not reply.should_shut_down
    wait_until(lambda: partition(client, topic).leader_id == 1, "the leader has moved")
    assert brokers(client) == [1, 2], "it still answers clients"
    wait_until(lambda: broker.beat(want_shut_down=True).should_shut_down, "the others know")
    wait_until(lambda: brokers(client) == [1], "it has gone")


def test_a_leader_changes_its_isr_under_its_epochs(client, controller, paper):
    broker = paper(2).join()
    topic = create(client, [[2, 1]])
    topic_id = client.topic_id(topic)

    def alter(isr, partition_epoch, broker_epoch=None):
        part = {"partition_index": 0, "leader_epoch": 0, "partition_epoch": partition_epoch}
        part["new_isr_with_epochs"] = [{"broker_id": broker_id, "broker_epoch": -1} for broker_id in isr]
        fields = {"broker_id": 2, "broker_epoch": broker.epoch if broker_epoch is None else broker_epoch}
        topics = [{"topic_id": topic_id, "partitions": [part]}]
        return controller.call("alter_partition", 3, topics=topics, **fields)

    answer = alter([2], 0).topics[0].partitions[0]
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, (2,), 1)
    wait_until(lambda: partition(client, topic).isr_nodes == (2,), "the broker heard of it")
    answer = alter([2, 1], 0).topics[0].partitions[0]
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_UPDATE_VERSION
    assert ErrorCode(alter([2, 1], 1, broker_epoch=1).error_code) is ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_are_never_given_twice(controller, paper):
    broker = paper(2).join()
    blocks = [controller.call("allocate_producer_ids", 0, broker_id=2, broker_epoch=broker.epoch) for _ in range(3)]
    starts = [block.producer_id_start for block in blocks]
    assert all(block.error_code == 0 for block in blocks)
    assert [b - a for a, b in itertools.pairwise(starts)] == [block.producer_id_len for block in blocks[1:]]
    refused = controller.call("allocate_producer_ids", 0, broker_id=2, broker_epoch=broker.epoch - 1)
    assert ErrorCode(refused.error_code) is ErrorCode.STALE_BROKER_EPOCH


def test_a_replica_says_where_it_lies(client, controller, paper):
    broker = paper(2)
    broker.register(log_dirs=[broker.directory, b"other-directory!"])
    broker.beat()
    topic = create(client, [[1, 2]])
    part = {"topic_id": client.topic_id(topic), "partitions": [{"partition_index": 0}]}
    for directory in (broker.directory, b"other-directory!"):
        requested = [{"id_": directory, "topics": [part]}]
        reply = controller.call(
            "assign_replicas_to_dirs", 0, broker_id=2, broker_epoch=broker.epoch, directories=requested
        )
        assert reply.error_code == 0
        assert reply.directories[0].topics[0].partitions[0].error_code == 0


def test_a_failed_directory_takes_its_replicas_out_of_sync(client, paper):
    broker = paper(2).join()
    topic = create(client, [[2, 1]])
    # The field is tagged, which the request by hand writes like any other.
    broker.beat(offline_log_dirs=[broker.directory])
    wait_until(lambda: partition(client, topic).leader_id == 1, "another broker leads")


def test_moves_are_made_listed_and_taken_back(client, paper):
    paper(2).join()
    topic = create(client, [[1]])
    move = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [2, 1]}]}]
    reply = client.call("alter_partition_reassignments", 0, timeout=10_000, topics=move)
    assert (reply.error_code, reply.responses[0].partitions[0].error_code) == (0, 0)
    reassigned = client.call("list_partition_reassignments", 0, timeout=10_000, topics=None).topics
    part = next(entry for entry in reassigned if entry.name == topic).partitions[0]
    assert (part.replicas, part.adding_replicas, part.removing_replicas) == ((2, 1), (2,), ())
    move[0]["partitions"][0]["replicas"] = None
    assert client.call("alter_partition_reassignments", 0, timeout=10_000, topics=move).error_code == 0
    assert partition(client, topic).replica_nodes == (1,)
    reassigned = client.call("list_partition_reassignments", 0, timeout=10_000, topics=None).topics
    assert topic not in [entry.name for entry in reassigned]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_preferred_leader_is_elected_on_request(client, paper, version):
    broker = paper(2)
    topic = create_with_preferred_away(client, broker)
    requested = [{"topic": topic, "partitions": [0]}]
    reply = client.call("elect_leaders", version, topic_partitions=requested, timeout=10_000)
    result = reply.replica_election_results[0].partition_result[0]
    assert ErrorCode(result.error_code) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def create_with_preferred_away(client, broker):
    broker.join()
    topic = create(client, [[2, 1]])
    broker.die()
    wait_until(lambda: partition(client, topic).leader_id == 1, "the preferred leader has gone")
    return topic


def test_a_broker_is_forgotten(client, paper):
    paper(2).join()
    assert client.call("unregister_broker", 0, broker_id=2).error_code == 0
    assert brokers(client) == [1]
    assert ErrorCode(client.call("unregister_broker", 0, broker_id=9).error_code) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_controller_registers(controller):
    listener = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 9, "security_protocol": 0}
    spans = [{"name": n, "min_supported_version": lo, "max_supported_version": hi} for n, (lo, hi) in FEATURES.items()]
    reply = controller.call(
        "controller_registration",
        0,
        controller_id=7,
        incarnation_id=b"c" * 16,
        zk_migration_ready=False,
        listeners=[listener],
        features=spans,
    )
    assert reply.error_code == 0


class TestEnvelope:
    def ask(self, controller, inner):
        principal = b"\0\0\x05User\x0aANONYMOUS\0\0"
        fields = {"request_data": inner, "request_principal": principal, "client_host_address": b"\x7f\0\0\1"}
        controller.send("envelope", 0, **fields)
        # Read with the plain schema: the tag of our own is one that others skip, which kio cannot.
        frame = controller.receive_frame()
        return decode(EnvelopeResponse, 0, frame, decode_response_header(frame, 58, 0)[1])[0]

    def test_a_request_inside_is_answered_inside(self, controller, client):
        name = unique()
        topic = {"name": name, "num_partitions": 2, "replication_factor": 1}
        inner = request_bytes("create_topics", 7, 4711, "some-client", topics=[topic], timeout=10_000)
        reply = self.ask(controller, inner)
        assert reply.error_code == 0
        answer = parse_reply(reply.response_data, "create_topics", 7, 4711)
        assert (answer.topics[0].error_code, answer.topics[0].num_partitions) == (0, 2)
        wait_until(lambda: len(client.call("metadata", 12, topics=[{"name": name}]).topics[0].partitions) == 2, "known")

    @pytest.mark.parametrize(
        ("inner", "code"),
        [
            (b"", ErrorCode.UNSUPPORTED_VERSION),
            (b"\0\x13\0\x07", ErrorCode.UNSUPPORTED_VERSION),
            (request_bytes("metadata", 12, 1, "x", topics=None), ErrorCode.INVALID_REQUEST),
            (request_bytes("broker_heartbeat", 0, 1, "x", broker_id=1, broker_epoch=1), ErrorCode.INVALID_REQUEST),
            (request_bytes("create_topics", 7, 1, "x", topics=[], timeout=1)[:-3], ErrorCode.UNSUPPORTED_VERSION),
        ],
        ids=["nothing", "half a header", "not for controllers", "not for clients", "cut"],
    )
    def test_what_does_not_belong_inside_is_refused(self, controller, inner, code):
        reply = self.ask(controller, inner)
        assert (ErrorCode(reply.error_code), reply.response_data) == (code, None)
