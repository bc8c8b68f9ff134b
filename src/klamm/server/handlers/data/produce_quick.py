"""Produce, the quick path: one batch for one partition, from a connection that has sent a request of this form before.

The bytes between the correlation id and the record batch (client id, acks, topic, partition ...) are the same in every
such request of a connection, so they are looked up instead of parsed; the reply is a template with two numbers filled
in. Only decoding and encoding are shorter: `ReplicaManager.append` decides as for `produce`, which handles every
refusal and every other form from the start.
"""

import struct
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.net import Channel
from klamm.protocol.codec import encode
from klamm.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from klamm.records.kernels.produce import known_batch
from klamm.replication import Replica, ReplicaManager
from klamm.server.handlers.data.produce_replies import ACKS_ALL, build_response
from klamm.server.requests.context import ListenerContext, RequestContext
from klamm.server.requests.replies import response_parts
from klamm.server.services import Services
from klamm.storage.batch_validation import DecompressInThread

PRODUCE = 0
VERSION_MIN = 7
"""Earlier requests may not carry zstd, which only `produce` checks; before v5 replies lack the log start offset."""

FLEXIBLE_SINCE = 9
QUICK_MAX = 256
"""Distinct prefixes kept per connection; one more clears them, so that clients cannot make the map grow."""
LENGTHS_MAX = 4
PREFIX_BYTES_MAX = 1024
"""A longer one is not kept: it contains the client id, which may have 32 KB."""
WAITING_TIMEOUT_MS_MIN = 2000
"""A request with a shorter timeout needs a timer of its own, which `produce` starts."""

_INT32 = struct.Struct(">i")
_RESULT = struct.Struct(">hqqq")
"""Error code, base offset, log append time, log start offset: adjacent in every version from 5 on."""
_FAILED = struct.Struct(">hq")
"""Error code, base offset."""
_NO_TAGS = b"\0\0\0"


class KnownPrefix:
    """The meaning of a known prefix of a connection, the constant bytes of its replies, and the replies of this turn.

    It is the pending reply of all appends with this prefix in one turn: their replies are encoded before the write and
    are in the connection's queue, which is sent after it. So success has nothing left to do, and a failed write
    overwrites bytes that have not been sent yet.
    """

    __slots__ = (
        "_channel",
        "_error_at",
        "acks",
        "acks_all",
        "after",
        "before",
        "pack",
        "replica",
        "replies",
        "required_offset",
        "services",
        "size",
        "timeout_ms",
        "times",
        "topic",
        "version",
    )

    def __init__(self, services: Services, context: RequestContext, request: ProduceRequest, replica: Replica) -> None:
        self.services = services
        self._channel = context.channel
        self.version = context.version
        self.replica = replica
        topic = request.topic_data[0]
        # Only its name and id: the request's own topic holds bytes that are borrowed until the turn ends.
        self.topic = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        self.acks = request.acks
        self.acks_all = request.acks == ACKS_ALL
        self.timeout_ms = request.timeout_ms
        self.times = context.times
        self.before, self.after = _template(self.version, self.topic, replica.index)
        self.size = 4 + len(self.before) + _RESULT.size + len(self.after)
        # The prefix of the frame is packed here and not by `protocol/framing`: one call writes prefix, header and body
        # of a reply; a second one, with the join it needs, costs more than the packing.
        self.pack = struct.Struct(f">ii{len(self.before)}shqqq{len(self.after)}s").pack
        """Encodes size, correlation id, `before`, error code, base offset, append time, log start offset, `after`."""
        self._error_at = 8 + len(self.before)
        self.required_offset = 0
        self.replies: list[bytearray | None] = []
        """Replies whose records are staged and not written; None for a request with acks=0."""

    def succeed(self) -> None:
        """Leave the replies as they are."""
        self.replies.clear()

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Write the error over the replies; with acks=0 close the connection."""
        replies, self.replies = self.replies, []
        if not self.acks:
            self._channel.close(f"a Produce with acks=0 failed: {error.name}, {message}")
            return
        for reply in replies:
            assert reply is not None
            _FAILED.pack_into(reply, self._error_at, error, -1)


class DelayedProduceReply:
    """A reply to acks=all, encoded when the high watermark has passed its records."""

    __slots__ = ("_base_offset", "_channel", "_correlation_id", "_entry", "_slot", "deadline_ms", "required_offset")

    def __init__(
        self, channel: Channel, entry: KnownPrefix, correlation_id: int, base_offset: int, now_ms: int
    ) -> None:
        self._channel = channel
        self._slot = channel.defer()
        self._entry = entry
        self._correlation_id = correlation_id
        self._base_offset = base_offset
        self.required_offset = entry.replica.log.next_offset
        self.deadline_ms = now_ms + entry.timeout_ms

    def succeed(self) -> None:
        """Answer with the offset of the records."""
        entry = self._entry
        begin = entry.replica.log.log_start_offset
        reply = entry.pack(entry.size, self._correlation_id, entry.before, 0, self._base_offset, -1, begin, entry.after)
        self._slot.send((reply,))

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Answer as `produce` does."""
        entry = self._entry
        listener: ListenerContext = self._channel.context  # type: ignore[assignment]
        context = RequestContext(
            self._channel, listener, PRODUCE, entry.version, self._correlation_id, None, memoryview(b"")
        )
        context.times = entry.times
        partition = PartitionProduceResponse(
            index=entry.replica.index, error_code=error, error_message=message, base_offset=-1
        )
        response = build_response(entry.services, context, [(entry.topic, [partition])])
        self._slot.send(response_parts(context, response))


def handle(replicas: ReplicaManager, channel: Channel, view: memoryview, start: int, end: int) -> bool:
    """Append and answer if the prefix is known; False leaves the request to `produce`."""
    state = channel.state
    if state.waiting_produces.requests:
        return False  # an earlier batch is still being validated, and this one must not overtake it
    known = known_batch(view, start, end, state.prefix_lengths, state.known_prefixes)
    if known is None:
        return False
    entry: KnownPrefix
    entry, correlation_id, position, stop, header = known
    replica = entry.replica
    if not replica.can_encode_reply_before_write:
        return False
    # header[6] is the codec (`PlainHeader`). A literal: a named constant would be a global look-up for every request.
    if header[6] and stop - position > state.inline_bytes_max and header[6] not in replica.log.unchecked_codecs:
        state.validate_in_thread = True
        return False
    acks_all = entry.acks_all
    # Still true when the turn is written: `ReplicaManager.write_before_isr_grows` writes before a follower is counted.
    waits = acks_all and not replica.commits_alone
    if waits and entry.timeout_ms < WAITING_TIMEOUT_MS_MIN:
        return False
    try:
        base_offset = replicas.append(replica, view[position:stop], acks_all, header)
    except DecompressInThread:
        state.inline_bytes_max = stop - position - 1
        state.validate_in_thread = True
        return False
    except KlammError:
        return False  # nothing was staged: `produce` is refused in the same way, and encodes the error
    replica.quick_produces += 1
    if waits:
        channel.times = entry.times
        # Encoded later: the reply has the log start offset at the time it is sent.
        replicas.await_high_watermark(
            replica, DelayedProduceReply(channel, entry, correlation_id, base_offset, replicas.now_ms())
        )
        return True
    # The parts of the log, not its properties: each of those is a call, and this runs for every request.
    log = replica.log
    entry.required_offset = log.appender.next_offset
    replies = entry.replies
    # Once per turn and prefix, however many requests: they are written, and fail, together.
    if not replies:
        replica.acknowledgements.until_written.append(entry)
    if not entry.acks:
        replies.append(None)
        return True
    # Inline, not a method: this runs for every request, and a call costs more than the packing.
    reply = bytearray(
        entry.pack(
            entry.size, correlation_id, entry.before, 0, base_offset, -1, log.state.log_start_offset, entry.after
        )
    )
    replies.append(reply)
    channel.reply(reply)
    return True


def add_prefix(
    services: Services, context: RequestContext, request: ProduceRequest, replica: Replica, records: Any
) -> None:
    """Let later requests with this prefix take the quick path."""
    version, channel = context.version, context.channel
    # A transactional batch may need a response of the coordinator first.
    if version < VERSION_MIN or request.transactional_id is not None:
        return
    prefix = _prefix(context.frame, version, len(records))
    if prefix is None or len(prefix) > PREFIX_BYTES_MAX:
        return
    state = channel.state
    if len(state.known_prefixes) >= QUICK_MAX:
        state.known_prefixes.clear()
        state.prefix_lengths.clear()
    # Without the two bytes of the version, which are not adjacent to the rest in the frame.
    length = len(prefix) - 2
    if length not in state.prefix_lengths:
        # The newest first: a connection usually repeats its last form.
        state.prefix_lengths.insert(0, length)
        del state.prefix_lengths[LENGTHS_MAX:]
    state.known_prefixes[prefix] = KnownPrefix(services, context, request, replica)


def _prefix(frame: memoryview, version: int, size: int) -> bytes | None:
    """Return the version and the bytes from the client id to the partition index, if only the batch follows."""
    if version >= FLEXIBLE_SINCE:
        length = _uvarint(size + 1)
        end = len(frame) - 3 - size - len(length)
        # Empty tagged fields of partition, topic and request follow the batch; any other tail is left to `produce`.
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


def _template(version: int, topic: Any, index: int) -> tuple[bytes, bytes]:
    """Return the bytes of a reply between correlation id and error code, and those after the log start offset."""
    # Improbable values, by which the fields are found in an encoded reply.
    marks = (0, 0x1122334455667788, -1, 0x0102030405060708)
    partition = PartitionProduceResponse(
        index=index, error_code=marks[0], base_offset=marks[1], log_append_time_ms=marks[2], log_start_offset=marks[3]
    )
    named = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[partition])
    before, after = encode(ProduceResponse(responses=[named]), version).split(_RESULT.pack(*marks))
    return (b"\0" + before if version >= FLEXIBLE_SINCE else before), after
