"""kafka-console-producer: a record per line of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, require
from klamm.cli.kafka.script import ToolFailed, read_flags, run_check, settings

FLAGS: Final = Flags(
    "kafka-console-producer",
    BOOTSTRAP,
    Flag("broker-list", "As --bootstrap-server, the old way.", "addresses"),
    Flag("topic", "The topic (required).", "topic"),
    COMMAND_CONFIG,
    Flag("producer.config", "As --command-config, the old way.", "file"),
    Flag("command-property", "A producer setting.", "name=value"),
    Flag("producer-property", "As --command-property, the old way.", "name=value"),
    Flag("reader-property", "parse.key, key.separator, parse.headers, null.marker, ignore.error ...", "name=value"),
    Flag("property", "As --reader-property, the old way.", "name=value"),
    Flag("reader-config", "A properties file for the reader.", "file"),
    Flag("line-reader", "The class that reads lines; there is one.", "class"),
    Flag("compression-codec", "none, gzip (alone), snappy, lz4 or zstd.", "codec", optional=True),
    Flag("sync", "Wait for each record before the next."),
    Flag("batch-size", "batch.size", "bytes"),
    Flag("max-partition-memory-bytes", "batch.size", "bytes"),
    Flag("timeout", "linger.ms", "ms"),
    Flag("request-required-acks", "acks", "acks"),
    Flag("request-timeout-ms", "request.timeout.ms", "ms"),
    Flag("message-send-max-retries", "retries", "number"),
    Flag("retry-backoff-ms", "retry.backoff.ms", "ms"),
    Flag("metadata-expiry-ms", "metadata.max.age.ms", "ms"),
    Flag("max-block-ms", "max.block.ms", "ms"),
    Flag("max-memory-bytes", "buffer.memory", "bytes"),
    Flag("socket-buffer-size", "send.buffer.bytes", "bytes"),
)
_SETTINGS: Final = {
    "batch-size": "batch.size",
    "max-partition-memory-bytes": "batch.size",
    "timeout": "linger.ms",
    "request-required-acks": "acks",
    "request-timeout-ms": "request.timeout.ms",
    "message-send-max-retries": "retries",
    "retry-backoff-ms": "retry.backoff.ms",
    "metadata-expiry-ms": "metadata.max.age.ms",
    "max-block-ms": "max.block.ms",
    "max-memory-bytes": "buffer.memory",
    "socket-buffer-size": "send.buffer.bytes",
}
_READER: Final = "org.apache.kafka.tools.LineMessageReader"
_LONGS: Final = frozenset({"max-block-ms", "max-memory-bytes", "retry-backoff-ms", "metadata-expiry-ms", "timeout"})
_NUMBERS: Final = tuple(name for name in _SETTINGS if name != "request-required-acks")
_OLD: Final = {
    "property": "reader-property",
    "producer-property": "command-property",
    "producer.config": "command-config",
}


def main(args: list[str]) -> int:
    """Run kafka-console-producer."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0

    def check() -> None:
        require(parsed, "topic")
        if not (parsed.has("bootstrap-server") or parsed.has("broker-list")):
            raise Usage("Error while validating the bootstrap address\n")
        if parsed.text("line-reader", _READER) != _READER:
            raise Usage(f"{parsed.text('line-reader')}: no such reader; there is {_READER}", flags=False)
        for name in _NUMBERS:
            parsed.integer(name, bits=64 if name in _LONGS else 32)

    run_check(FLAGS, check)
    for old, new in _OLD.items():
        if parsed.has(old):
            print(f"Option --{old} is deprecated and will be removed in a future version. Use --{new} instead.")
    from klamm.client import Producer

    reader = {**_reader_file(parsed), **parsed.pairs("property", "reader-property")}
    failures: list[str] = []

    def on_delivery(delivery: Any) -> None:
        error = delivery.exception()
        if error is not None:
            print(f"Error when sending message to topic {parsed.text('topic')}: {error}", file=sys.stderr)
            failures.append(str(error))
            # Bounded: a broker that is gone fails every record of a large file.
            del failures[100:]

    with Producer({"bootstrap.timeout.ms": 0, **_producer_settings(parsed)}) as producer:
        for draft in read_drafts(sys.stdin.buffer, reader, prompt=sys.stdin.isatty()):
            delivery = producer.send(parsed.text("topic"), on_delivery=on_delivery, **draft)
            if parsed.has("sync") or sys.stdin.isatty():
                producer.flush()
            del delivery
        producer.flush()
    # Kafka's tool exits 0 even when records failed; it has printed each failure.
    return 0


def _reader_file(parsed: Parsed) -> dict[str, str]:
    if not parsed.has("reader-config"):
        return {}
    from klamm.cli.client_settings import read_properties

    return read_properties(parsed.text("reader-config"))


def _producer_settings(parsed: Parsed) -> dict[str, Any]:
    configured: dict[str, Any] = {
        "client.id": "console-producer",
        # Kafka's tool lingers for a second; at a terminal that would delay every line.
        "linger.ms": "1000" if not sys.stdin.isatty() else "0",
    }
    configured.update({name: parsed.text(flag) for flag, name in _SETTINGS.items() if parsed.has(flag)})
    if parsed.has("compression-codec"):
        # The flag without a value means gzip.
        configured["compression.type"] = parsed.text("compression-codec") or "gzip"
    configured.update(settings(parsed, "producer", "producer.config", pairs=("producer-property", "command-property")))
    configured["bootstrap.servers"] = parsed.text("bootstrap-server") or parsed.text("broker-list")
    if configured.get("acks") in ("0", "1"):
        # Idempotence needs acks=all; Java turns it off by itself unless it was set.
        configured.setdefault("enable.idempotence", "false")
    return configured


def read_drafts(lines: Any, reader: dict[str, str], *, prompt: bool = False) -> Iterator[dict[str, Any]]:
    """Records from lines: `[headers TAB] [key TAB] value`, as Kafka's reader takes them apart."""
    with_key = reader.get("parse.key", "false").strip().lower() == "true"
    with_headers = reader.get("parse.headers", "false").strip().lower() == "true"
    key_separator = reader.get("key.separator", "\t").encode()
    headers_delimiter = reader.get("headers.delimiter", "\t").encode()
    headers_separator = reader.get("headers.separator", ",").encode()
    pair_separator = reader.get("headers.key.separator", ":").encode()
    # Python's split refuses an empty separator, which Java would take as every position.
    if not (headers_separator and pair_separator):
        raise ToolFailed("headers.separator and headers.key.separator must not be empty")
    lenient = reader.get("ignore.error", "false").strip().lower() == "true"
    marker = reader.get("null.marker")
    null = None if marker is None else marker.encode()

    def cut(line: bytes, separator: bytes, what: str, number: int) -> tuple[bytes | None, bytes]:
        if not separator:  # Java finds nothing right at the beginning
            return b"", line
        head, separated, rest = line.partition(separator)
        if separated:
            return head, rest
        if lenient:
            return None, line
        text = line.decode(errors="replace")
        raise ToolFailed(f"No {what} found on line number {number}: '{text}'")

    def header(pair: bytes, number: int) -> tuple[str, bytes | None]:
        name, separated, value = pair.partition(pair_separator)
        text = name.decode(errors="replace")
        if not separated and not lenient:
            raise ToolFailed(f"No header key separator found in pair '{text}' on line number {number}")
        if null is not None and name == null:
            raise ToolFailed(
                f"Header keys should not be equal to the null marker '{marker}' as they can't be null,"
                f" on line number {number}"
            )
        # With ignore.error a pair without a separator is a header without a value.
        return text, value if separated and value != null else None

    number = 0
    while True:
        if prompt:
            print(">", end="", flush=True)
        raw = lines.readline()
        if not raw:
            return
        number += 1
        rest: bytes = raw.rstrip(b"\n").removesuffix(b"\r")
        headers: list[tuple[str, bytes | None]] | None = None
        key: bytes | None = None
        if with_headers:
            text, rest = cut(rest, headers_delimiter, "headers delimiter", number)
            if text is not None and text != null:
                headers = [header(pair, number) for pair in text.split(headers_separator)]
        if with_key:
            key, rest = cut(rest, key_separator, "key separator", number)
            key = None if key == null else key
        yield {"value": None if null is not None and rest == null else rest, "key": key, "headers": headers}
