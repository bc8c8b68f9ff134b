"""kafka-dump-log: what lies in segments, indexes and snapshots, line for line as Kafka prints it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.options import Flag, Flags, Parsed
from klamm.cli.kafka.running import ToolFailed, read_flags

if TYPE_CHECKING:
    from klamm.records import BatchView

FLAGS: Final = Flags(
    "kafka-dump-log",
    Flag("files", "The files, parted by commas (required).", "files"),
    Flag("print-data-log", "Records with their keys and values."),
    Flag("deep-iteration", "Records too."),
    Flag("offsets-decoder", "Read __consumer_offsets."),
    Flag("transaction-log-decoder", "Read __transaction_state."),
    Flag("cluster-metadata-decoder", "Read the metadata log."),
    Flag("share-group-state-decoder", "Read __share_group_state."),
    Flag("skip-record-metadata", "With --print-data-log: keys and values alone."),
    Flag("max-message-size", "Accepted.", "bytes"),
    Flag("max-bytes", "Read so many bytes of a segment.", "bytes"),
    Flag("index-sanity-check", "Only check the index."),
    Flag("verify-index-only", "Only check the index against the segment."),
    Flag("key-decoder-class", "Accepted.", "class", optional=True),
    Flag("value-decoder-class", "Accepted.", "class", optional=True),
)
CHUNK: Final = 8 << 20
_DECODERS = ("offsets-decoder", "transaction-log-decoder", "cluster-metadata-decoder", "share-group-state-decoder")
_INDEX = struct.Struct(">ii")
_TIME = struct.Struct(">qi")
_TXN = struct.Struct(">hqqqq")
_PRODUCER = struct.Struct(">qhiqiqiq")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Decode = Callable[[bytes | None, bytes | None], tuple[str | None, str]]


def main(args: list[str]) -> int:
    """Run kafka-dump-log."""
    if not args:
        raise ToolFailed(f"This tool shows what a log file holds, to find out what is wrong with it.\n{FLAGS.usage()}")
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    if not parsed.has("files"):
        raise ToolFailed(f'Missing required argument "[files]"\n{FLAGS.usage()}')
    for path in parsed.text("files").split(","):
        print(f"Dumping {path}")
        name = os.path.basename(path)
        kind = name[name.rfind(".") :]
        dump = _KINDS.get(kind)
        if dump is None:
            print(f"Ignoring unknown file {path}")
            continue
        try:
            dump(path, parsed)
        except FileNotFoundError:
            raise ToolFailed(f"java.nio.file.NoSuchFileException: {path}") from None
    return 0


def _segment(path: str, parsed: Parsed) -> None:
    start = os.path.basename(path).partition(".")[0]
    if path.endswith(".log"):
        if not start.isdecimal():
            raise ToolFailed(f'java.lang.NumberFormatException: For input string: "{start}"')
        print(f"Log starting offset: {int(start)}")
    else:
        end, _, epoch = start.partition("-")
        print(f"Snapshot end offset: {int(end)}, epoch: {int(epoch or 0)}")
    deep = parsed.has("print-data-log") or parsed.has("deep-iteration") or any(parsed.has(d) for d in _DECODERS)
    decode = _decoder(parsed)
    limit = parsed.integer("max-bytes", 1 << 62) or 1 << 62
    for position, batch in _batches(path, limit):
        if not parsed.has("skip-record-metadata"):
            print(_batch_line(batch, position))
        if deep:
            for line in _record_lines(
                batch, decode, payload=parsed.has("print-data-log") or decode is not None, parsed=parsed
            ):
                print(line)


def _batches(path: str, limit: int) -> Iterator[tuple[int, BatchView]]:
    """Every batch with its place in the file; memory is bounded by a chunk or the largest batch."""
    from klamm.records import BatchView

    size = min(os.path.getsize(path), limit)
    with open(path, "rb") as file:
        position = 0
        while position + 12 <= size:
            file.seek(position)
            head = file.read(12)
            length = int.from_bytes(head[8:12], "big") + 12
            if length < 61 or position + length > size:
                print(f"Found {size - position} invalid bytes at the end of {os.path.basename(path)}")
                return
            yield position, BatchView(head + file.read(length - 12))
            position += length


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _batch_line(batch: BatchView, position: int) -> str:
    kind = "LogAppendTime" if batch.is_log_append_time else "CreateTime"
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


def _record_lines(batch: BatchView, decode: Decode | None, *, payload: bool, parsed: Parsed) -> Iterator[str]:
    kind = "LogAppendTime" if batch.is_log_append_time else "CreateTime"
    bare = parsed.has("skip-record-metadata")
    for record in batch.decode():
        key_size = -1 if record.key is None else len(record.key)
        value_size = -1 if record.value is None else len(record.value)
        line = "|"
        if not bare:
            line += f" offset: {record.offset} {kind}: {record.timestamp} keySize: {key_size} valueSize: {value_size}"
            sequence = -1 if batch.base_sequence < 0 else batch.base_sequence + record.offset - batch.base_offset
            names = ",".join(name for name, _ in record.headers)
            line += f" sequence: {sequence} headerKeys: [{names}]"
        if batch.is_control:
            line += _control(record.key, record.value)
        elif payload and decode is not None:
            key, value = decode(record.key, record.value)
            line += f" key: {key}" if key is not None else ""
            line += f" payload: {value}"
        elif payload:
            line += f" key: {_text(record.key)}" if record.key is not None else ""
            line += f" payload: {_text(record.value)}" if record.value is not None else ""
        yield line


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode(errors="replace")


def _control(key: bytes | None, value: bytes | None) -> str:
    kind = int.from_bytes((key or b"\0\0\0\0")[2:4], "big")
    if kind in (0, 1):
        epoch = int.from_bytes((value or b"")[2:6], "big")
        return f" endTxnMarker: {('ABORT', 'COMMIT')[kind]} coordinatorEpoch: {epoch}"
    names = {2: "LeaderChange", 3: "SnapshotHeader", 4: "SnapshotFooter", 5: "KRaftVersion", 6: "KRaftVoters"}
    return f" {names.get(kind, f'controlType: {kind}')}"


def _decoder(parsed: Parsed) -> Decode | None:
    chosen = next((name for name in _DECODERS if parsed.has(name)), None)
    if chosen is None:
        return None
    import json

    if chosen == "cluster-metadata-decoder":
        from klamm.cli.storage_dump import _decode_metadata

        def metadata(key: bytes | None, value: bytes | None) -> tuple[str | None, str]:
            del key
            return None, json.dumps(_decode_metadata(None, value), separators=(",", ":"))

        return metadata
    from klamm.storage.internal_topics import decoder_of

    topic = "__consumer_offsets" if chosen == "offsets-decoder" else "__transaction_state"
    read = decoder_of(topic)

    def internal(key: bytes | None, value: bytes | None) -> tuple[str | None, str]:
        found: dict[str, Any] = read(key, value)
        whole = json.dumps(found.get("key"), separators=(",", ":"))
        return whole, json.dumps(found.get("value"), separators=(",", ":"))

    return internal


def _entries(path: str, size: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while len(entry := file.read(size)) == size:
            yield entry


def _base(path: str) -> int:
    return int(os.path.basename(path).partition(".")[0])


def _index(path: str, parsed: Parsed) -> None:
    base, last = _base(path), -1
    for entry in _entries(path, _INDEX.size):
        offset, position = _INDEX.unpack(entry)
        if offset == 0 and last >= 0:
            break
        if not parsed.has("index-sanity-check") and not parsed.has("verify-index-only"):
            print(f"offset: {base + offset} position: {position}")
        last = offset
    if parsed.has("index-sanity-check"):
        print(f"{os.path.basename(path)} passed sanity check.")
    elif last < 0 and not parsed.has("verify-index-only"):
        print(f"offset: {base} position: 0")


def _time_index(path: str, parsed: Parsed) -> None:
    base, any_entry = _base(path), False
    for entry in _entries(path, _TIME.size):
        moment, offset = _TIME.unpack(entry)
        if moment == 0 and any_entry:
            break
        any_entry = True
        if not parsed.has("index-sanity-check") and not parsed.has("verify-index-only"):
            print(f"timestamp: {moment} offset: {base + offset}")
    if parsed.has("index-sanity-check"):
        print(f"{os.path.basename(path)} passed sanity check.")


def _txn_index(path: str, _: Parsed) -> None:
    for entry in _entries(path, _TXN.size):
        version, producer, first, last, stable = _TXN.unpack(entry)
        print(
            f"version: {version} producerId: {producer} firstOffset: {first} lastOffset: {last}"
            f" lastStableOffset: {stable}"
        )


def _producers(path: str, _: Parsed) -> None:
    with open(path, "rb") as file:
        data = file.read()
    count = int.from_bytes(data[6:10], "big")
    for number in range(min(count, (len(data) - 10) // _PRODUCER.size)):
        producer, epoch, sequence, offset, delta, moment, coordinator, begun = _PRODUCER.unpack_from(
            data, 10 + number * _PRODUCER.size
        )
        current = "OptionalLong.empty" if begun < 0 else f"OptionalLong[{begun}]"
        line = (
            f"producerId: {producer} producerEpoch: {epoch} coordinatorEpoch: {coordinator}"
            f" currentTxnFirstOffset: {current} lastTimestamp: {moment}"
        )
        if offset >= 0:
            first = sequence - delta
            line += f" firstSequence: {first} lastSequence: {sequence} lastOffset: {offset} offsetDelta: {delta}"
            line += f" timestamp: {moment}"
        print(line)


_KINDS: Final[dict[str, Callable[[str, Parsed], None]]] = {
    ".log": _segment,
    ".checkpoint": _segment,
    ".index": _index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": _producers,
}
