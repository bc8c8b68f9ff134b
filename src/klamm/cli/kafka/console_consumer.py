"""kafka-console-consumer: records as lines on standard output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, require
from klamm.cli.kafka.running import checked, connect, read_flags, settings

if TYPE_CHECKING:
    from klamm.client.types import Record
    from klamm.client.wire import Cluster

FLAGS: Final = Flags(
    "kafka-console-consumer",
    BOOTSTRAP,
    Flag("topic", "The topic.", "topic"),
    Flag("include", "Topics, as a regular expression.", "pattern"),
    Flag("partition", "Only this partition.", "number"),
    Flag("offset", "Where to begin in --partition: a number, earliest or latest.", "offset"),
    Flag("from-beginning", "Begin with the first record."),
    Flag("max-messages", "Stop after so many.", "number"),
    Flag("timeout-ms", "Stop when nothing came for so long.", "ms"),
    Flag("group", "Read as a member of this group.", "group"),
    Flag("isolation-level", "read_committed or read_uncommitted.", "level"),
    Flag("skip-message-on-error", "Go on when a record cannot be printed."),
    Flag("enable-systest-events", "Accepted."),
    COMMAND_CONFIG,
    Flag("consumer.config", "As --command-config, the old way.", "file"),
    Flag("command-property", "A consumer setting.", "name=value"),
    Flag("consumer-property", "As --command-property, the old way.", "name=value"),
    Flag("formatter", "Accepted; the default formatter is the one there is.", "class"),
    Flag("formatter-property", "print.key, print.offset, key.separator, null.literal ...", "name=value"),
    Flag("property", "As --formatter-property, the old way.", "name=value"),
    Flag("formatter-config", "A properties file for the formatter.", "file"),
    Flag("key-deserializer", "Accepted; bytes are printed as they are.", "class"),
    Flag("value-deserializer", "Accepted; bytes are printed as they are.", "class"),
)
_OLD: Final = {
    "property": "formatter-property",
    "consumer-property": "command-property",
    "consumer.config": "command-config",
}
_IDLE_MS: Final = 500
_FILES: Final = ("consumer.config",)
_PAIRS: Final = ("consumer-property", "command-property")


def main(args: list[str]) -> int:
    """Run kafka-console-consumer."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    checked(FLAGS, lambda: _check(parsed))
    for old, new in _OLD.items():
        if parsed.has(old):
            print(f"Option --{old} is deprecated and will be removed in a future version. Use --{new} instead.")
    formatter = line_formatter({**_file(parsed), **parsed.pairs("property", "formatter-property")})
    limit = parsed.integer("max-messages", -1) or -1
    count = 0
    out = sys.stdout.buffer
    sys.stdout.flush()
    try:
        for record in _records(parsed):
            line = formatter(record)
            count += 1  # before it can be seen: an interrupt may follow at once, and output may not be buffered
            out.write(line)
            out.flush()
            if count == limit:
                break
    except KeyboardInterrupt:
        pass
    print(f"Processed a total of {count} messages", file=sys.stderr)
    return 0


def _check(parsed: Parsed) -> None:
    if sum(parsed.has(name) for name in ("topic", "include")) != 1:
        raise Usage("Exactly one of the following arguments is required: [topic], [include]")
    require(parsed, "bootstrap-server")
    if parsed.has("partition") and not parsed.has("topic"):
        raise Usage("The topic is required when partition is specified.")
    if parsed.has("offset") and not parsed.has("partition"):
        raise Usage("The partition is required when offset is specified.")
    if parsed.has("offset") and parsed.has("from-beginning"):
        raise Usage("Options from-beginning and offset cannot be specified together.")
    if parsed.has("group") and parsed.has("partition"):
        raise Usage("Options group and partition cannot be specified together.")
    offset = parsed.text("offset", "latest").lower()
    if offset not in ("earliest", "latest") and not offset.isdecimal():
        raise Usage(
            f"The provided offset value '{parsed.text('offset')}' is incorrect. Valid values are 'earliest', 'latest',"
            " or a non-negative long."
        )


def _file(parsed: Parsed) -> dict[str, str]:
    if not parsed.has("formatter-config"):
        return {}
    from klamm.cli.client_settings import read_properties

    return read_properties(parsed.text("formatter-config"))


def _records(parsed: Parsed) -> Iterator[Record]:
    own = settings(parsed, "consumer", *_FILES, pairs=_PAIRS)
    group = parsed.get("group") or own.get("group.id")
    timeout_ms = parsed.integer("timeout-ms", -1)
    idle_s = None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000
    isolation = parsed.text("isolation-level", own.get("isolation.level", "read_uncommitted"))
    reset = "earliest" if parsed.has("from-beginning") else own.get("auto.offset.reset", "latest")
    if group is not None or parsed.has("include"):
        from klamm.cli.members import read_as_member

        config: dict[str, Any] = {
            "group.id": group or f"console-consumer-{time.time_ns() % 100_000}",
            "auto.offset.reset": reset,
            "isolation.level": isolation,
            **own,
            "bootstrap.servers": parsed.text("bootstrap-server"),
        }
        topics = re.compile(parsed.text("include")) if parsed.has("include") else [parsed.text("topic")]
        yield from read_as_member(config, topics, idle_s=idle_s, commit=group is not None)
        return
    with connect(parsed, *_FILES, pairs=_PAIRS) as cluster:
        yield from _by_place(cluster, parsed, reset, idle_s, committed=isolation == "read_committed")


def _by_place(
    cluster: Cluster, parsed: Parsed, reset: str, idle_s: float | None, *, committed: bool
) -> Iterator[Record]:
    from klamm.cli.asking.reading import READ_COMMITTED, Reader, Span
    from klamm.client.groups import EARLIEST, LATEST, list_offsets

    topic = parsed.text("topic")
    indexes = _partitions(cluster, topic, idle_s)
    wanted = parsed.integer("partition")
    places = [(topic, index) for index in indexes if wanted is None or index == wanted]
    offset = parsed.text("offset", "").lower()
    if offset.isdecimal():
        begin = dict.fromkeys(places, int(offset))
    else:
        begin = list_offsets(cluster, places, EARLIEST if "earliest" in (offset, reset) else LATEST)
    reader = Reader(
        cluster, {place: Span(begin.get(place, 0)) for place in places}, isolation=READ_COMMITTED if committed else 0
    )
    last = time.monotonic()
    while idle_s is None or time.monotonic() - last < idle_s:
        found = reader.poll(_IDLE_MS if idle_s is None else min(_IDLE_MS, max(int(idle_s * 1000), 1)))
        if found:
            yield from found
            last = time.monotonic()


def _partitions(cluster: Cluster, topic: str, idle_s: float | None) -> list[int]:
    """The topic's partitions; like Kafka's consumer it lets the broker make a topic that is not there."""
    from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

    deadline = None if idle_s is None else time.monotonic() + idle_s
    while True:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
        found = cluster.ask(asked).topics[0]
        if not found.error_code and found.partitions:
            return sorted(each.partition_index for each in found.partitions)
        if deadline is not None and time.monotonic() > deadline:
            return []
        time.sleep(0.1)


def line_formatter(properties: dict[str, str]) -> Callable[[Record], bytes]:
    """Kafka's default formatter: the columns asked for, in its order."""

    def on(name: str, *, default: bool = False) -> bool:
        return properties.get(name, str(default)).strip().lower() == "true"

    separator = properties.get("key.separator", "\t").encode()
    end = properties.get("line.separator", "\n").encode()
    between = properties.get("headers.separator", ",").encode()
    null = properties.get("null.literal", "null").encode()
    with_time, with_partition, with_offset = on("print.timestamp"), on("print.partition"), on("print.offset")
    with_epoch, with_headers, with_key = on("print.epoch"), on("print.headers"), on("print.key")
    with_value = on("print.value", default=True)

    def shown(data: bytes | None) -> bytes:
        return null if data is None else bytes(data)

    def line(record: Record) -> bytes:
        cells: list[bytes] = []
        if with_time:
            kind = "LogAppendTime" if record.timestamp_type else "CreateTime"
            cells.append(f"{kind}:{record.timestamp}".encode() if record.timestamp >= 0 else b"NO_TIMESTAMP")
        if with_partition:
            cells.append(f"Partition:{record.partition}".encode())
        if with_offset:
            cells.append(f"Offset:{record.offset}".encode())
        if with_epoch:
            cells.append(f"Epoch:{record.leader_epoch}".encode())
        if with_headers:
            pairs = [name.encode() + b":" + shown(value) for name, value in record.headers]
            cells.append(between.join(pairs) if pairs else b"NO_HEADERS")
        if with_key:
            cells.append(shown(record.key))
        if with_value:
            cells.append(shown(record.value))
        return separator.join(cells) + end

    return line
