"""Dumping any file of a data folder row by row; memory does not grow with the file.

.log · .checkpoint of the quorum        batches, and with `records` the records inside
.index · .timeindex · .txnindex         entries
.snapshot                               producers
*-checkpoint                            offsets, leader epochs
meta.properties · partition.metadata    settings
quorum-state · .kafka_cleanshutdown     JSON
"""

import json
import os
import re
from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

from klamm.model.errors import ConfigError, CorruptBatch, KlammError, RemoteProtocolError
from klamm.model.properties import parse_properties
from klamm.records.batch import BatchView
from klamm.records.compression import Codec
from klamm.storage import offset_index, time_index, txn_index
from klamm.storage.batch_file import BatchFile
from klamm.storage.checkpoints import CLEAN_SHUTDOWN, LEADER_EPOCH, PARTITION_METADATA, read_lines
from klamm.storage.disk import Disk
from klamm.storage.internal_topics import FieldsDecoder, decode_control, decoder_of, format_bytes
from klamm.storage.log_segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from klamm.storage.meta_properties import META_PROPERTIES
from klamm.storage.producer_snapshots import SUFFIX as SNAPSHOT_SUFFIX
from klamm.storage.producer_snapshots import decode as decode_snapshot

_CHUNK_ENTRIES = 4096
_ENDINGS = re.compile(r"\.deleted$|\.swap$|\.cleaned$|(\.\d+)?\.damaged$")
"""Endings that are added to a file's name while it is replaced, deleted or set aside."""


class DumpRow(NamedTuple):
    """One entry of a file. `damage` is the last row of a file that cannot be read further."""

    kind: str
    fields: dict[str, Any]


def dump_file(path: str, *, records: bool = False, metadata: FieldsDecoder | None = None) -> Iterator[DumpRow]:
    """Yield the rows of a file; ConfigError for an unknown kind. `metadata` decodes records of the quorum's log."""
    if os.path.isdir(path) or not os.path.exists(path):
        raise ConfigError(f"{path} is {'a folder; name a file in it' if os.path.isdir(path) else 'not there'}")
    name = _ENDINGS.sub("", os.path.basename(path))
    stem, suffix = os.path.splitext(name)
    base = int(stem) if stem.isdigit() else 0
    if suffix in (LOG_SUFFIX, ".checkpoint"):
        return _batches(path, name, records, metadata)
    if suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
        return _entries(path, suffix, base)
    if suffix == SNAPSHOT_SUFFIX:
        return _producers(path)
    if name.endswith("-checkpoint"):
        return _checkpoint(path, name)
    if name in (META_PROPERTIES, PARTITION_METADATA):
        return _settings(path)
    if name in ("quorum-state", CLEAN_SHUTDOWN):
        return _json(path)
    raise ConfigError(f"{path}: no kind of file of a data folder has this name")


def _batches(path: str, name: str, records: bool, metadata: FieldsDecoder | None) -> Iterator[DumpRow]:
    # The folder names the topic, which decides how its records are decoded.
    topic = os.path.basename(os.path.dirname(os.path.abspath(path))).rpartition("-")[0]
    if name.endswith(".checkpoint"):
        topic = "__cluster_metadata"
    decoder = decoder_of(topic, metadata)
    position = 0
    try:
        for position, batch in BatchFile(path).batches():
            yield DumpRow("batch", _batch_fields(batch, position))
            if records:
                yield from _records(batch, decoder)
            position += batch.size  # noqa: PLW2901 - where the damage is, should the next batch be invalid
    except CorruptBatch as error:
        yield DumpRow("damage", {"position": position, "what": str(error)})


def _batch_fields(batch: BatchView, position: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "count": batch.record_count,
        "position": position,
        "size": batch.size,
        "leader_epoch": batch.leader_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "codec": Codec(batch.codec).name.lower() if batch.codec in list(Codec) else str(batch.codec),
        "timestamp_type": "LogAppendTime" if batch.is_log_append_time else "CreateTime",
        "max_timestamp": batch.max_timestamp,
        "delete_horizon": batch.base_timestamp if batch.has_delete_horizon else None,
        "magic": batch.magic,
        "crc": batch.crc,
        "valid": batch.crc_matches(),
    }
    return fields


def _records(batch: BatchView, decoder: FieldsDecoder) -> Iterator[DumpRow]:
    try:
        for record in batch.decode():
            fields: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
            if batch.is_control:
                fields |= decode_control(record)
            else:
                fields |= decoder(record.key, record.value)
            if record.headers:
                fields["headers"] = [[name, format_bytes(value)] for name, value in record.headers]
            yield DumpRow("record", fields)
    except (KlammError, RemoteProtocolError, ValueError) as error:
        yield DumpRow("damage", {"offset": batch.base_offset, "what": f"its records cannot be read: {error}"})


def _entries(path: str, suffix: str, base: int) -> Iterator[DumpRow]:
    """The entries of an index; the zeros that Kafka reserves at its end are none."""
    layout: Struct = {INDEX_SUFFIX: offset_index, TIME_INDEX_SUFFIX: time_index, TXN_INDEX_SUFFIX: txn_index}[
        suffix
    ].ENTRY
    number = 0
    with open(path, "rb") as file:
        while data := file.read(layout.size * _CHUNK_ENTRIES):
            complete_bytes = len(data) - len(data) % layout.size
            for entry in layout.iter_unpack(data[:complete_bytes]):
                # An all-zero entry can be real only at the very start of an index.
                if number and not any(entry):
                    return
                if suffix == INDEX_SUFFIX:
                    yield DumpRow("index", {"offset": base + entry[0], "position": entry[1]})
                elif suffix == TIME_INDEX_SUFFIX:
                    yield DumpRow("timeindex", {"timestamp": entry[0], "offset": base + entry[1]})
                else:
                    names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
                    yield DumpRow("txnindex", dict(zip(names, entry, strict=True)))
                number += 1
            if complete_bytes != len(data):
                what = f"{len(data) - complete_bytes} bytes are no entry"
                yield DumpRow("damage", {"position": number * layout.size, "what": what})


def _producers(path: str) -> Iterator[DumpRow]:
    try:
        entries = decode_snapshot(Disk().read_file(path))
    except CorruptBatch as error:
        yield DumpRow("damage", {"what": str(error)})
        return
    for entry in entries:
        yield DumpRow(
            "producer",
            {
                "producer_id": entry.producer_id,
                "producer_epoch": entry.epoch,
                "last_sequence": entry.last_sequence,
                "last_offset": entry.last_offset,
                "last_timestamp": entry.last_timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "txn_first_offset": entry.txn_first_offset,
            },
        )


def _checkpoint(path: str, name: str) -> Iterator[DumpRow]:
    try:
        for row in read_lines(Disk(), path):
            if name == LEADER_EPOCH:
                epoch, start = row
                yield DumpRow("epoch", {"leader_epoch": int(epoch), "start_offset": int(start)})
            else:
                topic, partition, offset = row
                yield DumpRow("offset", {"topic": topic, "partition": int(partition), "offset": int(offset)})
    except (KlammError, ValueError) as error:
        yield DumpRow("damage", {"what": str(error)})


def _settings(path: str) -> Iterator[DumpRow]:
    text = Disk().read_file(path).decode(errors="replace")
    for entry in parse_properties(text):
        yield DumpRow("setting", {"name": entry.key, "value": entry.value})


def _json(path: str) -> Iterator[DumpRow]:
    try:
        fields = json.loads(Disk().read_file(path))
        yield DumpRow("state", fields if isinstance(fields, dict) else {"value": fields})
    except ValueError as error:
        yield DumpRow("damage", {"what": f"it is no JSON: {error}"})
