"""Control batches: the records that brokers write for brokers and consumers inside a log.

A control batch holds control records only and is marked in its attributes. Key: version i16 · type i16. The values of
raft's own types are messages of `protocol/messages/control_records.py` and opaque bytes here; the end-transaction
marker (version i16 · coordinator epoch i32) is whole here, because storage reads and writes it.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from klamm.model.errors import CorruptBatch
from klamm.records.batch import BatchView, build_batch

KEY = struct.Struct(">hh")
END_TXN_MARKER = struct.Struct(">hi")
CURRENT_VERSION = 0


class ControlType(IntEnum):
    """Kinds of control records; the numbers are Kafka's."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """One control record; `type` is the bare number, since a later Kafka may write types unknown here."""

    offset: int
    timestamp: int
    version: int
    type: int
    value: bytes


class EndTxnMarker(NamedTuple):
    """The end of a producer's transaction in one partition."""

    committed: bool
    coordinator_epoch: int


def control_key(control_type: int, version: int = CURRENT_VERSION) -> bytes:
    """The key of a control record."""
    return KEY.pack(version, control_type)


def parse_control_key(key: bytes | None) -> tuple[int, int]:
    """(version, type) of a control record's key; later versions may append fields, so longer keys are legal."""
    if key is None or len(key) < KEY.size:
        raise CorruptBatch("a control record needs a key of at least four bytes")
    version, control_type = KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"a control record of version {version}")
    return version, control_type


def build_control_batch(
    control_type: int,
    value: bytes,
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    version: int = CURRENT_VERSION,
) -> bytearray:
    """A control batch with one record, the usual kind."""
    return build_control_batches(
        [(control_type, value)],
        timestamp=timestamp,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        version=version,
    )


def build_control_batches(
    records: Sequence[tuple[int, bytes]],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    version: int = CURRENT_VERSION,
) -> bytearray:
    """One control batch with several (type, value) records, as a snapshot's header, version and voters."""
    rows = [(timestamp, control_key(control_type, version), value, ()) for control_type, value in records]
    return build_batch(rows, base_offset=base_offset, leader_epoch=leader_epoch, control=True)


def build_end_txn_marker(
    *,
    committed: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The batch that ends a producer's transaction in a partition."""
    control_type = ControlType.COMMIT if committed else ControlType.ABORT
    value = END_TXN_MARKER.pack(CURRENT_VERSION, coordinator_epoch)
    return build_batch(
        [(timestamp, control_key(control_type), value, ())],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def control_records(batch: BatchView) -> list[ControlRecord]:
    """The records of a control batch; empty when compaction has removed them."""
    if not batch.is_control:
        raise CorruptBatch(f"the batch at offset {batch.base_offset} is not a control batch")
    records = []
    for offset, timestamp, key, value, _ in batch.decode_rows():
        version, control_type = parse_control_key(key)
        records.append(ControlRecord(offset, timestamp, version, control_type, value or b""))
    return records


def parse_end_txn_marker(record: ControlRecord) -> EndTxnMarker:
    """Parse a COMMIT or ABORT record; fields that a later version appends are ignored."""
    if record.type not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptBatch(f"control type {record.type} does not end a transaction")
    if len(record.value) < END_TXN_MARKER.size:
        raise CorruptBatch(f"an end-transaction marker of {len(record.value)} bytes")
    version, coordinator_epoch = END_TXN_MARKER.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"an end-transaction marker of version {version}")
    return EndTxnMarker(record.type == ControlType.COMMIT, coordinator_epoch)


def end_txn_marker(batch: BatchView) -> EndTxnMarker | None:
    """The transaction end that a batch marks, or None for any other batch."""
    if not batch.is_control or not batch.is_transactional:
        return None
    records = control_records(batch)
    # A transactional control batch holds one marker; compaction may have left its header alone.
    return parse_end_txn_marker(records[0]) if records else None
