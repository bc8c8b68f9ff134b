"""Produce, the short way: one batch for one partition, from a connection that has sent its like before.

The bytes between the correlation id and the record batch (client id, acks, topic, partition ...) are the same in every
such request of a connection, so they are looked up instead of parsed; the reply is a template with two numbers filled
in. Whatever is unusual, and every refusal, takes the long way in `produce`, which gives the same answer to the byte.
With acks=all and others in sync the reply waits, as bytes, for the high watermark.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.net import Channel, Slot
from klamm.protocol.codec import encode
from klamm.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.records.kernels.produce import known_batch
from klamm.replication import Replica, ReplicaManager
from klamm.server.handlers.data.leader_hints import node_endpoints, partition_image
from klamm.server.requests.context import ListenerContext, RequestContext
from klamm.server.requests.replies import response_parts
from klamm.server.services import Services
from klamm.storage.batch_validation import UnpackElsewhere

PRODUCE = 0
VERSION_MIN = 7
"""Earlier requests may not carry zstd, which only the long way looks at; before 5 replies lack the log start offset."""

FLEXIBLE_SINCE = 9
QUICK_MAX = 256
"""Distinct prefixes remembered per connection; a client that has more partitions starts over."""
LENGTHS_MAX = 4
WAITING_TIMEOUT_MS_MIN = 2000
"""A client that waits for less gets a timer of its own, on the long way."""

_INT32 = struct.Struct(">i")
_RESULT = struct.Struct(">hqqq")
"""Error code, base offset, log append time, log start offset: adjacent in every version from 5 on."""
_NO_TAGS = b"\0\0\0"


@dataclass(frozen=True, slots=True)
class QuickProduce:
    """What a known prefix stands for, and the constant bytes of its reply."""

    replica: Replica
    version: int
    acks: int
    pack: Callable[..., bytes]
    """Makes the reply of: size, correlation id, `before`, error code, base offset, append time, log start, `after`."""
    size: int
    before: bytes
    after: bytes
    error_at: int
    timeout_ms: int
    services: Services
    topic: str
    topic_id: bytes


class WaitingReply:
    """A reply to acks=all, made when the high watermark has passed its records."""

    __slots__ = ("_base_offset", "_channel", "_correlation_id", "_entry", "_slot", "deadline_ms", "required_offset")

    def __init__(
        self, channel: Channel, entry: QuickProduce, correlation_id: int, base_offset: int, now_ms: int
    ) -> None:
        self._channel = channel
        self._slot: Slot = channel.defer()
        self._entry = entry
        self._correlation_id = correlation_id
        self._base_offset = base_offset
        self.required_offset = entry.replica.log.next_offset
        self.deadline_ms = now_ms + entry.timeout_ms

    def send(self) -> None:
        """The records are committed."""
        entry = self._entry
        begin = entry.replica.log.log_start_offset
        reply = entry.pack(entry.size, self._correlation_id, entry.before, 0, self._base_offset, -1, begin, entry.after)
        self._slot.send((reply,))

    def fail(self, error: ErrorCode) -> None:
        """They are not, or nobody knows; a producer that must look elsewhere is told where (KIP-951)."""
        entry, services = self._entry, self._entry.services
        listener: ListenerContext = self._channel.context  # type: ignore[assignment]
        context = RequestContext(
            self._channel, listener, PRODUCE, entry.version, self._correlation_id, None, memoryview(b"")
        )
        partition = PartitionProduceResponse(index=entry.replica.index, error_code=error, base_offset=-1)
        leaders = set()
        if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            image = partition_image(services, entry.topic, entry.topic_id, entry.replica.index)
            if image is not None:
                leaders.add(image.leader)
                partition.current_leader = LeaderIdAndEpoch(leader_id=image.leader, leader_epoch=image.leader_epoch)
        named = TopicProduceResponse(name=entry.topic, topic_id=entry.topic_id, partition_responses=[partition])
        endpoints = node_endpoints(services, context, leaders, NodeEndpoint)
        self._slot.send(response_parts(context, ProduceResponse(responses=[named], node_endpoints=endpoints)))


def handle(replicas: ReplicaManager, channel: Channel, view: memoryview, start: int, end: int) -> bool:
    """Append and answer if the request is of a known kind; False leaves it untouched for the long way."""
    state = channel.state
    if state.waiting_produces.requests:
        return False  # an earlier batch is still being unpacked
    found = known_batch(view, start, end, state.prefix_lengths, state.quick_produces)
    if found is None:
        return False
    entry: QuickProduce
    entry, correlation_id, position, stop, header = found
    replica = entry.replica
    if not replica.quick:
        return False
    if header[6] and stop - position > state.packed_bytes_inline and header[6] not in replica.log.unchecked_codecs:
        state.unpacks_elsewhere = True
        return False
    waits = entry.acks == -1 and not replica.commits_inline
    if waits and (not replica.quick_all or entry.timeout_ms < WAITING_TIMEOUT_MS_MIN):
        return False
    try:
        base_offset = replicas.stage(replica, view[position:stop], 0, header)
    except UnpackElsewhere:
        state.packed_bytes_inline = stop - position - 1
        state.unpacks_elsewhere = True
        return False
    except KlammError:
        return False
    if waits:
        ack = WaitingReply(channel, entry, correlation_id, base_offset, replicas.now_ms())
        if ack.required_offset <= replica.state.high_watermark:
            ack.send()  # a repeated batch, committed long ago
        else:
            replica.quick_acks.append(ack)
            replicas.acking[replica] = None
        return True
    if not entry.acks:
        replica.quick_replies.append((None, 0, channel))
        return True
    begin = replica.log.log_start_offset
    reply = bytearray(entry.pack(entry.size, correlation_id, entry.before, 0, base_offset, -1, begin, entry.after))
    replica.quick_replies.append((reply, entry.error_at, channel))
    channel.reply(reply)
    return True


def remember(
    services: Services, context: RequestContext, request: ProduceRequest, replica: Replica, records: Any
) -> None:
    """Let the next request like this one take the short way."""
    version, channel = context.version, context.channel
    if version < VERSION_MIN or request.transactional_id is not None:
        return
    prefix = _prefix(context.frame, version, len(records))
    if prefix is None:
        return
    state = channel.state
    if len(state.quick_produces) >= QUICK_MAX:
        state.quick_produces.clear()
        state.prefix_lengths.clear()
    length = len(prefix) - 2
    if length not in state.prefix_lengths:
        state.prefix_lengths.insert(0, length)
        del state.prefix_lengths[LENGTHS_MAX:]
    state.quick_produces[prefix] = _entry(services, version, request, replica)


def _prefix(frame: memoryview, version: int, size: int) -> bytes | None:
    """The version, and the bytes from the client id to the partition's number, when the batch is all that follows."""
    if version >= FLEXIBLE_SINCE:
        length = _uvarint(size + 1)
        end = len(frame) - 3 - size - len(length)
        if end < 8 or frame[end : end + len(length)] != length or frame[-3:] != _NO_TAGS:
            return None
    else:
        end = len(frame) - size - 4
        if end < 8 or _INT32.unpack_from(frame, end)[0] != size:
            return None
    return bytes(frame[2:4]) + bytes(frame[8:end])


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append((value & 127) | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _entry(services: Services, version: int, request: ProduceRequest, replica: Replica) -> QuickProduce:
    topic = request.topic_data[0]
    marks = (0, 0x1122334455667788, -1, 0x0102030405060708)
    partition = PartitionProduceResponse(
        index=replica.index, error_code=marks[0], base_offset=marks[1], log_append_time_ms=marks[2],
        log_start_offset=marks[3],
    )  # fmt: skip
    named = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])
    body = encode(ProduceResponse(responses=[named]), version)
    before, after = body.split(_RESULT.pack(*marks))
    if version >= FLEXIBLE_SINCE:
        before = b"\0" + before
    size = 4 + len(before) + _RESULT.size + len(after)
    pack = struct.Struct(f">ii{len(before)}shqqq{len(after)}s").pack
    return QuickProduce(
        replica, version, request.acks, pack, size, before, after, 8 + len(before), request.timeout_ms, services,
        topic.name, topic.topic_id,
    )  # fmt: skip
