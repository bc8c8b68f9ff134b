"""A scan in bulk gives what batch after batch gives: producers, indexes, epochs; compiled and interpreted."""

import random

import pytest

from harness import forms
from klamm.model.ids import TopicPartition
from klamm.records.batch import BatchView
from klamm.records.kernels import recovery
from klamm.storage import Disk, LogConfig, OpenFiles, open_log, segment_scan
from klamm.storage.offset_index import OffsetIndex
from klamm.storage.producer_state import Origin, ProducerStates
from klamm.storage.time_index import TimeIndex

from .conftest import NOW, Home, append_end_txn_marker, batch, from_producer


@pytest.fixture(params=["compiled", "interpreted"])
def _form(request, monkeypatch):
    monkeypatch.setattr(segment_scan, "recovery", getattr(forms, request.param)(recovery))
    monkeypatch.setattr(segment_scan, "_CHUNK", 700)


pytestmark = pytest.mark.usefixtures("_form")


def lives(home: Home, seed: int, *, producers: int = 6, steps: int = 150):
    """A log with producers, transactions, two leaders and a batch larger than a chunk."""
    chance = random.Random(seed)
    log = home.open(segment_bytes=1 << 20, index_interval_bytes=300)
    sequences = dict.fromkeys(range(producers), 0)
    epochs = dict.fromkeys(range(producers), 0)
    transactions = set()
    for step in range(steps):
        leader = step // (steps // 2 + 1)
        who = chance.randrange(producers + 1)
        if who == producers:
            size = 2000 if step == steps // 3 else chance.randrange(1, 60)
            log.append_as_leader(batch(value=b"v" * size, timestamp=NOW + chance.randrange(5000)), leader, NOW)
        elif who in transactions and chance.random() < 0.3:
            transactions.discard(who)
            append_end_txn_marker(
                log,
                who,
                epochs[who],
                committed=chance.random() < 0.5,
                coordinator_epoch=1,
                leader_epoch=leader,
                now_ms=NOW,
            )
        else:
            if who not in transactions and chance.random() < 0.1:
                epochs[who], sequences[who] = epochs[who] + 1, 0
            if who % 2:
                transactions.add(who)
            count = chance.randrange(1, 4)
            log.append_as_leader(
                from_producer(
                    sequences[who],
                    count,
                    producer_id=who,
                    epoch=epochs[who],
                    transactional=bool(who % 2),
                    timestamp=NOW + chance.randrange(5000),
                ),
                leader,
                NOW,
            )
            sequences[who] += count
    return log


def one_by_one(log) -> tuple[ProducerStates, bytes, bytes]:
    """What it comes to without any kernel."""
    producers, unindexed, largest = ProducerStates(), 0, (-1, 0)
    index, times = OffsetIndex(0, bytearray()), TimeIndex(0, bytearray())
    for position, data in log.segments[0].batches():
        view = BatchView(data)
        producers.append(view, Origin.REPLICATION)
        if view.max_timestamp > largest[0]:
            largest = (view.max_timestamp, view.last_offset)
        if unindexed > log.config.index_interval_bytes:
            index.append(view.last_offset, position)
            times.maybe_append(*largest)
            unindexed = 0
        unindexed += view.size
    return producers, bytes(index.buffer), bytes(times.buffer)


def states(producers: ProducerStates) -> dict:
    return {producer_id: entry.state() for producer_id, entry in producers.entries.items()}


@pytest.mark.parametrize("seed", range(8))
def test_recovery_finds_what_one_by_one_finds(home, seed):
    log = lives(home, seed)
    producers, index, times = one_by_one(log)
    again = home.crash().open(segment_bytes=1 << 20, index_interval_bytes=300)
    assert again.log_end_offset == log.log_end_offset
    assert states(again.producers) == states(producers)
    assert again.producers.open_transactions() == producers.open_transactions()
    assert list(again.producers.open_transactions()) == sorted(producers.open_transactions())
    segment = again.segments[0]
    assert bytes(segment.index.buffer) == index
    assert bytes(segment.time_index.buffer) == times
    assert segment.max_timestamp == log.segments[0].max_timestamp
    assert segment.bytes_since_index == log.segments[0].bytes_since_index
    assert segment.txn_index.entries() == log.segments[0].txn_index.entries()
    assert again.leader_epochs.entries() == log.leader_epochs.entries()


def test_lost_leader_epochs_are_learnt_from_the_batches(home):
    log = lives(home, 3)
    copy = home.crash()
    (copy.path / "leader-epoch-checkpoint").unlink()
    assert copy.open(index_interval_bytes=300).leader_epochs.entries() == log.leader_epochs.entries()


def test_more_producers_than_the_table_has_slots(home):
    log = home.open()
    for producer_id in range(600):
        log.append_as_leader(from_producer(0, producer_id=producer_id), 0, NOW)
    again = home.crash().open()
    assert states(again.producers) == states(one_by_one(log)[0])


def test_a_tail_that_ends_inside_a_large_batch_is_cut(home):
    log = home.open()
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(batch(value=b"v" * 5000), 0, NOW)
    copy = home.crash()
    path = copy.path / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-10])
    assert copy.open().log_end_offset == 1


def test_rebuilding_stops_in_the_middle(home):
    """A truncation rebuilds producers up to an offset that other batches follow in the file."""
    log = lives(home, 5)
    middle = log.log_end_offset // 2
    log.truncate_to(middle)
    again = open_log(
        str(home.crash().path),
        TopicPartition("topic", 0),
        LogConfig(),
        disk=Disk(),
        files=OpenFiles(8),
        now_ms=NOW,
    )
    assert states(again.producers) == states(one_by_one(log)[0])
