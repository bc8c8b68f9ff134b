"""Frames for the loader of coordinators, and the groups and producers that must exist before the clock runs."""

import select
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.loaders import LoadFailed
from klamm.client.blocking_cluster import BlockingConnection
from klamm.client.core.routing import GROUP_COORDINATOR, TRANSACTION_COORDINATOR
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import RequestHeader, decode_response_header, encode_request_header
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.heartbeat import HeartbeatRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from klamm.records.batch import build_batch

CLIENT = "bench"
SESSION_MS = 60_000
JOIN, SYNC, COMMIT, HEARTBEAT, PRODUCE, END = 5, 3, 7, 3, 12, 5
"""Versions: without flexible encoding where possible, so that the places of numbers in an answer are fixed."""
HEARTBEAT_ERROR_AT = 8
SETTLE_S = 60.0
RETRIABLE = (14, 15, 16, 51)
PRODUCE_ANSWER_STEP = 33
"""Bytes of one partition in an answer to Produce v12 that holds no error."""


def frame(request: Any, version: int) -> bytes:
    """A request as it goes over the wire."""
    api = BY_NAME[type(request).__name__.removesuffix("Request")]
    body = encode_request_header(RequestHeader(api.key, version, 1, CLIENT)) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def blob(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def lanes(frames: Iterable[list[bytes]]) -> bytes:
    """The plan of `coordload pump`: the frames of each connection."""
    return b"".join(numbers(len(own)) + b"".join(map(blob, own)) for own in frames)


def ask(port: int, request: Any, version: int | None = None) -> Any:
    connection = BlockingConnection("127.0.0.1", port, timeout_s=30.0)
    try:
        return connection.ask(request, version)
    finally:
        connection.close()


def ask_until_ready(connection: BlockingConnection, request: Any, version: int) -> Any:
    """Ask until the coordinator is there; asking for it makes its topic where there is none yet."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        answer = connection.ask(request, version)
        code = answer.error_code
        if code not in RETRIABLE:
            return answer
        kind = TRANSACTION_COORDINATOR if isinstance(request, InitProducerIdRequest) else GROUP_COORDINATOR
        connection.ask(FindCoordinatorRequest(key="any", key_type=kind), 3)
        if time.monotonic() > deadline:
            raise LoadFailed(f"{type(request).__name__}: still error {code} after {SETTLE_S:.0f} s")
        time.sleep(0.05)


# ---- commits


def commit(group: str, topic: str, partitions: Iterable[int], offset: int = 1) -> bytes:
    rows = [
        OffsetCommitRequestPartition(partition_index=p, committed_offset=offset, committed_metadata="")
        for p in partitions
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=rows)]
    return frame(OffsetCommitRequest(group_id=group, member_id="", topics=topics), COMMIT)


def commit_error_at(topic: str) -> int:
    """Where an answer to OffsetCommit v7 holds the first error."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + 4


# ---- members


@dataclass
class Group:
    """A formed classic group: who is in it and who leads."""

    name: str
    member_ids: list[str]
    leader: str
    generation: int


def join(group: str, member_id: str, taste: int) -> JoinGroupRequest:
    """JoinGroup with a subscription like the Java client's; `taste` makes it different from the last one."""
    subscription = struct.pack(">hih", 1, 1, 5) + b"topic" + struct.pack(">ibi", 1, taste, 0)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription)]
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=protocols,
    )


def form_group(port: int, name: str, size: int) -> Group:
    """Get a member id for each, then join again and again until one generation holds all of them."""
    first = BlockingConnection("127.0.0.1", port, timeout_s=30.0)
    ids = [ask_until_ready(first, join(name, "", 0), JOIN).member_id for _ in range(size)]
    first.close()
    links = [_Link(port) for _ in ids]
    try:
        leader, generation = _join_until_one(name, ids, links)
    finally:
        for link in links:
            link.close()
    return Group(name, ids, leader, generation)


def _join_until_one(name: str, ids: list[str], links: "list[_Link]") -> tuple[str, int]:
    generations: list[int | None] = [None] * len(ids)
    waiting = set(range(len(ids)))
    for i, link in enumerate(links):
        link.send(frame(join(name, ids[i], 0), JOIN))
    deadline, taste, leader = time.monotonic() + SETTLE_S, 0, ""
    while time.monotonic() < deadline:
        ready, _, _ = select.select([links[i].socket for i in waiting], [], [], 0.2) if waiting else ([], [], [])
        for i in [i for i in waiting if links[i].socket in ready]:
            for answer in links[i].answers():
                if answer.error_code:
                    raise LoadFailed(f"JoinGroup: error {answer.error_code}")
                generations[i], leader = answer.generation_id, answer.leader
                waiting.discard(i)
        if ready:
            continue
        generation = generations[0]
        if not waiting and generation is not None and set(generations) == {generation}:
            return leader, generation
        taste += 1  # members that were answered before the others had joined join again
        for i in set(range(len(ids))) - waiting:
            links[i].send(frame(join(name, ids[i], taste % 2), JOIN))
            waiting.add(i)
    raise LoadFailed(f"a group of {len(ids)} did not form in {SETTLE_S:.0f} s")


class _Link:
    """A connection that does not wait for its answer."""

    def __init__(self, port: int) -> None:
        self.socket = BlockingConnection("127.0.0.1", port, timeout_s=30.0)._socket
        self._data = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answers(self) -> list[JoinGroupResponse]:
        self._data += self.socket.recv(1 << 20)
        answers = []
        while len(self._data) >= 4 and len(self._data) >= 4 + struct.unpack_from(">i", self._data)[0]:
            end = 4 + struct.unpack_from(">i", self._data)[0]
            _, start = decode_response_header(self._data, 11, JOIN, 4)
            answers.append(decode(JoinGroupResponse, JOIN, self._data[:end], start)[0])
            self._data = self._data[end:]
        return answers

    def close(self) -> None:
        self.socket.close()


def rebalance_plan(group: Group) -> bytes:
    """The plan of `coordload rebalance`: the leader assigns one partition to every member."""
    plan = numbers(len(group.member_ids))
    shares = [
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=struct.pack(">hih", 1, 1, 5) + b"topic" + struct.pack(">iii", 1, number, 0),
        )
        for number, member_id in enumerate(group.member_ids)
    ]
    for member_id in group.member_ids:
        # The last group formed with taste 0 or 1; 2 and 3 are new to it.
        plan += blob(frame(join(group.name, member_id, 2), JOIN)) + blob(frame(join(group.name, member_id, 3), JOIN))
        given = shares if member_id == group.leader else []
        sync = frame(
            SyncGroupRequest(group_id=group.name, generation_id=0, member_id=member_id, assignments=given), SYNC
        )
        plan += blob(sync) + numbers(4 + 8 + 2 + len(CLIENT) + 2 + len(group.name))
    return plan


def leave(port: int, group: Group) -> None:
    members = [MemberIdentity(member_id=member_id) for member_id in group.member_ids]
    ask(port, LeaveGroupRequest(group_id=group.name, members=members), 3)


def form_group_of_one(connection: BlockingConnection, name: str) -> Group:
    """A group of one, formed and stable."""
    member_id = ask_until_ready(connection, join(name, "", 0), JOIN).member_id
    generation = ask_until_ready(connection, join(name, member_id, 0), JOIN).generation_id
    share = SyncGroupRequestAssignment(member_id=member_id, assignment=b"")
    sync = SyncGroupRequest(group_id=name, generation_id=generation, member_id=member_id, assignments=[share])
    answer = ask_until_ready(connection, sync, SYNC)
    if answer.error_code:
        raise LoadFailed(f"SyncGroup: error {answer.error_code}")
    return Group(name, [member_id], member_id, generation)


def heartbeat(group: Group) -> bytes:
    request = HeartbeatRequest(group_id=group.name, generation_id=group.generation, member_id=group.leader)
    return frame(request, HEARTBEAT)


# ---- transactions


def transactions_plan(port: int, topic: str, producers: int, partitions: int) -> bytes:
    """The plan of `coordload transactions`: every transaction writes one record to each of the partitions."""
    connection = BlockingConnection("127.0.0.1", port, timeout_s=30.0)
    plan = numbers(producers)
    for number in range(producers):
        name = f"{topic}-{number}"
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        given = ask_until_ready(connection, request, 4)
        if given.error_code:
            raise LoadFailed(f"InitProducerId: error {given.error_code}")
        batch = build_batch(
            [(int(time.time() * 1000), None, b"v" * 100, ())],
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        data = [PartitionProduceData(index=p, records=bytes(batch)) for p in range(partitions)]
        request = ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=topic, partition_data=data)],
        )
        produce = frame(request, PRODUCE)
        plan += blob(produce) + numbers(partitions, *places(produce, bytes(batch), partitions))
        # After correlation id, tags, two counts and the name of the topic.
        plan += numbers(4 + 1 + 1 + 1 + len(topic) + 1 + 4, PRODUCE_ANSWER_STEP)
        end = EndTxnRequest(
            transactional_id=name,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            committed=True,
        )
        ending = frame(end, END)
        plan += blob(ending) + numbers(len(ending) - 4, given.producer_epoch)  # epoch, committed, tags at the end
    connection.close()
    return plan


def places(data: bytes, part: bytes, count: int) -> list[int]:
    """Where the part begins, `count` times."""
    positions, at = [], -1
    for _ in range(count):
        at = data.index(part, at + 1)
        positions.append(at)
    return positions
