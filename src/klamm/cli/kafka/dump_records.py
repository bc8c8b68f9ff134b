"""Segments and snapshots for kafka-dump-log: batches, records, and what internal topics mean by theirs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.message_json import as_json, compact, format_upper_snake
from klamm.cli.kafka.options import Parsed
from klamm.cli.kafka.script import ToolFailed

if TYPE_CHECKING:
    from klamm.records import BatchView
    from klamm.records.batch import DecodedRecord

DECODERS: Final = (
    "offsets-decoder",
    "transaction-log-decoder",
    "cluster-metadata-decoder",
    "share-group-state-decoder",
    "key-decoder-class",
    "value-decoder-class",
)
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CONTROLS: Final = {
    2: "LeaderChange:",
    3: "SnapshotHeader",
    4: "SnapshotFooter",
    5: "KRaftVersion",
    6: "KRaftVoters",
}
DecodeFields = Callable[["DecodedRecord"], tuple[str | None, str | None]]
"""A record's key and value as they are printed; None is not printed."""


def dump_segment(path: str, parsed: Parsed) -> None:
    """Print a segment, or a snapshot of the metadata log."""
    name = os.path.basename(path)
    start = name.partition(".")[0]
    if path.endswith(".log"):
        if not start.isdecimal():
            raise ToolFailed(f'java.lang.NumberFormatException: For input string: "{start}"')
        print(f"Log starting offset: {int(start)}")
    elif name == "bootstrap.checkpoint":
        print("KRaft bootstrap snapshot")
    else:
        end, _, epoch = start.partition("-")
        print(f"Snapshot end offset: {int(end)}, epoch: {int(epoch or 0)}")
    payload = parsed.has("print-data-log") or any(parsed.has(decoder) for decoder in DECODERS)
    deep = payload or parsed.has("deep-iteration")
    decode = _decoder(parsed)
    # Other decoders print values as they are, here with SCRAM keys and private keys of listeners.
    if payload and decode is not _metadata_record and _has_credentials(path):
        raise ToolFailed(f"{path} has credentials, which --cluster-metadata-decoder hides: write it instead")
    limit = parsed.integer("max-bytes")
    for position, batch in _batches(path, limit):
        print(_batch_line(batch, position))
        if deep:
            for record in batch.decode():
                print(_record_line(batch, record, decode if payload else None, bare=parsed.has("skip-record-metadata")))


def _has_credentials(path: str) -> bool:
    """Whether a file is of the metadata log, or has the records that one begins with."""
    from klamm.raft.config import METADATA_FOLDER
    from klamm.server.boot.first_records import BOOTSTRAP_FILE

    folder, name = os.path.split(os.path.abspath(path))
    return os.path.basename(folder) == METADATA_FOLDER or name == BOOTSTRAP_FILE


def _batches(path: str, limit: int | None) -> Iterator[tuple[int, BatchView]]:
    """Every whole batch with its place in the file; memory is bounded by the largest batch."""
    from klamm.records import BatchView

    whole = os.path.getsize(path)
    size = whole if limit is None else min(whole, limit)
    with open(path, "rb") as file:
        position = 0
        while position + 12 <= size:
            file.seek(position)
            head = file.read(12)
            length = int.from_bytes(head[8:12], "big") + 12
            # 61 bytes is the header of a batch of magic 2: less is no batch.
            if length < 61 or position + length > size:
                break
            yield position, BatchView(head + file.read(length - 12))
            position += length
        # With --max-bytes the cut is intended.
        if position < size and limit is None:
            print(f"Found {size - position} invalid bytes at the end of {os.path.basename(path)}")


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _batch_line(batch: BatchView, position: int) -> str:
    kind = "LogAppendTime" if batch.is_log_append_time else "CreateTime"
    # With a delete horizon (KIP-534) the base timestamp of the batch holds it.
    horizon = f"OptionalLong[{batch.base_timestamp}]" if batch.has_delete_horizon else "OptionalLong.empty"
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.record_count}"
        f" baseSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} producerId: {batch.producer_id}"
        f" producerEpoch: {batch.producer_epoch} partitionLeaderEpoch: {batch.leader_epoch}"
        f" isTransactional: {_flag(batch.is_transactional)} isControl: {_flag(batch.is_control)}"
        f" deleteHorizonMs: {horizon} position: {position} {kind}: {batch.max_timestamp} size: {batch.size}"
        f" magic: {batch.magic} compresscodec: {_CODECS[batch.codec] if batch.codec < 5 else batch.codec}"
        f" crc: {batch.crc} isvalid: {_flag(batch.crc_matches())}"
    )


def _record_line(batch: BatchView, record: DecodedRecord, decode: DecodeFields | None, *, bare: bool) -> str:
    """One record; `bare` leaves out all but key and value, and all of a control record."""
    words = [] if bare else ["|", *_facts(batch, record)]
    if decode is not None and not batch.is_control:
        key, value = decode(record)
        fields = [*([] if key is None else [f"key: {key}"]), *([] if value is None else [f"payload: {value}"])]
        words += ["|", *fields] if bare and fields else fields
    return " ".join(words)


def _facts(batch: BatchView, record: DecodedRecord) -> list[str]:
    kind = "LogAppendTime" if batch.is_log_append_time else "CreateTime"
    # -1 is a batch of a producer without idempotence.
    sequence = -1 if batch.base_sequence < 0 else batch.base_sequence + record.offset - batch.base_offset
    names = ",".join(name for name, _ in record.headers)
    facts = [
        f"offset: {record.offset} {kind}: {record.timestamp}",
        f"keySize: {-1 if record.key is None else len(record.key)}",
        f"valueSize: {-1 if record.value is None else len(record.value)}",
        f"sequence: {sequence} headerKeys: [{names}]",
    ]
    return [*facts, _control(record)] if batch.is_control else facts


def _control(record: DecodedRecord) -> str:
    from klamm.protocol.codec import decode
    from klamm.protocol.schema import declaration
    from klamm.storage.internal_topics import CONTROL_VALUES

    key, value = record.key or b"", record.value or b""
    kind = int.from_bytes(key[2:4], "big")
    if kind in (0, 1):
        epoch = int.from_bytes(value[2:6], "big")
        return f"endTxnMarker: {('ABORT', 'COMMIT')[kind]} coordinatorEpoch: {epoch}"
    if kind not in _CONTROLS:
        return f"controlType: UNKNOWN({kind})"
    cls = CONTROL_VALUES[kind]
    version = min(int.from_bytes(value[:2], "big"), declaration(cls).versions[1])
    return f"{_CONTROLS[kind]} {compact(as_json(decode(cls, version, value)[0], version))}"


def _decoder(parsed: Parsed) -> DecodeFields:
    if parsed.has("offsets-decoder"):
        return _group_record
    if parsed.has("transaction-log-decoder"):
        return _transaction_record
    if parsed.has("cluster-metadata-decoder"):
        return _metadata_record
    if parsed.has("share-group-state-decoder"):
        return functools.partial(_coordinator_record, keys={}, values={})
    return _plain_record


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _group_record(record: DecodedRecord) -> tuple[str | None, str | None]:
    from klamm.protocol.messages.group_records import KEY_TYPES, VALUE_TYPES

    return _coordinator_record(record, KEY_TYPES, VALUE_TYPES)


def _transaction_record(record: DecodedRecord) -> tuple[str | None, str | None]:
    from klamm.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue

    return _coordinator_record(record, {0: TransactionLogKey}, {0: TransactionLogValue})


def _plain_record(record: DecodedRecord) -> tuple[str | None, str | None]:
    return _text(record.key), _text(record.value)


def _coordinator_record(
    record: DecodedRecord, keys: dict[int, type[Any]], values: dict[int, type[Any]]
) -> tuple[str | None, str | None]:
    """A key that begins with its type and a value that begins with its version."""
    from klamm.model.errors import RemoteProtocolError
    from klamm.protocol.codec import decode

    if record.key is None:
        raise ToolFailed(
            f"Failed to decode message at offset {record.offset} using the specified decoder"
            " (message had a missing key)"
        )
    kind = int.from_bytes(record.key[:2], "big")
    if kind not in keys:
        return f"Unknown record type {kind} at offset {record.offset}, skipping.", None
    try:
        key = {"type": str(kind), "data": as_json(decode(keys[kind], 0, record.key, 2)[0], 0)}
        if record.value is None:
            return compact(key), "<DELETE>"
        version = int.from_bytes(record.value[:2], "big")
        message = decode(values[kind], version, record.value, 2)[0]
    except (RemoteProtocolError, ValueError) as error:
        return f"Error at offset {record.offset}, skipping. {error}", None
    data = as_json(message, version)
    # Other protocols (connect) put bytes of their own format there.
    if getattr(message, "protocol_type", None) == "consumer":
        for shown, member in zip(data["members"], message.members, strict=True):
            _open_member(shown, member)
    return compact(key), compact({"version": str(version), "data": data})


def _open_member(shown: dict[str, Any], member: Any) -> None:
    """A classic consumer's subscription and assignment are messages of their own; what is none stays bytes."""
    from klamm.model.errors import ProtocolError
    from klamm.protocol.codec import decode
    from klamm.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription

    for name, kind in (("subscription", ConsumerProtocolSubscription), ("assignment", ConsumerProtocolAssignment)):
        data = getattr(member, name)
        try:
            version = int.from_bytes(data[:2], "big")
            shown[name] = as_json(decode(kind, version, data, 2)[0], version)
        except (ProtocolError, ValueError):
            continue


def _metadata_record(record: DecodedRecord) -> tuple[str | None, str | None]:
    from klamm.metadata.records import decode_versioned_record
    from klamm.metadata.secrets import hide_secrets
    from klamm.model.errors import RemoteProtocolError

    try:
        message, version = decode_versioned_record(record.value or b"")
    except RemoteProtocolError as error:
        return None, f"Error at {record.offset}, skipping. {error}"
    data = as_json(hide_secrets(message), version)
    return None, compact({"type": format_upper_snake(type(message).__name__), "version": version, "data": data})
