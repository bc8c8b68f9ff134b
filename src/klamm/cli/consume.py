"""`klamm consume` and `klamm tail`: records by partition, offset, time, key and filter, in any form."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from klamm.cli.completing import complete_topic
from klamm.cli.output import FORMATS, default_format, printable
from klamm.cli.record_format import DECODINGS
from klamm.cli.refusal import refuses
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.cli.asking.reading import Span
    from klamm.client.types import Record
    from klamm.client.wire import Cluster

Place = tuple[str, int]

_FORMATTING = (
    click.option("-f", "--format", "template", metavar="TEXT", help=r"As in kcat: '%t %p %o %k %v\n'; see below."),
    click.option(
        "-o", "--output", type=click.Choice(FORMATS), help="Form.  [default: lines on a terminal, jsonl elsewhere]"
    ),
    click.option("--decode", type=click.Choice(DECODINGS), default="text", help="What keys and values are shown as."),
    click.option("--where", "wanted", metavar="EXPR", help="Only records that pass, e.g. 'value.price > 10'."),
    click.option("--key", "keys", multiple=True, metavar="KEY", help="Only records with this key."),
    click.option("-p", "--partition", "partitions", multiple=True, type=click.IntRange(0), help="Only this one."),
    click.option("--read-committed", is_flag=True, help="Leave out what was aborted or is not committed yet."),
)


def _formatting(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FORMATTING):
        command = option(command)
    return command


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("--from", "start", metavar="PLACE", help="earliest, latest, an offset, or -N from the end.")
@click.option("--since", metavar="TIME", help="From this time on: 2h, 2026-05-01T12:00:00Z.")
@click.option("--until", metavar="TIME", help="Up to this time.")
@click.option("--to", "end", metavar="OFFSET", type=click.IntRange(0), help="Up to this offset, which is not read.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after so many records that pass.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="The last N records, of all partitions together.")
@click.option("--follow", is_flag=True, help="Do not stop at the end, wait for more.")
@click.option("-g", "--group", metavar="GROUP", help="Read as a member of a group, and commit.")
@_formatting
@cluster_options
@refuses
def consume(
    *,
    topics: tuple[str, ...],
    start: str | None,
    since: str | None,
    until: str | None,
    end: int | None,
    count: int | None,
    last: int | None,
    follow: bool,
    group: str | None,
    target: Target,
    **look: Any,
) -> None:
    r"""Read records from TOPIC, by default everything there is now.

    \b
    klamm consume orders --since 2h --where 'value.total > 100' -o jsonl
    klamm consume orders -p 3 --from 1200 -n 10 -f '%o %k %v\n'
    klamm consume orders --key customer-7 --last 5

    \b
    -f: %t topic  %p partition  %o offset  %k key  %v value  %h headers  %T milliseconds  %d time
        %K and %S bytes of key and value  %%  \n \t \xNN
    --where: key, value, value.field, headers["name"], topic, partition, offset, timestamp, size; and or not;
        == != < <= > >= in; + - * / %; len lower upper number text exists startswith endswith contains like
    """
    if sum(each is not None for each in (start, since, last)) > 1:
        raise click.UsageError("--from, --since and --last exclude each other; write one of them")
    if group is not None:
        if start or since or until or last or end is not None:
            raise click.UsageError("a group goes on where it was; move it with `klamm group seek`")
        _consume_as_member(topics, group, count, follow, target, look)
        return
    with target.cluster() as cluster:
        spans = _spans(cluster, topics, look["partitions"], start, since, until, end, follow=follow)
        if last is not None:
            _show_last(cluster, spans, last, look)
            if not follow:
                return
            for span in spans.values():
                span.end = None
        _show(_reader(cluster, spans, look).read(), count, look)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("-n", "--last", type=click.IntRange(0), default=10, show_default=True, help="How many to begin with.")
@click.option("--no-follow", is_flag=True, help="Stop at the end.")
@_formatting
@cluster_options
@refuses
def tail(*, topics: tuple[str, ...], last: int, no_follow: bool, target: Target, **look: Any) -> None:
    """Show the last records of TOPIC, and those to come until Ctrl-C."""
    with target.cluster() as cluster:
        spans = _spans(cluster, topics, look["partitions"], None, None, None, None, follow=False)
        ends = {place: span.end or 0 for place, span in spans.items()}
        if last:
            _show_last(cluster, spans, last, look)
        if no_follow:
            return
        for place, span in spans.items():
            span.next, span.end = ends[place], None
        _show(_reader(cluster, spans, look).read(), None, look)


def _reader(cluster: Cluster, spans: dict[Place, Span], look: dict[str, Any]) -> Any:
    from klamm.cli.asking.reading import READ_COMMITTED, Reader

    return Reader(cluster, spans, isolation=READ_COMMITTED if look["read_committed"] else 0)


def _spans(
    cluster: Cluster,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    start: str | None,
    since: str | None,
    until: str | None,
    end: int | None,
    *,
    follow: bool,
) -> dict[Place, Span]:
    """What to read of each partition."""
    from klamm.cli.asking.offsets import resolve_place
    from klamm.cli.asking.reading import Span
    from klamm.cli.asking.topics import find_topics
    from klamm.cli.units import parse_time_ms
    from klamm.client.groups import EARLIEST, LATEST, list_offsets
    from klamm.model.errors import ErrorCode, KlammError

    places: list[Place] = []
    for topic in find_topics(cluster, topics):
        held = [p.index for p in topic.partitions]
        for index in partitions:
            if index not in held:
                raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has {len(held)} partitions")
        places += [(topic.name, index) for index in held if not partitions or index in partitions]
    now = int(time.time() * 1000)
    try:
        for moment in (since, until):
            if moment is not None:
                parse_time_ms(moment, now)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    begin = list_offsets(cluster, places, EARLIEST) if start is None and since is None else {}
    if since is not None:
        begin = resolve_place(cluster, places, str(parse_time_ms(since, now)))
    elif start is not None:
        begin = resolve_place(cluster, places, start)
    ends: dict[Place, int | None] = dict.fromkeys(places)
    if until is not None:
        ends.update(resolve_place(cluster, places, str(parse_time_ms(until, now))))
    elif not follow:
        ends.update(list_offsets(cluster, places, LATEST))
    if end is not None:
        ends = {place: end if stop is None else min(end, stop) for place, stop in ends.items()}
    return {place: Span(begin.get(place, 0), ends[place]) for place in places}


def _passes(look: dict[str, Any]) -> Callable[[Record], bool]:
    from klamm.cli.filter import FilterError, compile_filter

    tests: list[Callable[[Any], bool]] = []
    keys = {key.encode() for key in look["keys"]}
    if keys:
        tests.append(lambda record: record.key in keys)
    if look["wanted"]:
        try:
            tests.append(compile_filter(look["wanted"]))
        except FilterError as error:
            raise click.UsageError(f"--where: {error}") from None
    return lambda record: all(test(record) for test in tests)


def _show_last(cluster: Cluster, spans: dict[Place, Span], last: int, look: dict[str, Any]) -> None:
    """The last records that pass, oldest first. Reads backwards in growing steps, so a long log costs little."""
    from klamm.cli.asking.reading import Span

    passes = _passes(look)
    begins = {place: span.next for place, span in spans.items()}
    ends = {place: span.end or 0 for place, span in spans.items()}
    found: list[Record] = []
    reach = last
    while True:
        steps = {place: Span(max(begins[place], ends[place] - reach), ends[place]) for place in spans}
        found = [record for record in _reader(cluster, steps, look).read() if passes(record)]
        if len(found) >= last or all(ends[place] - reach <= begins[place] for place in spans):
            break
        reach *= 8
    found.sort(key=lambda record: (record.timestamp, record.topic, record.partition, record.offset))
    _write(found[-last:], look)


def _show(records: Iterator[Record], count: int | None, look: dict[str, Any]) -> None:
    passes = _passes(look)

    def chosen() -> Iterator[Record]:
        left = count
        for record in records:
            if passes(record):
                yield record
                if left is not None:
                    left -= 1
                    if not left:
                        return

    try:
        _write(chosen(), look)
    except KeyboardInterrupt:
        return


def _write(records: Iterable[Record], look: dict[str, Any]) -> None:
    """Write records as they come; flushed whenever there is a pause in them would be too clever, so always."""
    from klamm.cli.output import csv_lines, json_line, yaml_lines
    from klamm.cli.record_format import compile_format, record_row

    decode = look["decode"]
    if look["template"] is not None:
        try:
            template = compile_format(look["template"])
        except ValueError as error:
            raise click.UsageError(f"-f: {error}") from None
        for record in records:
            sys.stdout.buffer.write(template(record))
            sys.stdout.buffer.flush()
        return
    output = look["output"] or default_format()
    if output == "json":
        import json

        click.echo(json.dumps([record_row(record, decode) for record in records], indent=2, ensure_ascii=False))
        return
    head = True
    for record in records:
        row = record_row(record, decode)
        if output == "jsonl":
            click.echo(json_line(row))
        elif output == "yaml":
            click.echo("\n".join(yaml_lines([row])))
        elif output == "csv":
            click.echo("\n".join(csv_lines([row])[0 if head else 1 :]))
        else:
            click.echo(_line(row))
        head = False
        sys.stdout.flush()


def _line(row: dict[str, Any]) -> str:
    """A record for a person: where, when, key and value on one line."""
    from klamm.cli.units import format_time

    where = click.style(f"{row['topic']}/{row['partition']}@{row['offset']}", dim=True)
    when = click.style(format_time(row["timestamp"]), dim=True)
    key = "" if row["key"] is None else click.style(printable(str(row["key"])), bold=True) + "  "
    value = "(null)" if row["value"] is None else printable(str(row["value"]))
    return f"{where}  {when}  {key}{value}"


def _consume_as_member(
    topics: tuple[str, ...], group: str, count: int | None, follow: bool, target: Target, look: dict[str, Any]
) -> None:
    from klamm.cli.members import read_as_member

    settings = target.client(
        "consumer",
        group_id=group,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if look["read_committed"] else "read_uncommitted",
    )
    _show(read_as_member(settings, topics, idle_s=None if follow else 3.0), count, look)
