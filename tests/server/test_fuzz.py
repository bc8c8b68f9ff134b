"""Requests that are almost right: a node answers or closes that one connection, and never trips over its own code.

Whole requests of every API and version are changed at random places. The seed is printed; KLAMM_SEED replays it.
"""

import os
import random
import socket
import struct

import pytest

from harness import KlammProcess, Wire, batch
from harness.wire import produce_fields, request_bytes
from klamm.protocol.apis import APIS
from klamm.server.routes import SERVED

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
ROUNDS = int(os.environ.get("KLAMM_FUZZ_ROUNDS", "6"))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with KlammProcess(tmp_path_factory.mktemp("fuzz")) as klamm:
        yield klamm
        klamm.stop()


def samples(topic, topic_id):
    """A plausible request for every API, in every version."""
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
        "delete_topics": {"topic_names": ["nobody"], "topics": [{"name": "nobody"}]},
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
    for api in APIS.values():
        if api.name in SERVED:
            for version in range(api.versions[0], api.versions[1] + 1):
                fields = dict(plausible.get(api.family, {}))
                if api.family == "produce" and version >= 13:
                    fields["topic_data"] = [{**fields["topic_data"][0], "topic_id": topic_id}]
                yield request_bytes(api.family, version, 1, "fuzz", **fields)


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


def throw(port, *frames):
    """Send frames and read until the connection ends, however it ends, but let it end."""
    with Wire(port, timeout=20) as other:
        try:
            for frame in frames:
                other.send_frame(frame)
            other.sock.shutdown(socket.SHUT_WR)
            while other.sock.recv(65536):
                pass
        except TimeoutError:
            raise
        except OSError:
            return


def test_almost_right_requests(own):
    print(f"KLAMM_SEED={SEED}")
    source = random.Random(SEED)
    with Wire(own.port) as wire:
        topic = wire.create_topic()
        requests = list(samples(topic, wire.topic_id(topic)))
        for request in requests:
            wire.send_frame(request)
            wire.receive_frame()  # as it stands, each of them is answered
        for request in requests * ROUNDS:
            frames = [changed(source, request) for _ in range(source.randint(1, 3))]
            throw(own.port, *frames)
            wire.call("api_versions", 0)
        assert wire.produce(topic, batch(b"alive")).error_code == 0
    assert "request failed" not in own.log()
    assert "Traceback" not in own.log()


def test_random_frames(own):
    print(f"KLAMM_SEED={SEED}")
    source = random.Random(SEED + 1)
    keys = [api.key for api in APIS.values() if api.name in SERVED]
    with Wire(own.port) as wire:
        for _ in range(500):
            head = struct.pack(">hhi", source.choice(keys), source.randrange(14), 1)
            throw(own.port, head + source.randbytes(source.randrange(200)))
        assert wire.call("api_versions", 0).error_code == 0
    assert "request failed" not in own.log()
