"""What reopened logs must hold, and what they may: every sentence of the promise, one check each."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from klamm.model.clock import ManualClock
from klamm.model.ids import ZERO_UUID, TopicPartition
from klamm.records import build_batch, iter_batches
from klamm.storage import Log, LogManager, StorageConfig
from klamm.storage.offline_check import check_folders
from klamm.storage.segment_check import UNCLEANED

from .model import Batch, Partition, Replay, State, replay
from .moves import SteppedMoves, log_dirs, settle
from .trace import QuickDisk
from .workload import CLUSTER, LATEST, NODE, START_MS, config_for


@dataclass(frozen=True)
class Expectation:
    """The states around a cut. `power`: what was not synced may be lost. `ordered`: names change in order."""

    before: State
    after: State
    power: bool = False
    ordered: bool = True


CLOCK = ManualClock(START_MS + 100_000)
LATER_EPOCH = 1000
"""Who leads after a crash does so in an epoch that was never used, whatever the log remembers."""


def reopen(folder: str, state: State) -> LogManager:
    """Open the folders as a broker would; `state` stands for the metadata."""
    config = StorageConfig(log_dirs=log_dirs(folder), recovery_threads_per_dir=1)
    manager = LogManager(config, clock=CLOCK, disk=QuickDisk())
    manager.start(CLUSTER, NODE, format_empty=True, config_for=config_for)
    settle(manager, state)
    return manager


def findings(folder: str, expected: Expectation, chance: random.Random) -> list[str]:
    """Reopen a folder and list what is not as promised."""
    state = {**expected.after, **expected.before}
    try:
        manager = reopen(folder, state)
    except Exception as error:  # noqa: BLE001 - whatever a start raises is a finding
        return [f"the start failed: {type(error).__name__}: {error}"]
    problems = []
    for partition in sorted(expected.before.keys() | expected.after.keys()):
        try:
            problems += [f"{partition}: {what}" for what in _check_partition(manager, partition, expected, chance)]
        except Exception as error:  # noqa: BLE001
            problems.append(f"{partition}: looking at it failed: {type(error).__name__}: {error}")
    known = expected.before.keys() | expected.after.keys()
    problems += [f"{log.name} came back" for log in manager.logs() if log.topic_partition not in known]
    try:
        problems += _finish_moves(manager, expected)
    except Exception as error:  # noqa: BLE001
        problems.append(f"going on with a move failed: {type(error).__name__}: {error}")
    before = {log.topic_partition: _summary(log) for log in manager.logs()}
    try:
        manager.close()
        manager = reopen(folder, state)
    except Exception as error:  # noqa: BLE001
        return [*problems, f"the second start failed: {type(error).__name__}: {error}"]
    for log in manager.logs():
        if _summary(log) != before.get(log.topic_partition):
            problems.append(f"{log.name} differs after a clean stop: {_summary(log)} was {before[log.topic_partition]}")
    manager.close()
    return [*problems, *_checked(folder)]


def _finish_moves(manager: LogManager, expected: Expectation) -> list[str]:
    """Let the copies that were found become what they are copies of."""
    problems: list[str] = []
    moves = SteppedMoves(manager, CLOCK, lambda *_: None)
    moves.resume()
    for move in moves.under_way:
        source, wanted = move.source, _batches(move.source)
        moves.finish(move)
        log = manager.get(*source.topic_partition)
        assert log is move.future
        start = log.log_start_offset
        held = [batch for batch in _batches(log) if batch.last >= start]
        # A copy that began after records were deleted remembers that, even if nothing else does.
        known = [facts.get(source.topic_partition) for facts in (expected.before, expected.after)]
        latest = max(source.log_start_offset, *(facts.start for facts in known if facts is not None))
        if held != [batch for batch in wanted if batch.last >= start] or start > latest:
            problems.append(f"{log.name} holds {_shown(held)} from {start} on after a move, not {_shown(wanted)}")
        problems += [f"{log.name} after a move {what}" for what in _differences(log, source)]
    return problems


def _differences(log: Log, source: Log) -> Iterator[str]:
    for name in ("log_end_offset", "high_watermark", "last_stable_offset", "topic_id"):
        if getattr(log, name) != getattr(source, name) and getattr(log, name) != log.log_start_offset:
            yield f"has the {name} {getattr(log, name)}, not {getattr(source, name)}"
    for epoch, start in source.leader_epochs.entries():
        end = source.end_offset_for_epoch(epoch)
        if end[1] > max(start, log.log_start_offset) and log.end_offset_for_epoch(epoch) != end:
            yield f"ends epoch {epoch} at {log.end_offset_for_epoch(epoch)}, not {end}"
    start, end = log.log_start_offset, log.log_end_offset
    # A transaction that was open before the copy begins is none to the copy, and so may its last stable offset differ.
    aborted = {txn[:3] for txn in source.aborted_transactions(start, end) if txn.first_offset >= start}
    if missing := aborted - {txn[:3] for txn in log.aborted_transactions(start, end)}:
        yield f"does not know the aborted transactions {missing}"


def _checked(folder: str) -> list[str]:
    """What `klamm storage check` has to say. The cleaner's checkpoint comes last in a round, so holes may be news."""
    return [
        f"check says {problem}"
        for problem in check_folders(list(log_dirs(folder))).problems
        if UNCLEANED not in problem.what or f"/{LATEST}/" not in problem.path
    ]


def _check_partition(manager: LogManager, partition: TopicPartition, expected: Expectation, chance) -> list[str]:
    log = manager.get(*partition)
    before, after = expected.before.get(partition), expected.after.get(partition)
    if log is None:
        if before is None or after is None:
            return []
        if expected.power and not min(before.recovery_point, after.recovery_point):
            return []  # its folder was new and nothing in it was synced
        return [f"is missing; synced up to {before.recovery_point}"]
    known = [facts for facts in (before, after) if facts is not None]
    ids = {facts.topic_id for facts in known} | ({ZERO_UUID} if expected.power else set())
    if log.topic_id not in ids and (expected.power or before is not None):
        return [f"has the topic id {log.topic_id!r}"]
    log.set_topic_id(log.topic_id if log.topic_id != ZERO_UUID else known[0].topic_id)  # as the metadata log says
    batches = _batches(log)
    histories = [facts.batches for facts in known]
    if expected.power:
        histories += [branch for facts in known for branch in facts.branches]
    if known[0].compacted:
        return _check_compacted(log, batches, known, expected, chance)
    history = next((candidate for candidate in histories if not batches or _is_piece(batches, candidate)), None)
    if history is None:
        return [f"holds {_shown(batches)}, which is no piece of {_shown(known[-1].batches)}"]
    replayed = replay(tuple(batch for batch in history if batch.base < log.log_end_offset))
    return [
        *_check_end(log, batches, known, expected),
        *_check_start(log, known, expected),
        *_check_lookups(log, batches, replayed, chance),
        *(_check_producers(log, replayed, expected) if batches else ()),
        *_check_writable(log),
    ]


def _batches(log: Log) -> tuple[Batch, ...]:
    """Everything in the files, segment by segment."""
    batches = []
    for segment in log.segments:
        end = 0
        for position, data in segment.batches():
            batches.append(Batch.of(data))
            end = position + len(data)
        assert end == segment.size, f"segment {segment.base_offset} has {segment.size - end} bytes after its last batch"
    return tuple(batches)


def _check_compacted(
    log: Log, batches: tuple[Batch, ...], known: list[Partition], expected: Expectation, chance: random.Random
) -> list[str]:
    """Every record is one that was written; of every key, the newest is there, and no tombstone's victim without it."""
    # A log whose unsynced batches are all lost begins anew at its saved start, which may lie inside one of them.
    history = tuple(batch for batch in known[-1].batches if batch.last < log.log_end_offset)
    written = {offset: row for offset, row in _keyed(history) if offset < log.log_end_offset}
    held = dict(_keyed(batches))
    problems = [f"offset {o} holds {held[o]}, not {written.get(o)}" for o in held if held[o] != written.get(o)]
    if list(held) != sorted(held):
        problems.append(f"offsets are out of order: {list(held)}")
    first = log.log_start_offset
    newest = {key: offset for offset, (key, _) in written.items()}
    for key, offset in newest.items():
        gone = written[offset][1] is None and not any(k == key for o, (k, _) in held.items() if o >= first)
        if offset >= first and offset not in held and not gone:
            problems.append(f"the newest {key!r} at {offset} is not there; the log ends at {log.log_end_offset}")
    needed = min(facts.recovery_point for facts in known) if expected.power else _agreed(known)
    if log.log_end_offset < needed:
        problems.append(f"ends at {log.log_end_offset}; {needed} was promised")
    return [
        *problems,
        *_check_start(log, known, expected),
        *_check_lookups(log, batches, replay(history), chance),
        *_check_producers(log, replay(history), expected, compacted=True),
        *_check_writable(log),
    ]


def _keyed(batches: tuple[Batch, ...]) -> Iterator[tuple[int, tuple[bytes | None, bytes | None]]]:
    for batch in batches:
        for view in iter_batches(batch.data):
            if not view.is_control:
                yield from ((row[0], (row[2], row[3])) for row in view.decode_rows())


def _check_end(log: Log, batches, known: list[Partition], expected: Expectation) -> list[str]:
    """The log reaches at least as far as was promised, with what was last written there."""
    first = log.segments[0].base_offset
    end = batches[-1].last + 1 if batches else first
    if log.log_end_offset != max(end, log.log_start_offset):
        return [f"ends at {end} and says {log.log_end_offset}"]
    if len({facts.begin for facts in known}) > 1:
        return []  # it was just being emptied
    needed = min(facts.recovery_point for facts in known) if expected.power else _agreed(known)
    if log.log_end_offset < needed:
        return [f"ends at {log.log_end_offset}; {needed} was promised"]
    lasting = [b for b in known[-1].batches if b.last < needed and b.base >= first]
    if list(batches[: len(lasting)]) != lasting:
        return [f"holds {_shown(batches)} instead of {_shown(lasting)}"]
    return []


def _agreed(known: list[Partition]) -> int:
    """How far the states before and after a step agree: a crash inside the step may leave either."""
    end = known[0].begin
    for one, other in zip(known[0].batches, known[-1].batches, strict=False):
        if one != other:
            break
        end = one.last + 1
    return end


def _is_piece(batches: tuple[Batch, ...], history: tuple[Batch, ...]) -> bool:
    at = next((i for i, batch in enumerate(history) if batch.base == batches[0].base), None)
    return at is not None and history[at : at + len(batches)] == batches


def _check_start(log: Log, known: list[Partition], expected: Expectation) -> list[str]:
    lowest = min(facts.saved_start for facts in known)
    if log.log_start_offset > max(facts.start for facts in known):
        return [f"starts at {log.log_start_offset}, beyond {max(facts.start for facts in known)}"]
    if log.log_start_offset < lowest and not (expected.power and not expected.ordered):
        return [f"starts at {log.log_start_offset}, though {lowest} was saved"]
    if not expected.power and log.segments[0].base_offset < min(facts.first for facts in known):
        return [f"has a segment {log.segments[0].base_offset} that was removed"]
    mark = min(min(facts.saved_mark, facts.end) for facts in known)
    if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
        return [f"has the high watermark {log.high_watermark} outside of its offsets"]
    if log.high_watermark < min(mark, log.log_end_offset):
        return [f"has the high watermark {log.high_watermark}, though {mark} was saved"]
    return []


def _check_lookups(log: Log, batches: tuple[Batch, ...], replayed: Replay, chance: random.Random) -> list[str]:
    """Indexes, lookups and epochs agree with the batches."""
    problems = []
    at = {}
    for segment in log.segments:
        places = {position: Batch.of(data) for position, data in segment.batches()}
        index, times = segment.offset_index(), segment.times()
        for i in range(len(index)):
            offset, position = index.entry(i)
            if position not in places or places[position].last != offset:
                problems.append(f"index entry {i} of {segment.base_offset} leads to {position}, no batch of {offset}")
        for i in range(len(times)):
            timestamp, offset = times.entry(i)
            if max((b.timestamp for b in places.values() if b.last <= offset), default=-2) != timestamp:
                problems.append(f"time index entry {i} of {segment.base_offset} is wrong: {timestamp} at {offset}")
        at.update({batch.base: segment for batch in places.values()})
    visible = [batch for batch in batches if batch.last >= log.log_start_offset]
    for batch in chance.sample(visible, min(len(visible), 8)):
        offset = max(batch.base, log.log_start_offset)
        piece = log.read(offset, 1, log.log_end_offset)
        if piece is None or piece.read() != batch.data:
            problems.append(f"reading {offset} does not give its batch")
        if log.leader_epochs.epoch_for_offset(offset) != batch.epoch:
            problems.append(f"offset {offset} belongs to epoch {batch.epoch}, not {log.leader_epochs.entries()}")
        wanted = batch.timestamp
        expected = next(((o, t) for o, t in _records(visible) if t >= wanted and o >= log.log_start_offset), None)
        result = log.offset_for_timestamp(wanted)
        if (result and (result.offset, result.timestamp)) != expected:
            problems.append(f"time {wanted} is at {expected}, not {result}")
    first = log.segments[0].base_offset
    ended = [txn for txn in replayed.aborted if txn[2] >= first]
    indexed = {(t.producer_id, t.first_offset, t.last_offset) for t in log.aborted_transactions(0, log.log_end_offset)}
    if missing := [txn for txn in ended if txn not in indexed]:
        problems.append(f"aborted transactions {missing} are unknown")
    markers = {batch.base for batch in batches if batch.marker and not batch.marker.committed}
    if wrong := [txn for txn in indexed if txn[2] not in markers]:
        problems.append(f"aborted transactions {wrong} never were")
    return problems


def _records(batches: list[Batch]):
    for batch in batches:
        for view in iter_batches(batch.data):
            yield from ((row[0], row[1]) for row in view.decode_rows())


def _check_producers(log: Log, replayed: Replay, expected: Expectation, *, compacted: bool = False) -> list[str]:
    """What the log knows of its producers is what its records say; compaction leaves each at least its last batch."""
    first = log.segments[0].base_offset
    wanted = replayed.producers
    problems = []
    for producer_id, producer in wanted.items():
        entry = log.producers.entries.get(producer_id)
        newest = max((met[3] for met in producer.batches), default=-1)
        if entry is None:
            if newest >= first or not expected.power:
                problems.append(f"producer {producer_id} is unknown")
            continue
        facts = (entry.epoch, entry.coordinator_epoch, entry.txn_first_offset)
        if facts != (producer.epoch, producer.coordinator_epoch, producer.txn_first_offset):
            problems.append(f"producer {producer_id} is {facts}, not {producer}")
        # A snapshot keeps the time of the producer's last batch or marker, whichever came later.
        kept, met = ([batch[:4] for batch in batches] for batches in (entry.batches, producer.batches))
        recent = [batch for batch in met if batch in kept] if compacted else met[len(met) - len(kept) :]
        if recent != kept or kept[-1:] != met[-1:]:
            problems.append(f"producer {producer_id} has the batches {kept}, not {met}")
    problems += [f"producer {entry} never wrote here" for entry in log.producers.entries if entry not in wanted]
    return problems


def _check_writable(log: Log) -> list[str]:
    end = log.log_end_offset
    batch = memoryview(build_batch([(START_MS, b"k", b"after", ())]))
    if log.append_as_leader(batch, LATER_EPOCH, START_MS) != end:
        return [f"gives the next record another offset than {end}"]
    return []


def _summary(log: Log) -> tuple:
    producers = {
        entry.producer_id: (
            entry.epoch,
            entry.coordinator_epoch,
            entry.txn_first_offset,
            [met[:4] for met in entry.batches[-1:]],
        )
        for entry in log.producers.entries.values()
    }
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.leader_epochs.entries(),
        tuple((segment.base_offset, segment.size) for segment in log.segments),
        producers,
        log.aborted_transactions(0, log.log_end_offset),
    )


def _shown(batches) -> str:
    return ",".join(f"{b.base}-{b.last}@{b.epoch}" for b in list(batches)[-12:])
