"""`klamm produce`: records from lines, JSON lines or whole files, one acknowledged line of figures at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from klamm.cli.changes import Consent, Plan, consent_options, show_dry_run
from klamm.cli.completing import complete_topic
from klamm.cli.refusal import refuses
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.client import Producer

SHOWN_MAX = 10
CUT_BYTES = 60
"""How much a dry run shows: so many records, so much of each."""
Draft = dict[str, Any]
"""key, value, partition, timestamp, headers: what `Producer.send` takes."""


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
    "-a", "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True, help="Who must have it."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when it is done.")
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
    consent: Consent,
    target: Target,
) -> None:
    r"""Write records to TOPIC, from FILEs or from standard input.

    \b
    echo 'two espressi' | klamm produce orders -k table-7
    klamm produce orders -K : < orders.txt
    klamm consume orders -o jsonl | klamm produce copy -i jsonl
    """
    from klamm.cli.record_format import unescape
    from klamm.client import Producer

    common: Draft = {
        "key": None if key is None else key.encode(),
        "partition": partition,
        "headers": [_header(text) for text in headers] or None,
    }
    separator = None if key_separator is None else unescape(key_separator)
    drafts = _drafts(files, form, separator, tombstone=tombstone)
    settings = target.client(
        "producer", acks=acks, compression_type=compression, enable_idempotence=None if acks == "all" else "false"
    )
    if consent.dry_run:
        _show_drafts(topic, drafts, common)
        return
    plan = Plan()
    plan.adds(f"records in {topic}")
    consent.to(plan, target)
    began = time.monotonic()
    with Producer(settings) as producer:
        records, size = _send(producer, topic, drafts, common, interactive=sys.stdin.isatty() and not files)
    if not quiet:
        _report(topic, records, size, time.monotonic() - began)


def _show_drafts(topic: str, drafts: Iterator[Draft], common: Draft) -> None:
    """What would be written: the first records, and how many there are."""
    from klamm.cli.units import format_size

    plan = Plan()
    records = size = 0
    for draft in drafts:
        whole = _whole(common, draft)
        records += 1
        size += _size(whole)
        if records <= SHOWN_MAX:
            key = "" if whole.get("key") is None else f" key={_shown(whole['key'])}"
            plan.adds(f"{topic}{key} value={_shown(whole.get('value'))}")
    if records > SHOWN_MAX:
        plan.adds(f"... and {records - SHOWN_MAX} more, {records} records ({format_size(size)}) in all")
    show_dry_run(plan)


def _shown(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    text = data[: CUT_BYTES + 1].decode(errors="replace")
    return text if len(data) <= CUT_BYTES else f"{text[:CUT_BYTES]}... ({len(data)} bytes)"


def _whole(common: Draft, draft: Draft) -> Draft:
    return {**common, **{name: value for name, value in draft.items() if value is not None or name == "value"}}


def _size(whole: Draft) -> int:
    return len(whole.get("value") or b"") + len(whole.get("key") or b"")


def _send(
    producer: Producer, topic: str, drafts: Iterator[Draft], common: Draft, *, interactive: bool
) -> tuple[int, int]:
    from klamm.cli.progress import progress

    failures: list[BaseException] = []
    records = size = 0

    def delivered(delivery: Any) -> None:
        error = delivery.exception()
        if error is not None and len(failures) < 1:
            failures.append(error)

    with progress("produced", unit="records") as advance:
        for draft in drafts:
            whole = _whole(common, draft)
            producer.send(topic, on_delivery=delivered, **whole)
            records += 1
            size += _size(whole)
            advance(records)
            if interactive:
                producer.flush()
            if failures:
                break
        producer.flush()
    if failures:
        raise failures[0]
    return records, size


def _report(topic: str, records: int, size: int, elapsed_s: float) -> None:
    from klamm.cli.units import counted, format_duration, format_size

    written = f"{counted(records, 'record')} ({format_size(size)})"
    click.echo(f"{written} acknowledged in {topic} after {format_duration(elapsed_s * 1000)}.", err=True)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise click.UsageError(f"-H {text}: write NAME=VALUE")
    return name, value.encode() if equals else None


def _drafts(files: tuple[str, ...], form: str, separator: bytes | None, *, tombstone: bool) -> Iterator[Draft]:
    if form == "file":
        if not files:
            raise click.UsageError("--input file needs the names of files")
        for path in files:
            with open(path, "rb") as file:
                yield {"value": file.read()}
        return
    for name, stream in _streams(files):
        for number, raw in enumerate(stream, 1):
            line = raw.rstrip(b"\n").removesuffix(b"\r")
            if form == "jsonl":
                if line.strip():
                    yield _from_json(line, f"{name}, line {number}")
                continue
            key: bytes | None = None
            value: bytes | None = line
            if separator is not None:
                key, found, rest = line.partition(separator)
                if not found:
                    raise click.UsageError(f"{name}, line {number}: there is no {separator!r} to end the key")
                value = rest
            yield {"key": key, "value": None if tombstone and not value else value}


def _streams(files: tuple[str, ...]) -> Iterator[tuple[str, IO[bytes]]]:
    for path in files or ("-",):
        if path == "-":
            yield "standard input", sys.stdin.buffer
        else:
            with open(path, "rb") as file:
                yield path, file


def _from_json(line: bytes, where: str) -> Draft:
    """One object with any of key, value, headers, partition, timestamp; anything else is a value itself."""
    import json

    from klamm.cli.record_format import from_shown

    try:
        given = json.loads(line)
        if not isinstance(given, dict) or "value" not in given:
            return {"value": line}
        headers = given.get("headers") or {}
        pairs = headers.items() if isinstance(headers, dict) else headers
        return {
            "key": from_shown(given.get("key")),
            "value": from_shown(given["value"]),
            "headers": [(str(name), from_shown(value)) for name, value in pairs] or None,
            "timestamp": given.get("timestamp"),
        }
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"{where}: this is no JSON record: {error}") from None
