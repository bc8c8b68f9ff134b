"""What is thrown: plausible requests, made-up ones, and either with small harms done to them."""

import random
import struct

from harness import batch
from harness.made_messages import MessageMaker
from harness.wire import TOPIC_IDS_SINCE, produce_fields, request_bytes
from klamm.model.errors import ProtocolError
from klamm.protocol import APIS, decode, decode_request_header, encode, encode_request_header
from klamm.protocol.apis import Api
from klamm.protocol.header import RequestHeader
from klamm.protocol.schema import Sized
from klamm.security.core.principal import ANONYMOUS
from klamm.server.controller.channel import encode_principal
from klamm.server.requests.routes import SERVED, SERVED_BY_CONTROLLER

NODE_ID = 1
PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP = 0, 1, 11, 14
ENVELOPE = 58
UNREGISTER_BROKER = 64
REMOVE_RAFT_VOTER = 81
QUORUM_CHANGES = frozenset((52, 53, 54, 82))
"""Vote, BeginQuorumEpoch, EndQuorumEpoch and UpdateRaftVoter: another voter may depose the leader with them."""
SERVED_APIS = tuple(api for api in APIS.values() if api.name in SERVED)
CONTROLLER_APIS = tuple(api for api in APIS.values() if api.name in SERVED_BY_CONTROLLER)
APIS_OF = {"broker": SERVED_APIS, "controller": CONTROLLER_APIS}
"""What a kind of listener serves."""
LONG_SHARE = 0.03
LONG_NAMES = (
    "x" * 32_767,
    "n" * 6_000,
    "流" * 10_000,
    "\U0001f600" * 8_000,
    "y" * 249,
    "z" * 250,
    "w" * 1_000,
    "\n" * 300,
)
"""Names may have up to 32,767 bytes, whatever they name; one character may take four bytes of memory for each."""
OTHER_CLUSTER = "another-cluster-id-000"


def samples(topic, topic_id, kind="broker"):
    """A plausible request for every API of a listener, in every version: its name, and the frame."""
    named = [{"name": topic}]
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    config = {"resource_type": 2, "resource_name": topic}
    plausible = {
        "produce": produce_fields(topic, batch(b"x", b"y"), acks=1),
        "fetch": {"replica_id": -1, "max_bytes": 10_000, "topics": [{"topic": topic, "topic_id": topic_id,
                  "partitions": [part]}], "session_epoch": 0},
        "list_offsets": {"replica_id": -1, "topics": [{"name": topic, "partitions": [{"timestamp": -1}]}]},
        "metadata": {"topics": named},
        "find_coordinator": {"key": "g", "coordinator_keys": ["g"]},
        "api_versions": {"client_software_name": "fuzz", "client_software_version": "1"},
        "create_topics": {"topics": [{"name": topic, "num_partitions": 1, "replication_factor": 1}], "timeout": 100,
                          "validate_only": True},
        "delete_topics": {"topic_names": ["unknown"], "topics": [{"name": "unknown"}]},
        "delete_records": {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]},
        "offset_for_leader_epoch": {"topics": [{"topic": topic, "partitions": [{"partition": 0}]}]},
        "describe_configs": {"resources": [{**config, "configuration_keys": ["retention.ms"]}]},
        "alter_configs": {"resources": [{**config, "configs": []}], "validate_only": True},
        "incremental_alter_configs": {"resources": [{**config, "configs": [
            {"name": "retention.ms", "config_operation": 0, "value": "1"}]}], "validate_only": True},
        "describe_log_dirs": {"topics": [{"topic": topic, "partitions": [0]}]},
        "create_partitions": {"topics": [{"name": topic, "count": 1}], "validate_only": True},
        "describe_quorum": {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        "update_features": {"feature_updates": [{"feature": "metadata.version", "max_version_level": 1}],
                            "validate_only": True},
        "describe_topic_partitions": {"topics": named, "response_partition_limit": 10},
    }  # fmt: skip
    if kind == "controller":
        plausible |= _plausible_of_nodes(topic_id)
    for api in APIS_OF[kind]:
        for version in range(api.versions[0], api.versions[1] + 1):
            fields = dict(plausible.get(api.family, {}))
            if api.family == "produce" and version >= TOPIC_IDS_SINCE:
                fields["topic_data"] = [{**fields["topic_data"][0], "topic_id": topic_id}]
            yield api.name, request_bytes(api.family, version, 1, "fuzz", **fields)


def _plausible_of_nodes(topic_id):
    """Requests of brokers and voters."""
    metadata = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    epochs = {"cluster_id": OTHER_CLUSTER, "topics": [metadata]}
    listener = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
    voter = {"cluster_id": OTHER_CLUSTER, "voter_id": 9, "voter_directory_id": bytes(16), "listeners": [listener]}
    return {
        "fetch": {"cluster_id": OTHER_CLUSTER, "replica_id": 9, "max_wait": 0, "topics": [{
                  "topic": "__cluster_metadata", "topic_id": topic_id, "partitions": [{"partition": 0}]}]},
        "vote": epochs,
        "begin_quorum_epoch": epochs,
        "end_quorum_epoch": epochs,
        "fetch_snapshot": {"replica_id": 9, "topics": [{"name": "__cluster_metadata", "partitions": [
            {"partition": 0, "snapshot_id": {"end_offset": 1, "epoch": 1}}]}]},
        "broker_registration": {"broker_id": 9, "cluster_id": OTHER_CLUSTER, "incarnation_id": bytes(16)},
        "broker_heartbeat": {"broker_id": 9},
        "alter_partition": {"broker_id": 9, "topics": [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]},
        "assign_replicas_to_dirs": {"broker_id": 9, "directories": [{"id_": bytes(16), "topics": [
            {"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]}]},
        "add_raft_voter": voter,
        "remove_raft_voter": {name: voter[name] for name in ("cluster_id", "voter_id", "voter_directory_id")},
        "update_raft_voter": voter,
        "envelope": {"request_data": request_bytes("list_partition_reassignments", 0, 2, "inner"),
                     "request_principal": encode_principal(ANONYMOUS), "client_host_address": b"\x7f\0\0\1"},
    }  # fmt: skip


def ends_the_node(frame: bytes) -> bool:
    """Whether a request that is understood takes the only broker or voter out of its cluster, as it may."""
    try:
        header, offset = decode_request_header(frame)
        if header.api_key not in (UNREGISTER_BROKER, REMOVE_RAFT_VOTER, ENVELOPE, *QUORUM_CHANGES):
            return False
        request, _ = decode(APIS[header.api_key].request, header.api_version, frame, offset)
    except ProtocolError:
        return False
    if header.api_key == ENVELOPE:
        return ends_the_node(bytes(request.request_data))
    if header.api_key in QUORUM_CHANGES:
        # A voter of the same cluster with a higher epoch is believed: there is no other one to object.
        return request.cluster_id is None and _highest_epoch(request) > 0
    return NODE_ID in (getattr(request, "broker_id", None), getattr(request, "voter_id", None))


def has_no_answer(frame: bytes) -> bool:
    """Whether a request is a Produce with acks=0, which is not answered."""
    try:
        header, offset = decode_request_header(frame)
        if header.api_key != PRODUCE:
            return False
        request, _ = decode(APIS[PRODUCE].request, header.api_version, frame, offset)
    except (ProtocolError, KeyError):
        return False
    return request.acks == 0


def may_wait(frame: bytes) -> bool:
    """Whether the answer to a request may take as long as the request says, or as other members need."""
    return int.from_bytes(frame[:2]) in (FETCH, JOIN_GROUP, SYNC_GROUP)


def _highest_epoch(request) -> int:
    partitions = [partition for topic in getattr(request, "topics", ()) for partition in topic.partitions]
    names = ("replica_epoch", "leader_epoch", "current_leader_epoch")
    return max((getattr(part, name, 0) for part in (request, *partitions) for name in names), default=0)


def enveloped(source: random.Random, frame: bytes) -> bytes:
    """A request inside the Envelope of a broker that forwards it, either of them harmed now and then."""
    fields = {
        "request_data": changed(source, frame) if source.random() < 0.5 else frame,
        "request_principal": encode_principal(ANONYMOUS),
        "client_host_address": source.choice((b"\x7f\0\0\1", bytes(16), b"", b"12345")),
    }
    if source.random() < 0.3:
        fields["request_principal"] = changed(source, fields["request_principal"].ljust(8, b"\0"))
    return request_bytes("envelope", 0, 1, "fuzz", **fields)


def produce_frame(topic: str, records: bytes) -> bytes:
    """A Produce request with these records, whatever they are."""
    return request_bytes("produce", 9, 1, "fuzz", **produce_fields(topic, records, acks=1))


class HostileMaker(MessageMaker):
    """Makes names of up to 32 KB now and then."""

    def of_type(self, type, name: str, version: int, depth: int):
        if isinstance(type, Sized) and type.name == "string" and self.random.random() < LONG_SHARE:
            return long_name(self.random)
        return super().of_type(type, name, version, depth)


def long_name(source: random.Random) -> str:
    """A long name that no other request has."""
    number = f"{source.getrandbits(32):08x}"
    return number + source.choice(LONG_NAMES)[len(number) :]


def made_up(source: random.Random, api: Api) -> bytes:
    """A valid request in any of its versions, with values at the edges."""
    version = source.randint(*api.versions)
    request = HostileMaker(source.getrandbits(64)).message(api.request, version)
    if hasattr(request, "acks"):
        request.acks = source.choice((-1, 1))  # without an answer there is nothing to wait for
    client_id = long_name(source) if source.random() < LONG_SHARE else "fuzz"
    return encode_request_header(RequestHeader(api.key, version, 1, client_id)) + encode(request, version)


def random_frame(source: random.Random, apis: tuple[Api, ...] = SERVED_APIS) -> bytes:
    """A request's first bytes, and anything behind them."""
    head = struct.pack(">hhi", source.choice(apis).key, source.randrange(14), 1)
    return head + source.randbytes(source.randrange(200))


def changed(source, request):
    """One to four small harms behind the API key, which decides who is harmed."""
    data = bytearray(request)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(2, len(data))
        match source.randrange(6):
            case 0:
                data[at] = source.randrange(256)
            case 1:
                data[at] ^= 1 << source.randrange(8)
            case 2:
                del data[at:]
            case 3:
                data[at:at] = source.randbytes(source.randint(1, 9))
            case 4:
                size = source.choice((1, 2, 4, 8))
                data[at : at + size] = source.choice((b"\xff", b"\x7f", b"\x80", b"\0")) * size
            case 5:
                del data[at : at + source.randint(1, 4)]
        data += bytes(max(0, 8 - len(data)))
    return bytes(data)
