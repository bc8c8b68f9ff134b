"""How far groups have read: committed offsets, and those that wait for the end of a transaction.

The records are the most frequent by far and there may be millions of them at a start, so their bytes are read and
written by hand for the versions in use; anything else takes the declared way. Both ways give the same bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from klamm.coordinator.core.shard import CoordinatorRecord, decode_key, decode_value, encode_value
from klamm.coordinator.groups import kernels
from klamm.model.errors import RemoteProtocolError
from klamm.model.ids import ZERO_UUID
from klamm.protocol.messages.group_records import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitValue,
)

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1

_SHORTS = Struct(">hh")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_VALUE_HEAD = Struct(">hqi")
_BARE = Struct(">hqiBqB")
_BARE_WITH_TOPIC_ID = Struct(">hqiBqBBB16s")
"""A whole v4 value without metadata, which nearly all are: one call reads it."""
_KEY_HEAD = b"\x00\x01"
_TOPIC_ID_TAG = b"\x01\x00\x10"
"""One tagged field, number 0, of 16 bytes."""


class CommittedOffset(NamedTuple):
    """The position of a group in a partition, and when it was committed."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    """Only from clients of before 2.1, which chose it themselves."""
    topic_id: bytes = ZERO_UUID
    record_offset: int = -1
    """Where the record stands: of a plain and a transactional commit the later one counts."""


def commit_timestamp(committed: CommittedOffset) -> int:
    """Return when an offset was committed, from which its retention is counted."""
    return committed.commit_timestamp


# Skips the argument handling of a NamedTuple: a start may decode millions of offsets.
_new = tuple.__new__
_partition = _INT32.unpack
Partitions = dict[int, CommittedOffset]
Topics = dict[str, Partitions]


class ShardOffsets:
    """The offsets of one shard. `replay` and `replay_marker` are all that changes them."""

    def __init__(self) -> None:
        self.committed: dict[str, Topics] = {}
        self.pending: dict[int, dict[str, Topics]] = {}
        """By producer id: what its open transaction would commit."""
        self.open_transactions: dict[str, set[int]] = {}
        """By group: the producers of `pending` that commit for it."""
        self._partitions_by_key: dict[bytes, tuple[str, Partitions]] = {}
        """Group and offsets by the key without its partition: most commits are for topics committed before."""

    # Queries

    def of_group(self, group_id: str) -> Topics:
        """Everything a group has committed."""
        return self.committed.get(group_id, {})

    def find(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The committed offset of one partition."""
        topics = self.committed.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        return partitions.get(partition) if partitions is not None else None

    def has_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction would move this offset."""
        producers = self.open_transactions.get(group_id)
        if not producers:
            return False
        return any(partition in self.pending[p].get(group_id, {}).get(topic, ()) for p in producers)

    def partitions(self, group_id: str) -> Iterator[tuple[str, int]]:
        """Every partition the group has an offset for, pending ones among them."""
        for topic, partitions in self.of_group(group_id).items():
            for partition in partitions:
                yield topic, partition
        for producer_id in self.open_transactions.get(group_id, ()):
            for topic, partitions in self.pending[producer_id].get(group_id, {}).items():
                for partition in partitions:
                    if self.find(group_id, topic, partition) is None:
                        yield topic, partition

    def of_topics(self, topics: dict[str, bytes]) -> Iterator[tuple[str, str, int]]:
        """(group, topic, partition) of offsets that belong to these topics (name to id), pending ones among them."""
        partitions: dict[tuple[str, str, int], None] = {}
        for store in (self.committed, *self.pending.values()):
            for group_id, by_topic in store.items():
                for topic in topics.keys() & by_topic.keys():
                    for partition, committed in by_topic[topic].items():
                        # A topic of this name that was created again has another id: its offsets stay.
                        if committed.topic_id in (ZERO_UUID, topics[topic]):
                            partitions[group_id, topic, partition] = None
        return iter(partitions)

    def find_expired(
        self, group_id: str, base: Callable[[CommittedOffset], int], now_ms: int, retention_ms: int
    ) -> Iterator[tuple[str, int]]:
        """The partitions whose offset has outlived its retention and that no open transaction touches."""
        for topic, partitions in self.of_group(group_id).items():
            for partition, committed in partitions.items():
                if committed.expire_timestamp >= 0:
                    over = now_ms >= committed.expire_timestamp
                else:
                    over = now_ms - base(committed) >= retention_ms
                if over and not self.has_pending(group_id, topic, partition):
                    yield topic, partition

    # Changes

    def replay(self, record: CoordinatorRecord, record_offset: int, producer_id: int) -> str:
        """Apply an offset record; return its group."""
        key, value = record
        if producer_id < 0 and value is not None:
            # A key ends with its partition, four bytes: all partitions of a topic share the rest.
            known = self._partitions_by_key.get(key[:-4])
            if known is not None:
                known[1][_partition(key[-4:])[0]] = decode_offset_value(value, key, record_offset)
                return known[0]
        group_id, topic, partition = decode_offset_key(key)
        if value is None:
            self._remove(group_id, topic, partition)
            return group_id
        committed = decode_offset_value(value, key, record_offset)
        if producer_id < 0:
            store = self.committed
        else:
            store = self.pending.setdefault(producer_id, {})
            self.open_transactions.setdefault(group_id, set()).add(producer_id)
        topics = store.get(group_id)
        if topics is None:
            topics = store[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        partitions[partition] = committed
        # Only plain commits with current keys are cached: pending offsets live in another store.
        if producer_id < 0 and key[1] == OFFSET_COMMIT:
            self._partitions_by_key[key[:-4]] = (group_id, partitions)
        return group_id

    def replay_run(self, records: Sequence[CoordinatorRecord], first_offset: int) -> int:
        """Apply leading records that are plain commits to known topics; return how many."""
        return kernels.replay_offsets(self._partitions_by_key, records, first_offset, CommittedOffset)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Commit or drop the pending offsets of a producer whose transaction has ended."""
        groups = self.pending.pop(producer_id, None)
        if groups is None:
            return
        for group_id, topics in groups.items():
            producers = self.open_transactions.get(group_id)
            if producers is not None:
                producers.discard(producer_id)
                if not producers:
                    del self.open_transactions[group_id]
            if committed:
                for topic, partitions in topics.items():
                    for partition, offset in partitions.items():
                        known = self.find(group_id, topic, partition)
                        # A plain commit appended after the transactional one wins, although its marker is later.
                        if known is None or offset.record_offset > known.record_offset:
                            by_topic = self.committed.setdefault(group_id, {})
                            by_topic.setdefault(topic, {})[partition] = offset

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        _remove_from(self.committed, group_id, topic, partition)
        if topic not in self.committed.get(group_id, ()):
            self._partitions_by_key.pop(encode_offset_key(group_id, topic, partition)[:-4], None)
        for producer_id in self.open_transactions.get(group_id, ()):
            # The group stays in the producer's entry, so that its marker still finds it.
            partitions = self.pending[producer_id].get(group_id, {}).get(topic)
            if partitions is not None:
                partitions.pop(partition, None)

    def check(self) -> None:
        """Raise AssertionError when the parts disagree."""
        by_group: dict[str, set[int]] = {}
        for producer_id, groups in self.pending.items():
            for group_id in groups:
                by_group.setdefault(group_id, set()).add(producer_id)
        assert by_group == self.open_transactions, "open transactions are not those with pending offsets"
        for group_id, partitions in self._partitions_by_key.values():
            assert any(partitions is known for known in self.committed[group_id].values()), "a cached topic is stale"
        for topics in self.committed.values():
            assert topics, "a group without offsets is kept"
            for partitions in topics.values():
                assert partitions, "a topic without offsets is kept"


def _remove_from(store: dict[str, Topics], group_id: str, topic: str, partition: int) -> None:
    topics = store.get(group_id)
    partitions = topics.get(topic) if topics is not None else None
    if topics is None or partitions is None or partitions.pop(partition, None) is None:
        return
    if not partitions:
        del topics[topic]
        if not topics:
            del store[group_id]


# Records


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> CoordinatorRecord:
    """The record of a commit, in the version Kafka 4.3 writes: 4, or 1 when the client chose when it expires."""
    return CoordinatorRecord(encode_offset_key(group_id, topic, partition), encode_offset_value(committed))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that removes an offset."""
    return CoordinatorRecord(encode_offset_key(group_id, topic, partition), None)


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of an offset."""
    group, name = group_id.encode(), topic.encode()
    return b"".join((_KEY_HEAD, _INT16.pack(len(group)), group, _INT16.pack(len(name)), name, _INT32.pack(partition)))


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """The value of an offset."""
    offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id, _ = committed
    if expire_timestamp >= 0:
        value = OffsetCommitValue(
            offset=offset, metadata=metadata, commit_timestamp=commit_timestamp, expire_timestamp=expire_timestamp
        )
        return encode_value(value, 1)
    metadata_bytes = metadata.encode()
    size = len(metadata_bytes) + 1
    # A length of two varint bytes: rare, so it is left to the declared message.
    if size > 127:
        value = OffsetCommitValue(
            offset=offset,
            leader_epoch=leader_epoch,
            metadata=metadata,
            commit_timestamp=commit_timestamp,
            topic_id=topic_id,
        )
        return encode_value(value, 4)
    head = _VALUE_HEAD.pack(4, offset, leader_epoch)
    tail = _INT64.pack(commit_timestamp)
    if topic_id == ZERO_UUID:
        return b"%b%c%b%b\0" % (head, size, metadata_bytes, tail)
    return b"%b%c%b%b%b%b" % (head, size, metadata_bytes, tail, _TOPIC_ID_TAG, topic_id)


def decode_offset_key(key: bytes) -> tuple[str, str, int]:
    """(group, topic, partition) of a key."""
    try:
        kind, size = _SHORTS.unpack_from(key)
        end = 4 + size
        if kind == OFFSET_COMMIT and size >= 0:
            (topic_size,) = _INT16.unpack_from(key, end)
            topic_end = end + 2 + topic_size
            (partition,) = _INT32.unpack_from(key, topic_end)
            return key[4:end].decode(), key[end + 2 : topic_end].decode(), partition
    except (struct_error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"an offset key of {len(key)} bytes cannot be read: {error}") from error
    if kind == LEGACY_OFFSET_COMMIT:
        old = decode_key(LegacyOffsetCommitKey, key)
        return old.group, old.topic, old.partition
    raise RemoteProtocolError(f"record type {kind} is no offset")


def decode_offset_value(value: bytes, key: bytes, record_offset: int) -> CommittedOffset:
    """Decode the value of an offset; the type in `key` distinguishes legacy records from current ones."""
    size = len(value)
    if key[1] == OFFSET_COMMIT:
        # 42 and 24 bytes: the two fixed layouts, with and without a topic id.
        if size == 42:
            version, offset, leader_epoch, metadata_size, timestamp, tags, tag, bytes_, topic_id = (
                _BARE_WITH_TOPIC_ID.unpack(value)
            )
            if version == 4 and metadata_size == 1 and tags == 1 and tag == 0 and bytes_ == 16:
                return _new(CommittedOffset, (offset, leader_epoch, "", timestamp, -1, topic_id, record_offset))
        elif size == 24:
            version, offset, leader_epoch, metadata_size, timestamp, tags = _BARE.unpack(value)
            if version == 4 and metadata_size == 1 and tags == 0:
                return _new(CommittedOffset, (offset, leader_epoch, "", timestamp, -1, ZERO_UUID, record_offset))
    try:
        version, offset, leader_epoch = _VALUE_HEAD.unpack_from(value)
        if key[1] == OFFSET_COMMIT:
            if version == 4 and (size := value[14]) < 128 and value[size + 22] <= 1:
                # A one-byte length, and no tagged field or the topic id alone.
                end = 14 + size
                (timestamp,) = _INT64.unpack_from(value, end)
                if len(value) == end + 9:
                    return CommittedOffset(
                        offset, leader_epoch, value[15:end].decode(), timestamp, -1, ZERO_UUID, record_offset
                    )
                if len(value) == end + 27 and value[end + 8 : end + 11] == _TOPIC_ID_TAG:
                    topic_id = value[end + 11 :]
                    return CommittedOffset(
                        offset, leader_epoch, value[15:end].decode(), timestamp, -1, topic_id, record_offset
                    )
            # The version before topic ids; old logs still have it.
            elif version == 3:
                (size,) = _INT16.unpack_from(value, 14)
                end = 16 + size
                (timestamp,) = _INT64.unpack_from(value, end)
                return CommittedOffset(
                    offset, leader_epoch, value[16:end].decode(), timestamp, -1, ZERO_UUID, record_offset
                )
    except (struct_error, IndexError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"an offset value of {len(value)} bytes cannot be read: {error}") from error
    return _decode_declared(value, key, record_offset)


def _decode_declared(value: bytes, key: bytes, record_offset: int) -> CommittedOffset:
    if key[1] == LEGACY_OFFSET_COMMIT and value[:2] == b"\0\0":
        old = decode_value(LegacyOffsetCommitValue, value)
        return CommittedOffset(old.offset, -1, old.metadata, old.commit_timestamp, -1, ZERO_UUID, record_offset)
    stored = decode_value(OffsetCommitValue, value)
    return CommittedOffset(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        stored.expire_timestamp,
        stored.topic_id,
        record_offset,
    )
