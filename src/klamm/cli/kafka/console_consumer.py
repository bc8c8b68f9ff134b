"""kafka-console-consumer: records as lines on standard output."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from klamm.cli.kafka.console_source import ConsoleSource, Signals, consumer_settings
from klamm.cli.kafka.formatters import Formatter, Unprintable, find_formatter, unknown_deserializers
from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, require
from klamm.cli.kafka.script import ToolFailed, java_error, read_flags, run_check
from klamm.model.errors import KlammError

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
    Flag("enable-systest-events", "Print a line when a signal ended it and all is closed."),
    COMMAND_CONFIG,
    Flag("consumer.config", "As --command-config, the old way.", "file"),
    Flag("command-property", "A consumer setting.", "name=value"),
    Flag("consumer-property", "As --command-property, the old way.", "name=value"),
    Flag("formatter", "How to print records: one of Kafka's formatters.", "class"),
    Flag("formatter-property", "print.key, print.offset, key.separator, null.literal ...", "name=value"),
    Flag("property", "As --formatter-property, the old way.", "name=value"),
    Flag("formatter-config", "A properties file for the formatter.", "file"),
    Flag("key-deserializer", "What keys are: one of Kafka's deserializers.", "class"),
    Flag("value-deserializer", "What values are: one of Kafka's deserializers.", "class"),
)
_OLD: Final = {
    "property": "formatter-property",
    "consumer-property": "command-property",
    "consumer.config": "command-config",
}
_DEFAULT: Final = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"


def main(args: list[str]) -> int:
    """Run kafka-console-consumer; a signal ends it as it ends Kafka's, with 128 and the signal's number."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    config: dict[str, Any] = {}
    formatter: Formatter | None = None

    def check() -> None:
        nonlocal config, formatter
        _check(parsed)
        config = consumer_settings(parsed)
        formatter = find_formatter(parsed.text("formatter", _DEFAULT), _properties(parsed))

    run_check(FLAGS, check)
    assert formatter is not None
    for old, new in _OLD.items():
        if parsed.has(old):
            print(f"Option --{old} is deprecated and will be removed in a future version. Use --{new} instead.")
    for name in unknown_deserializers(_properties(parsed)):
        # Not fatal in Kafka's tool either: it prints the bytes as they are.
        print(f"ERROR Unable to instantiate a deserializer from {name}", file=sys.stderr)
    signals = Signals()
    _print_all(parsed, ConsoleSource(parsed, config, signals), formatter)
    if signals.caught_signal() and parsed.has("enable-systest-events"):
        print("shutdown_complete")
    # The JVM exits so after a signal, also after a clean shutdown.
    return 128 + signals.caught_signal() if signals.caught_signal() else 0


def _print_all(parsed: Parsed, source: ConsoleSource, formatter: Formatter) -> None:
    """Print records. As in Kafka's tool, an error of the cluster ends it with 0; an unprintable record is a failure."""
    limit = parsed.integer("max-messages")
    limit = -1 if limit is None else limit
    count = 0
    out = sys.stdout.buffer
    # What print() buffered must come before what is written to the byte stream below it.
    sys.stdout.flush()
    failed: Unprintable | None = None
    records = source.records()
    try:
        # A limit of -1, or none, never equals the count.
        while count != limit:
            record = next(records, None)
            if record is None:
                break
            count += 1  # before it can be seen: a signal may follow at once, and output may not be buffered
            try:
                out.write(formatter(record))
            except Unprintable as error:
                if not parsed.has("skip-message-on-error"):
                    failed = error
                    break
                print(f"ERROR Error processing message, skipping this message: {error}", file=sys.stderr)
            out.flush()
    except BrokenPipeError:
        print("Unable to write to standard out, closing consumer.", file=sys.stderr)
        _discard_output()
    except KlammError as error:
        if not source.reached:
            raise
        print(f"ERROR Error processing message, terminating consumer process: {java_error(error)}", file=sys.stderr)
    finally:
        # Ends the generator now, which gives back unprinted records and leaves the group, before the total is printed.
        records.close()
    print(f"Processed a total of {count} messages", file=sys.stderr)
    if failed is not None:
        raise ToolFailed(f"ERROR Unknown error when running consumer: {failed}")


def _discard_output() -> None:
    """Discard what is left in the buffer: the reader of the pipe is gone, which was reported."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


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
    offset = parsed.text("offset", "latest").lower()
    if offset not in ("earliest", "latest") and not offset.isdecimal():
        raise Usage(
            f"The provided offset value '{parsed.text('offset')}' is incorrect. Valid values are 'earliest', 'latest',"
            " or a non-negative long."
        )
    if not (parsed.text("topic") or parsed.has("include")):
        raise Usage("Topic collection to subscribe to cannot contain null or empty topic", flags=False)
    # Only for their errors: a flag that is no number fails before anything is connected.
    parsed.integer("partition")
    parsed.integer("max-messages")
    parsed.integer("timeout-ms", bits=64)


def _properties(parsed: Parsed) -> dict[str, str]:
    """The properties of the formatter: from a file, from flags, and from --formatter-property, which win."""
    properties: dict[str, str] = {}
    if parsed.has("formatter-config"):
        from klamm.cli.client_settings import read_properties

        properties.update(read_properties(parsed.text("formatter-config")))
    for name in ("key", "value"):
        if parsed.text(f"{name}-deserializer"):
            properties[f"{name}.deserializer"] = parsed.text(f"{name}-deserializer")
    return {**properties, **parsed.pairs("property", "formatter-property")}
