"""Control batches: markers and raft's own records."""

import pytest

from klamm.model.errors import CorruptBatch
from klamm.records import BatchView, build_batch
from klamm.records.control import (
    ControlRecord,
    ControlType,
    EndTxnMarker,
    build_control_batch,
    build_control_batches,
    build_end_txn_marker,
    control_key,
    control_records,
    end_txn_marker,
    parse_control_key,
    parse_end_txn_marker,
)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_end(committed):
    batch = build_end_txn_marker(
        committed=committed, producer_id=7, producer_epoch=3, coordinator_epoch=12, timestamp=99, base_offset=40
    )
    view = BatchView(batch)
    view.check_crc()
    assert (view.is_control, view.is_transactional) == (True, True)
    assert (view.producer_id, view.producer_epoch, view.base_sequence, view.record_count) == (7, 3, -1, 1)
    assert end_txn_marker(view) == EndTxnMarker(committed, 12)
    assert view.decode()[0].key == bytes([0, 0, 0, committed])
    assert view.decode()[0].value == bytes([0, 0, 0, 0, 0, 12])


def test_rafts_records_carry_opaque_values():
    batch = build_control_batch(ControlType.LEADER_CHANGE, b"leader", timestamp=5, base_offset=3, leader_epoch=2)
    view = BatchView(batch)
    assert (view.is_control, view.is_transactional, view.leader_epoch) == (True, False, 2)
    assert control_records(view) == [ControlRecord(3, 5, 0, 2, b"leader")]
    assert end_txn_marker(view) is None


def test_a_snapshot_opens_with_several_records():
    kinds = [(ControlType.SNAPSHOT_HEADER, b"h"), (ControlType.KRAFT_VERSION, b"v"), (ControlType.KRAFT_VOTERS, b"vs")]
    view = BatchView(build_control_batches(kinds, timestamp=5))
    assert [(r.offset, r.type, r.value) for r in control_records(view)] == [(0, 3, b"h"), (1, 5, b"v"), (2, 6, b"vs")]


def test_types_and_versions_of_later_releases_are_read():
    view = BatchView(build_batch([(0, control_key(900, 5) + b"more", b"", ())], control=True))
    assert control_records(view)[0][2:4] == (5, 900)
    assert parse_end_txn_marker(ControlRecord(0, 0, 1, 1, b"\0\1\0\0\0\7more")) == EndTxnMarker(
        committed=True, coordinator_epoch=7
    )


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\1"])
def test_broken_keys(key):
    with pytest.raises(CorruptBatch):
        parse_control_key(key)


def test_what_is_no_marker():
    assert end_txn_marker(BatchView(build_batch([(0, b"k", b"v", ())], transactional=True))) is None
    empty = build_batch([], last_offset_delta=0, transactional=True, control=True, producer_id=1, producer_epoch=0)
    assert end_txn_marker(BatchView(empty)) is None
    with pytest.raises(CorruptBatch):
        control_records(BatchView(build_batch([(0, b"k", b"v", ())])))
    for record in (
        ControlRecord(0, 0, 0, 2, bytes(6)),
        ControlRecord(0, 0, 0, 1, bytes(5)),
        ControlRecord(0, 0, 0, 1, b"\xff" * 6),
    ):
        with pytest.raises(CorruptBatch):
            parse_end_txn_marker(record)
