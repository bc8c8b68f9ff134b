"""kafka-dump-log: what lies in segments, indexes and snapshots, line for line as Kafka prints it."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Final

from klamm.cli.kafka.dump_records import dump_segment
from klamm.cli.kafka.options import Flag, Flags, Parsed
from klamm.cli.kafka.script import ToolFailed, read_flags

FLAGS: Final = Flags(
    "kafka-dump-log",
    Flag("files", "The files, parted by commas (required).", "files"),
    Flag("print-data-log", "Records with their keys and values."),
    Flag("deep-iteration", "Records too."),
    Flag("offsets-decoder", "Read __consumer_offsets."),
    Flag("transaction-log-decoder", "Read __transaction_state."),
    Flag("cluster-metadata-decoder", "Read the metadata log."),
    Flag("share-group-state-decoder", "Read __share_group_state."),
    Flag("skip-record-metadata", "With --print-data-log: of records, keys and values alone."),
    Flag("max-message-size", "Accepted.", "bytes"),
    Flag("max-bytes", "Read so many bytes of a segment.", "bytes"),
    Flag("index-sanity-check", "Only check the index."),
    Flag("verify-index-only", "Only check the index against the segment."),
    Flag("key-decoder-class", "Accepted.", "class", optional=True),
    Flag("value-decoder-class", "Accepted.", "class", optional=True),
)
_INDEX: Final = struct.Struct(">ii")
_TIME: Final = struct.Struct(">qi")
_TXN: Final = struct.Struct(">hqqqq")
_PRODUCER: Final = struct.Struct(">qhiqiqiq")


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
        dump = _KINDS.get(os.path.splitext(path)[1])
        if dump is None:
            # The JVM tool goes on with the next file too.
            print(f"Ignoring unknown file {path}", file=sys.stderr)
            continue
        try:
            dump(path, parsed)
        except FileNotFoundError:
            raise ToolFailed(f"java.nio.file.NoSuchFileException: {path}") from None
    return 0


def _entries(path: str, size: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while len(entry := file.read(size)) == size:
            yield entry


def _base(path: str) -> int:
    return int(os.path.basename(path).partition(".")[0])


def _quiet(path: str, parsed: Parsed) -> bool:
    """Whether entries are not printed; a sanity check prints that it passed."""
    if parsed.has("index-sanity-check"):
        print(f"{path} passed sanity check.")
    return parsed.has("index-sanity-check") or parsed.has("verify-index-only")


def _index(path: str, parsed: Parsed) -> None:
    # Indexes of the active segment are written when it rolls, so an empty one is normal.
    if os.path.getsize(path) < _INDEX.size:
        print(f"{path} is empty.")
    elif not _quiet(path, parsed):
        base = _base(path)
        for number, entry in enumerate(_entries(path, _INDEX.size)):
            offset, position = _INDEX.unpack(entry)
            if offset == 0 and number:
                break  # preallocated space that was never used
            print(f"offset: {base + offset} position: {position}")


def _time_index(path: str, parsed: Parsed) -> None:
    if not _quiet(path, parsed):
        base = _base(path)
        for number, entry in enumerate(_entries(path, _TIME.size)):
            moment, offset = _TIME.unpack(entry)
            if offset == 0 and number:
                break
            print(f"timestamp: {moment} offset: {base + offset}")


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
    # The header is a version (2 bytes), a CRC (4) and the number of entries.
    count = int.from_bytes(data[6:10], "big")
    for number in range(min(count, (len(data) - 10) // _PRODUCER.size)):
        producer, epoch, sequence, offset, delta, moment, coordinator, begun = _PRODUCER.unpack_from(
            data, 10 + number * _PRODUCER.size
        )
        # Java's toString of an Optional is part of the output.
        current = "OptionalLong.empty" if begun < 0 else f"OptionalLong[{begun}]"
        line = (
            f"producerId: {producer} producerEpoch: {epoch} coordinatorEpoch: {coordinator}"
            f" currentTxnFirstOffset: {current} lastTimestamp: {moment}"
        )
        # A producer of which only control batches are left has no sequence numbers.
        if offset >= 0:
            first = sequence - delta
            line += f" firstSequence: {first} lastSequence: {sequence} lastOffset: {offset} offsetDelta: {delta}"
            line += f" timestamp: {moment}"
        print(line)


_KINDS: Final[dict[str, Callable[[str, Parsed], None]]] = {
    ".log": dump_segment,
    ".checkpoint": dump_segment,
    ".index": _index,
    ".timeindex": _time_index,
    ".txnindex": _txn_index,
    ".snapshot": _producers,
}
