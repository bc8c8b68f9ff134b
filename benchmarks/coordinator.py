"""What groups cost: loading a million offsets, one commit, one heartbeat, one rebalance of a hundred members.

    python benchmarks/coordinator.py [--offsets N] [--members N]

The first part has no network: a shard in this process. The second part starts a node and speaks to it over one
connection, requests pipelined, so that figures are the broker's work and not a client's.
"""

import argparse
import asyncio
import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time

from klamm.coordinator.core.shard import Decision, Now
from klamm.coordinator.groups import GroupConfig, GroupShard
from klamm.coordinator.groups.group import Caller
from klamm.coordinator.groups.offsets import CommittedOffset, offset_record
from klamm.coordinator.runtime.loading import load_shard
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import RequestHeader, encode_request_header
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.records.batch import build_batch

NOW = Now(1_000_000, 1_700_000_000_000)


class Memory:
    """A log of batches in memory."""

    leader_epoch = 0

    def __init__(self, chunks: list[bytes], end_offset: int) -> None:
        self._chunks = iter(chunks)
        self.end_offset = end_offset

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        raise NotImplementedError

    def when_committed(self, end_offset: int, settled: object) -> None:
        raise NotImplementedError

    def read(self, _offset: int) -> bytes:
        return next(self._chunks, b"")


def offset_batches(count: int, per_batch: int = 10) -> list[bytes]:
    topic_id = os.urandom(16)
    chunks, chunk = [], bytearray()
    for base in range(0, count, per_batch):
        rows = []
        for i in range(base, min(base + per_batch, count)):
            committed = CommittedOffset(i, 5, "", NOW.wall_ms, -1, topic_id)
            record = offset_record(f"group-{i // 100 % 1000}", f"topic-{i // 100_000}", i % 100, committed)
            rows.append((NOW.wall_ms, record.key, record.value, ()))
        chunk += build_batch(rows, base_offset=base)
        if len(chunk) > 1 << 20:
            chunks.append(bytes(chunk))
            chunk = bytearray()
    return [*chunks, bytes(chunk)]


def measure_loading(count: int) -> None:
    chunks = offset_batches(count)
    shard = GroupShard(GroupConfig(), lambda: "x")
    begin, cpu = time.perf_counter(), time.process_time()
    loaded = asyncio.run(load_shard(shard, Memory(chunks, count), "__consumer_offsets-0"))
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(f"load       {loaded:>9,} offsets in {took:6.2f} s   {cpu / loaded * 1e6:6.2f} us CPU each")


def measure_rebalance(size: int) -> None:
    """All members of a stable group rejoin, the leader assigns, all members sync."""
    ids = itertools.count()
    shard = GroupShard(GroupConfig(initial_rebalance_delay_ms=0), lambda: str(next(ids)))
    answers: dict[str, object] = {}

    def run(decision: Decision) -> None:
        for record in decision.records:
            shard.replay(record)
        for reply_to, response in decision.replies:
            reply_to(response)

    def into(name: str):
        return lambda response: answers.__setitem__(name, response)

    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"m" * 60)]

    def join(name: str, member_id: str) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=protocols,
        )
        run(shard.join(request, Caller(name, "/127.0.0.1", 3), NOW, into(name)))

    names = [f"c{i}" for i in range(size)]
    for name in names:
        join(name, "")
    while shard.groups["g"].state_name == "PreparingRebalance":
        run(shard.on_timer(("join", "g"), NOW))
    members = {name: answers[name].member_id for name in names}
    best = 1e9
    for _ in range(10):
        begin = time.process_time()
        for name in names:
            join(name, members[name])
        generation = shard.groups["g"].generation_id
        assignments = [SyncGroupRequestAssignment(member_id=m, assignment=b"a" * 40) for m in members.values()]
        leader = shard.groups["g"].leader_id
        for name in names:
            mine = assignments if members[name] == leader else []
            request = SyncGroupRequest(
                group_id="g", generation_id=generation, member_id=members[name], assignments=mine
            )
            run(shard.sync(request, NOW, into(name)))
        assert shard.groups["g"].state_name == "Stable"
        best = min(best, time.process_time() - begin)
    print(f"rebalance  {size:>9,} members   {best * 1000:6.2f} ms CPU   {best / size * 1e6:6.1f} us per member")


class Connection:
    """Pipelined requests on one socket."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.sock.makefile("rb", buffering=1 << 20)

    def frame(self, api_key: int, version: int, request: object) -> bytes:
        body = encode_request_header(RequestHeader(api_key, version, 1, "bench")) + encode(request, version)
        return struct.pack(">i", len(body)) + body

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._file.read(4))
        return self._file.read(size)

    def call(self, api_key: int, version: int, request: object) -> bytes:
        self.sock.sendall(self.frame(api_key, version, request))
        return self.receive()

    def time_requests(self, frame: bytes, count: int, window: int) -> float:
        """Seconds for `count` requests with `window` of them on the way."""
        begin = time.perf_counter()
        sent = 0
        burst = frame * window
        while sent < count:
            self.sock.sendall(burst)
            for _ in range(window):
                self.receive()
            sent += window
        return time.perf_counter() - begin


def commit_request(partitions: int) -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequestPartition(partition_index=i, committed_offset=42, committed_metadata="")
        for i in range(partitions)
    ]
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name="t", partitions=parts)],
    )


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_node(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "klamm", "up", "--data", folder, "--port", "0", "--log-level", "warning"]
        command.append("--no-console")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
            try:
                port = int(node.stdout.readline().rsplit(":", 1)[1])
                connection = Connection(port)
                topic = CreatableTopic(name="t", num_partitions=10, replication_factor=1)
                connection.call(19, 5, CreateTopicsRequest(topics=[topic]))
                connection.call(10, 3, FindCoordinatorRequest(key="g"))
                time.sleep(0.5)
                for partitions in (1, 10):
                    frame = connection.frame(8, 8, commit_request(partitions))
                    answer = connection.call(8, 8, commit_request(partitions))
                    response, _ = decode(OffsetCommitResponse, 8, answer, 5)
                    assert response.topics[0].partitions[0].error_code == 0, response
                    for window in (1, 50):
                        cpu = cpu_seconds(node.pid)
                        took = connection.time_requests(frame, count, window)
                        cpu = cpu_seconds(node.pid) - cpu
                        print(
                            f"commit     {partitions:>3} partitions, {window:>2} on the way   {count / took:>8,.0f}/s"
                            f"   {cpu / count * 1e6:6.1f} us broker CPU"
                        )
                beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
                cpu = cpu_seconds(node.pid)
                took = connection.time_requests(connection.frame(12, 4, beat), count, 50)
                cpu = cpu_seconds(node.pid) - cpu
                print(f"heartbeat  50 on the way   {count / took:>8,.0f}/s   {cpu / count * 1e6:6.1f} us broker CPU")
            finally:
                node.terminate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--offsets", type=int, default=1_000_000)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    measure_rebalance(options.members)
    measure_rebalance(options.members * 5)
    measure_loading(options.offsets)
    measure_node(options.requests)


if __name__ == "__main__":
    main()
