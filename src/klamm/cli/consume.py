"""`klamm consume` and `klamm tail`: records by partition, offset, time, key and filter, in any form."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

import click

from klamm.cli.command_errors import refuses
from klamm.cli.completion_candidates import complete_topic
from klamm.cli.output import FORMATS, note
from klamm.cli.record_format import DECODINGS
from klamm.cli.record_schemas import REGISTRY
from klamm.cli.registry_address import registry_address_options
from klamm.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from klamm.cli.partition_reader import Span
    from klamm.cli.queries.offsets import PartitionPair
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.client.filter.expression import Filter
    from klamm.client.types import Record

_ANSWER_S: Final = 5.0
"""How long a command that follows waits for a response before it reports the outage."""

_LETTERS: Final = """
\b
-f: %t topic  %p partition  %o offset  %k key  %v value  %h headers
    %T milliseconds  %d time  %K and %S bytes of key and value  %%
    \\n \\t \\xNN

\b
--where: key, value, value.field, headers["name"], topic, partition,
    offset, timestamp, size; and or not; == != < <= > >= in; + - * / %;
    len lower upper number text exists startswith endswith contains like
"""

_FORMATTING = (
    click.option("-f", "--format", "template", metavar="TEXT", help=r"As in kcat: '%t %o %k %v\n'; all letters below."),
    click.option(
        "-o", "--output", type=click.Choice(FORMATS), help="Form.  [default: lines on a terminal, jsonl elsewhere]"
    ),
    click.option("--decode", type=click.Choice(DECODINGS), default="text", help="What keys and values are shown as."),
    click.option("--value", "value_form", type=click.Choice((*DECODINGS, REGISTRY)), help="The same for values only."),
    click.option("--key-form", type=click.Choice((*DECODINGS, REGISTRY)), help="The same for keys only."),
    click.option("--where", "wanted", metavar="EXPR", help="Only records that pass, e.g. 'value.price > 10'."),
    click.option("--key", "keys", multiple=True, metavar="KEY", help="Only records with this key."),
    click.option("-p", "--partition", "partitions", multiple=True, type=click.IntRange(0), help="Only this one."),
    click.option("--read-committed", is_flag=True, help="Leave out what was aborted or is not committed yet."),
)


def _formatting(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_FORMATTING):
        command = option(command)
    return registry_address_options(command)


@click.command(epilog=_LETTERS)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("--from", "start", metavar="POSITION", help="earliest, latest, an offset, -N from the end, or a time.")
@click.option("--since", metavar="TIME", help="From this time on: 2h, 2026-05-01T12:00:00Z.")
@click.option("--until", metavar="TIME", help="Up to this time.")
@click.option("--to", "end", metavar="OFFSET", type=click.IntRange(0), help="Up to this offset, which is not read.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after so many records that pass.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="The last N records, of all partitions together.")
@click.option("--follow", is_flag=True, help="Do not stop at the end, wait for more until Ctrl-C.")
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
    """Read records from TOPIC, by default everything there is now.

    \b
    klamm consume orders --since 2h --where 'value.total > 100' -o jsonl
    klamm consume orders -p 3 --from 1200 -n 10 -f '%o %k %v\\n'
    klamm consume orders --key customer-7 --last 5
    klamm consume orders --value registry --where 'value.city == "Bonn"'
    """  # noqa: D301 - click wants the character itself
    if sum(option is not None for option in (start, since, last)) > 1:
        raise click.UsageError("--from, --since and --last exclude each other; write one of them")
    view = _ConsumeOptions(look, target, follow=follow)
    if group is not None:
        if start or since or until or last or end is not None:
            raise click.UsageError("a group continues from its committed offsets; move them with `klamm group seek`")
        if look["partitions"]:
            raise click.UsageError("a group shares out the partitions itself; leave -p out")
        view.show(_as_member(topics, group, target, view), count, eager=True)
        return
    _check_times(start, since, until)
    with target.cluster() as cluster:
        spans = _spans(cluster, topics, view, start, since, until, end)
        before: list[Record] = []
        if last is not None:
            before = _last(cluster, spans, last, view)
            # What follows the last records is read by the same reader, from where the backward search ended.
            for span in spans.values():
                span.next, span.end = span.end or 0, None if follow else span.end
        view.show(_reader(cluster, spans, view).read(), count, before)


class _Tail(click.Command):
    """Explains `tail -f TOPIC`, the habit of other tools: -f is the format here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; where -f has taken the topic as its value, the error shows how to write it."""
        written = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            if "-f" not in written:
                raise
            word = next(iter(written[written.index("-f") + 1 :]), "TOPIC")
            raise click.UsageError(
                f"-f is the format here, and tail follows by itself: klamm tail {word}", ctx
            ) from None


@click.command(cls=_Tail, epilog=_LETTERS)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic)
@click.option("-n", "--last", type=click.IntRange(0), default=10, show_default=True, help="How many to begin with.")
@click.option("--no-follow", is_flag=True, help="Stop at the end.")
@_formatting
@cluster_options
@refuses
def tail(*, topics: tuple[str, ...], last: int, no_follow: bool, target: Target, **look: Any) -> None:
    """Show the last records of TOPIC, and those to come until Ctrl-C."""
    view = _ConsumeOptions(look, target, follow=not no_follow)
    with target.cluster() as cluster:
        spans = _spans(cluster, topics, view, None, None, None, None, ends_now=True)
        before = _last(cluster, spans, last, view) if last else []
        for span in spans.values():
            span.next, span.end = span.end or 0, span.end if no_follow else None
        view.show(_reader(cluster, spans, view).read(), None, before)


class _ConsumeOptions:
    """Which records are printed and in which form, from the options that both commands share."""

    def __init__(self, look: dict[str, Any], target: Target, *, follow: bool) -> None:
        from klamm.cli.partition_reader import PATIENCE_S
        from klamm.cli.record_format import Decodings, compile_format
        from klamm.cli.record_output import LINES
        from klamm.cli.record_schemas import SchemaDecoder
        from klamm.client.filter.expression import FilterError, compile_filter

        self.follow = follow
        self.patience_s = target.timeout_s if target.bounds_waits else PATIENCE_S
        self.partitions: tuple[int, ...] = look["partitions"]
        self.committed: bool = look["read_committed"]
        self.filter: Filter | None = None
        self._keys = {key.encode() for key in look["keys"]}
        self._template: str | None = look["template"]
        forms = {"key": look["key_form"] or look["decode"], "value": look["value_form"] or look["decode"]}
        registered = frozenset(part for part, form in forms.items() if form == REGISTRY)
        # What a registry's schema decodes is JSON from then on.
        self._decode = Decodings(**{part: "json" if part in registered else form for part, form in forms.items()})
        self._schemas = SchemaDecoder(look["registry"], registered) if registered else None
        # Lines are for people; a pipe gets what jq reads.
        self._form: str = look["output"] or (LINES if sys.stdout.isatty() else "jsonl")
        if self._template is not None:
            if look["output"]:
                raise click.UsageError("-f and -o exclude each other; write one of them")
            try:
                # Compiled once to find mistakes before the first request.
                compile_format(self._template)
            except ValueError as error:
                raise click.UsageError(f"-f: {error}") from None
        if look["wanted"]:
            try:
                self.filter = compile_filter(look["wanted"])
            except FilterError as error:
                raise click.UsageError(f"--where: {error}") from None

    def decode(self, records: Iterable[Record]) -> Iterator[Record]:
        """Decode keys and values that have schemas; --key and --where see the result."""
        return iter(records) if self._schemas is None else map(self._schemas.decode, records)

    def passes(self, record: Record) -> bool:
        """Whether a record passes --key and --where."""
        if self._keys and record.key not in self._keys:
            return False
        return self.filter is None or self.filter(record)

    def show(
        self,
        records: Generator[Record, None, None],
        count: int | None = None,
        before: Iterable[Record] = (),
        *,
        eager: bool = False,
    ) -> None:
        """Write `before`, and of `records` those that pass. Ctrl-C and SIGTERM are the way to end what follows."""
        from klamm.cli.record_output import write_formatted, write_records
        from klamm.cli.signals import leave_full_pipe

        # `before` has passed the filter already; judging it again would count its misses twice.
        passing = itertools.chain(before, (record for record in self.decode(records) if self.passes(record)))
        chosen: Iterator[Record] = itertools.islice(passing, count)
        try:
            with contextlib.closing(records):
                try:
                    if self._template is not None:
                        write_formatted(chosen, self._template)
                    else:
                        write_records(chosen, self._form, self._decode, eager=eager or self.follow)
                except (KeyboardInterrupt, OSError) as error:
                    # What was being written was not: a member of a group gives it back before it leaves.
                    with contextlib.suppress(type(error)):
                        records.throw(error)
                    raise
        except KeyboardInterrupt:
            leave_full_pipe()
            # Ctrl-C is how a command that follows ends, so it is a success; elsewhere the output is incomplete and
            # exits 130.
            if not self.follow:
                raise
        finally:
            if self._schemas is not None:
                self._schemas.report()
            self._report_unjudged()

    def _report_unjudged(self) -> None:
        if self.filter is None:
            return
        for sentence in self.filter.misses.sentences():
            note(sentence)
        if self.filter.unjudged:
            from klamm.model.units import pluralize

            many = pluralize(self.filter.unjudged, "record")
            note(f"--where could not judge {many}, which did not pass: {self.filter.reason}")


def _check_times(start: str | None, since: str | None, until: str | None) -> None:
    from klamm.cli.queries.offsets import InvalidPosition, check_position
    from klamm.model.units import parse_time_ms

    try:
        for moment in (since, until):
            if moment is not None:
                parse_time_ms(moment, 0)
        if start is not None:
            check_position(start)
    except (InvalidPosition, ValueError) as error:
        raise click.UsageError(str(error)) from None


def _reader(cluster: BlockingCluster, spans: dict[PartitionPair, Span], view: _ConsumeOptions) -> Any:
    from klamm.cli.outage import Outage
    from klamm.cli.partition_reader import PartitionReader

    # A range has an end that a script waits for, so an outage must fail; a command that follows waits as long as it
    # runs.
    endless = any(span.end is None for span in spans.values())
    outage = Outage(None, note) if endless else Outage(view.patience_s)
    return PartitionReader(cluster, spans, committed=view.committed, outage=outage)


def _spans(
    cluster: BlockingCluster,
    topics: tuple[str, ...],
    view: _ConsumeOptions,
    start: str | None,
    since: str | None,
    until: str | None,
    end: int | None,
    *,
    ends_now: bool = False,
) -> dict[PartitionPair, Span]:
    """What to read of each partition; it has an end unless it is followed."""
    from klamm.cli.partition_reader import Span
    from klamm.cli.queries.offsets import EARLIEST, end_offsets, list_offsets, resolve_position
    from klamm.model.units import parse_time_ms

    places = _places(cluster, topics, view.partitions)
    now = int(time.time() * 1000)
    if since is not None:
        begin = resolve_position(cluster, places, str(parse_time_ms(since, now)), committed=view.committed)
    elif start is not None:
        begin = resolve_position(cluster, places, start, committed=view.committed)
        _note_beyond_end(start, begin)
    else:
        begin = list_offsets(cluster, places, EARLIEST)
    # The end is fixed before reading: a topic that is written to all the time would never be read to its end.
    ends: dict[PartitionPair, int | None] = dict.fromkeys(places)
    if until is not None:
        ends.update(resolve_position(cluster, places, str(parse_time_ms(until, now)), committed=view.committed))
    elif ends_now or not view.follow:
        # read_committed ends at the last stable offset: a reader never gets past an open transaction.
        ends.update(end_offsets(cluster, places, committed=view.committed))
        if view.committed and not view.follow:
            _note_open_transactions(cluster, ends)
    # --to counts in every partition, and only shortens what --until or the log end allow.
    if end is not None:
        ends = {place: end if stop is None else min(end, stop) for place, stop in ends.items()}
    # A partition without a leader has no offset; the reader waits for one from 0 on.
    return {place: Span(begin.get(place, 0), ends[place]) for place in places}


def _places(cluster: BlockingCluster, topics: tuple[str, ...], partitions: tuple[int, ...]) -> list[PartitionPair]:
    from klamm.cli.queries.topics import find_topics
    from klamm.model.errors import ErrorCode, KlammError
    from klamm.model.units import pluralize

    places: list[PartitionPair] = []
    for topic in find_topics(cluster, topics):
        held = [p.partition for p in topic.partitions]
        for index in partitions:
            if index not in held:
                message = f"{topic.name} has {pluralize(len(held), 'partition')}, and none is number {index}"
                message += f"; `klamm topic show {topic.name}` lists them"
                raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        places += [(topic.name, index) for index in held if not partitions or index in partitions]
    return places


def _note_beyond_end(start: str, begin: dict[PartitionPair, int]) -> None:
    """An offset that no partition has reached yet reads nothing, which looks like a topic without records."""
    from klamm.cli.queries.offsets import is_offset

    if is_offset(start) and begin and all(int(start) > offset for offset in begin.values()):
        (topic, partition), end = max(begin.items(), key=itemgetter(1))
        others = f", the other {len(begin) - 1} no later" if len(begin) > 1 else ""
        note(f"there is no offset {start} yet: {topic}-{partition} ends at {end}{others}")


def _note_open_transactions(cluster: BlockingCluster, ends: dict[PartitionPair, int | None]) -> None:
    """What an open transaction keeps back looks like records that are missing."""
    from klamm.cli.queries.offsets import end_offsets

    for (topic, partition), last in sorted(end_offsets(cluster, ends).items()):
        stable = ends[topic, partition]
        if stable is not None and stable < last:
            note(f"{topic}-{partition} is read up to offset {stable}: an open transaction keeps back what follows")


def _last(cluster: BlockingCluster, spans: dict[PartitionPair, Span], last: int, view: _ConsumeOptions) -> list[Record]:
    """The last records that pass, oldest first. Reads backwards in growing steps, so a long log costs little."""
    from klamm.cli.partition_reader import Span

    begins = {place: span.next for place, span in spans.items()}
    ends = {place: span.end or 0 for place, span in spans.items()}
    reach = last
    while True:
        # Each round judges the records of the last one again: only the last round may be reported.
        if view.filter is not None:
            view.filter.forget_unjudged()
        steps = {place: Span(max(begins[place], ends[place] - reach), ends[place]) for place in spans}
        records = [record for record in view.decode(_reader(cluster, steps, view).read()) if view.passes(record)]
        if len(records) >= last or all(ends[place] - reach <= begins[place] for place in spans):
            break
        # A rare key may need the whole log: with a factor of 8 all rounds together read at most a seventh more than the
        # last.
        reach *= 8
    # Partitions have no common order but time; offsets keep the order within a partition when timestamps are equal.
    records.sort(key=attrgetter("timestamp", "topic", "partition", "offset"))
    return records[-last:]


def _as_member(
    topics: tuple[str, ...], group: str, target: Target, view: _ConsumeOptions
) -> Generator[Record, None, None]:
    from klamm.cli.group_reader import Silence, read_what_is_there
    from klamm.cli.queries.topics import find_topics

    # A blocked probe would delay Ctrl-C and the message about the outage.
    cluster = dataclasses.replace(target, timeout_s=min(target.timeout_s, _ANSWER_S)).cluster()
    # A command that follows keeps the connection for its probes until the process ends.
    with cluster if not view.follow else contextlib.nullcontext():
        find_topics(cluster, topics)
        cluster.refresh_brokers()
    settings = target.client(
        "consumer",
        group_id=group,
        # The command promises everything there is; the default of clients, latest, would print nothing for a new group.
        auto_offset_reset="earliest",
        isolation_level="read_committed" if view.committed else "read_uncommitted",
        # A commit that no broker takes is given up soon and tried again: meanwhile nothing could be read.
        default_api_timeout_ms=int(_ANSWER_S * 1000) if view.follow and not target.bounds_waits else None,
    )

    def note_waiting() -> None:
        note(f"waiting for the group {group} to give partitions; `klamm group show {group}` shows who has them")

    return read_what_is_there(
        settings, topics, note_waiting, Silence(cluster.refresh_brokers, note) if view.follow else None
    )
