from pathlib import Path

import pytest

from klamm.model.errors import CorruptBatch
from klamm.records.batch import BatchView
from klamm.storage.disk import Disk
from klamm.storage.producer_snapshots import ProducerSnapshots, decode, encode
from klamm.storage.producer_state import MAX_SEQUENCE, Origin, ProducerStates

from .conftest import NOW, PRODUCER, from_producer


def some_producers() -> ProducerStates:
    states = ProducerStates("t-0")
    for view in (
        from_producer(0, 3, base_offset=10),
        from_producer(3, 2, base_offset=13),
        from_producer(MAX_SEQUENCE - 1, 4, producer_id=8, epoch=2, base_offset=20),
        from_producer(0, producer_id=9, base_offset=30, transactional=True),
    ):
        states.append(BatchView(view), Origin.CLIENT)
    return states


def test_a_snapshot_keeps_the_last_batch_of_every_producer():
    entries = {entry.producer_id: entry for entry in decode(encode(some_producers().entries.values()))}
    assert entries[PRODUCER].batches == ((3, 4, 13, 14, NOW + 1),)
    assert entries[PRODUCER].next_sequence == 5
    assert entries[8].batches == ((MAX_SEQUENCE - 1, 1, 20, 23, NOW + 3),)
    assert (entries[8].epoch, entries[8].next_sequence) == (2, 2)
    assert entries[9].txn_first_offset == 30


def test_every_changed_byte_is_noticed():
    good = encode(some_producers().entries.values())
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 1
        with pytest.raises(CorruptBatch):
            decode(bytes(bad))
    for length in range(len(good)):
        with pytest.raises(CorruptBatch):
            decode(good[:length])


def test_a_damaged_snapshot_gives_way_to_an_older_one(tmp_path: Path):
    snapshots = ProducerSnapshots(Disk(), str(tmp_path))
    snapshots.take(40, some_producers().entries.values())
    snapshots.take(50, [])
    (tmp_path / f"{50:020d}.snapshot").write_bytes(b"nonsense")
    latest = ProducerSnapshots(Disk(), str(tmp_path)).latest(0, 100)
    assert latest is not None
    assert latest[0] == 40
    assert not (tmp_path / f"{50:020d}.snapshot").exists()


def test_only_snapshots_inside_the_log_count(tmp_path: Path):
    snapshots = ProducerSnapshots(Disk(), str(tmp_path))
    for offset in (10, 20, 30):
        snapshots.take(offset, [])
    assert snapshots.latest(0, 25)[0] == 20
    assert snapshots.latest(20, 25)[0] == 20
    assert snapshots.latest(21, 25) is None
    snapshots.remove_outside(15, 25)
    assert snapshots.offsets() == [20]


def test_strays_go_except_the_one_a_clean_stop_left(tmp_path: Path):
    snapshots = ProducerSnapshots(Disk(), str(tmp_path))
    for offset in (10, 15, 20, 27):
        snapshots.take(offset, [])
    snapshots.remove_strays([0, 10, 20])
    assert snapshots.offsets() == [10, 20, 27]
