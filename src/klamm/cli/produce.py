"""`klamm produce`: records from lines, JSON lines or whole files, and one line of figures at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from klamm.cli.command_errors import refuses
from klamm.cli.completion_candidates import complete_topic
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options, show_dry_run
from klamm.cli.output import note
from klamm.cli.record_format import unescape
from klamm.cli.record_input import Draft, from_json
from klamm.cli.record_schemas import REGISTRY, SchemaEncoder
from klamm.cli.registry_address import RegistryAddress, registry_address_options
from klamm.cli.target import Target, cluster_options
from klamm.model.errors import KlammError

if TYPE_CHECKING:
    from klamm.client import Producer

SHOWN_MAX = 10
CUT_BYTES = 60
"""How much a dry run shows: so many records, so much of each."""


@click.command()
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topic)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "-i",
    "--input",
    "form",
    type=click.Choice(["lines", "jsonl", "file"]),
    default="lines",
    show_default=True,
    help="lines: a record each; jsonl: objects as `consume -o jsonl` writes them; file: each file is one record.",
)
@click.option("-k", "--key", metavar="KEY", help="The key of every record.")
@click.option("-K", "--key-separator", metavar="TEXT", help=r"What parts key from value in a line, e.g. : or \t.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every record.")
@click.option("-p", "--partition", type=click.IntRange(0), help="Send everything there.")
@click.option("-T", "--tombstone", is_flag=True, help="An empty value is no value: it deletes the key.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), help="Codec.")
@click.option(
    "-a",
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Replicas that must have it.",
)
@click.option("--value", "value_form", type=click.Choice([REGISTRY]), help="JSON values, encoded by a schema.")
@click.option("--key-form", type=click.Choice([REGISTRY]), help="The same for keys.")
@click.option(
    "--schema",
    metavar="FILE",
    help="Register this schema (.avsc, .json, .proto) for values.  [default: the newest of subject TOPIC-value]",
)
@click.option("--message", metavar="NAME", help="The message of a Protobuf schema.  [default: the first]")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing when it is done.")
@registry_address_options
@consent_options
@cluster_options
@refuses
def produce(
    *,
    topic: str,
    files: tuple[str, ...],
    form: str,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    tombstone: bool,
    compression: str | None,
    acks: str,
    quiet: bool,
    value_form: str | None,
    key_form: str | None,
    schema: str | None,
    message: str | None,
    registry: RegistryAddress,
    consent: Consent,
    target: Target,
) -> None:
    """Write records to TOPIC, from FILEs or from standard input.

    \b
    echo 'two espressi' | klamm produce orders -k table-7
    klamm produce orders -K : < orders.txt
    klamm consume orders -o jsonl | klamm produce copy -i jsonl
    echo '{"name": "Ada"}' | klamm produce users --value registry
    """  # noqa: D301 - click wants the character itself
    from klamm.client import Producer
    from klamm.model.units import pluralize

    common: Draft = {
        "key": None if key is None else key.encode(),
        "partition": partition,
        "headers": [_header(text) for text in headers] or None,
    }
    if (schema or message) and value_form is None:
        raise click.UsageError("--schema and --message are for --value registry")
    drafts = _drafts(files, form, key_separator, tombstone=tombstone)
    if value_form is not None:
        encoder = SchemaEncoder(registry, topic, "value", schema, message, dry_run=consent.dry_run)
        drafts = encoder.encode(drafts)
    if key_form is not None:
        if key is not None:
            raise click.UsageError("-k is a key as it is; with --key-form registry keys are in the records")
        drafts = SchemaEncoder(registry, topic, "key", None, None, dry_run=consent.dry_run).encode(drafts)
    settings = target.client(
        "producer", acks=acks, compression_type=compression, enable_idempotence=None if acks == "all" else "false"
    )
    partitions = _TargetPartitions(target, topic, partition)
    if consent.dry_run:
        _show_drafts(topic, partitions, drafts, common)
        return
    plan = ConfirmationPlan()
    plan.adds(f"records in {topic}")
    # Adding records is not destructive, so this prompts only in a protected context.
    consent.to(plan, target)
    # Looked up before the first record, which creates the topic.
    is_new = not quiet and not partitions.count()
    interactive = sys.stdin.isatty() and not files
    if interactive and not quiet:
        note("write records, one a line; Ctrl-D ends")
    began = time.monotonic()
    # A person waits: fail at once when no broker answers, instead of waiting for one to start.
    with Producer({"bootstrap.timeout.ms": 0, **settings}) as producer:
        records, size = _send(producer, topic, partitions, drafts, common, interactive=interactive)
    if is_new and records and (made := partitions.count()):
        note(f"there was no topic {topic}: the cluster made it, with {pluralize(made, 'partition')}")
    if not quiet:
        _report(topic, records, size, time.monotonic() - began)


class _TargetPartitions:
    """The partition count of the topic, looked up when a record first names one: a wrong number fails at once."""

    def __init__(self, target: Target, topic: str, given: int | None) -> None:
        self._target = target
        self._topic = topic
        self._given = given
        self._count = 0
        if given is not None:
            self.check(given, "")

    def whole(self, common: Draft, draft: Draft) -> Draft:
        """A record with the common fields; with -p its own partition is ignored."""
        where = draft.pop("where", "")
        whole = {**common, **{name: value for name, value in draft.items() if value is not None or name == "value"}}
        if self._given is not None:
            whole["partition"] = self._given
        elif whole["partition"] is not None:
            self.check(whole["partition"], where)
        return whole

    def check(self, partition: int, where: str) -> None:
        """KlammError for a missing partition; a topic that does not exist yet will have partition 0 at least."""
        from klamm.model.errors import ErrorCode, KlammError
        from klamm.model.units import pluralize

        # Without a request: the usual case of one partition must not cost a round trip.
        if partition == 0:
            return
        count = self.count()
        if not count:
            raise KlammError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{where}there is no topic {self._topic} with a partition {partition};"
                f" `klamm topic create {self._topic} -p {partition + 1}` makes one",
            )
        if partition >= count:
            advice = "; leave `partition` out of the records, or write -p" if where else ""
            advice += f"; `klamm topic show {self._topic}` lists them"
            raise KlammError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{where}{self._topic} has {pluralize(count, 'partition')}, and none is number {partition}{advice}",
            )

    def count(self) -> int:
        """How many there are; 0 when there is no such topic."""
        from klamm.cli.queries.topics import find_topics
        from klamm.model.errors import ErrorCode, KlammError

        if not self._count:
            try:
                with self._target.cluster() as cluster:
                    self._count = len(find_topics(cluster, [self._topic])[0].partitions)
            except KlammError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return self._count

    def would_be_created(self) -> bool:
        """True if the cluster creates missing topics; KlammError if auto.create.topics.enable is false."""
        from klamm.cli.queries.configs import BROKER, describe
        from klamm.model.errors import ErrorCode, KlammError

        with self._target.cluster() as cluster:
            entries = describe(cluster, BROKER, str(cluster.broker_ids[0]), ["auto.create.topics.enable"])
        if entries and entries[0].value == "false":
            message = f"there is no topic {self._topic}, and the cluster does not create topics by itself"
            raise KlammError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{message}; `klamm topic create {self._topic}` does"
            )
        return True


def _show_drafts(topic: str, partitions: _TargetPartitions, drafts: Iterator[Draft], common: Draft) -> None:
    """What would be written: the first records, and how many there are."""
    from klamm.model.units import format_size

    plan = ConfirmationPlan()
    if not partitions.count() and partitions.would_be_created():
        plan.adds(f"topic {topic}, made by the cluster with its defaults")
    records = size = 0
    for draft in drafts:
        whole = partitions.whole(common, draft)
        records += 1
        size += _size(whole)
        if records <= SHOWN_MAX:
            key = "" if whole.get("key") is None else f" key={_format_data(whole['key'])}"
            plan.adds(f"{topic}{key} value={_format_data(whole.get('value'))}")
    if records > SHOWN_MAX:
        plan.adds(f"... and {records - SHOWN_MAX} more, {records} records ({format_size(size)}) in all")
    show_dry_run(plan)


def _format_data(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    # A cut may fall inside a character, which is then replaced, not refused.
    text = data[: CUT_BYTES + 1].decode(errors="replace")
    return text if len(data) <= CUT_BYTES else f"{text[:CUT_BYTES]}... ({len(data)} bytes)"


def _size(whole: Draft) -> int:
    return len(whole.get("value") or b"") + len(whole.get("key") or b"")


def _send(
    producer: Producer,
    topic: str,
    partitions: _TargetPartitions,
    drafts: Iterator[Draft],
    common: Draft,
    *,
    interactive: bool,
) -> tuple[int, int]:
    from klamm.cli.progress import progress

    failures: list[BaseException] = []
    records = size = 0

    def on_delivery(delivery: Any) -> None:
        error = delivery.exception()
        # The first failure is the cause; later ones are usually its consequences.
        if error is not None and len(failures) < 1:
            failures.append(error)

    with progress("produced", unit="records") as advance:
        try:
            for draft in drafts:
                whole = partitions.whole(common, draft)
                producer.send(topic, on_delivery=on_delivery, **whole)
                records += 1
                size += _size(whole)
                advance(records)
                if interactive:
                    producer.flush()
                if failures:
                    break
        except (click.UsageError, KlammError):
            # What was sent before the faulty line is delivered; the message has to report how much that is.
            producer.flush()
            if records and not failures:
                written = "1 record before it was" if records == 1 else f"{records} records before it were"
                click.echo(f"klamm: {written} written to {topic}", err=True)
            raise
        producer.flush()
    if failures:
        raise failures[0]
    return records, size


def _report(topic: str, records: int, size: int, elapsed_s: float) -> None:
    from klamm.model.units import format_duration, format_size, pluralize

    written = f"{pluralize(records, 'record')} ({format_size(size)})"
    click.echo(f"{written} acknowledged in {topic} after {format_duration(elapsed_s * 1000)}.", err=True)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise click.UsageError(f"-H {text}: write NAME=VALUE")
    # A header value may be null, unlike a header name.
    return name, value.encode() if equals else None


def _drafts(files: tuple[str, ...], form: str, key_separator: str | None, *, tombstone: bool) -> Iterator[Draft]:
    if form == "file":
        if not files:
            raise click.UsageError("--input file needs the names of files")
        for path in files:
            with open(path, "rb") as file:
                yield {"value": file.read()}
        return
    separator = None if key_separator is None else unescape(key_separator)
    for name, stream in _streams(files):
        for number, raw in enumerate(stream, 1):
            # Files from Windows: the carriage return is not part of the record.
            line = raw.rstrip(b"\n").removesuffix(b"\r")
            if form == "jsonl":
                if line.strip():
                    yield from_json(line, f"{name}, line {number}: ")
                continue
            key: bytes | None = None
            value: bytes | None = line
            if separator is not None:
                key, separated, rest = line.partition(separator)
                if not separated:
                    raise click.UsageError(f"{name}, line {number}: there is no {key_separator} to end the key")
                value = rest
            # Without -T an empty line is an empty value, which a compacted topic keeps; null deletes the key.
            yield {"key": key, "value": None if tombstone and not value else value}


def _streams(files: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    for path in files or ("-",):
        if path == "-":
            yield "standard input", sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield path, file
