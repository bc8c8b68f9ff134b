"""Batches of aiokafka and kafka-python are read here, and ours there: every codec, both ways."""

import warnings
from types import SimpleNamespace

import aiokafka.record.control_record as aiokafka_control
import aiokafka.record.default_records as aiokafka_records
import cramjam
import pytest

from klamm.records import BatchView, Codec, build_batch, decode_batch
from klamm.records.checking import RecordCheck
from klamm.records.control import build_end_txn_marker

with warnings.catch_warnings():  # kafka-python reads its own files by a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_python_records

ROWS = [
    (1_700_000_000_000, b"table-4", b"goulash", [("waiter", b"anna"), ("note", None), ("empty", b"")]),
    (1_700_000_000_900, None, b"soup", []),
    (1_699_999_999_000, b"tombstone", None, []),
    (1_700_000_000_001, b"", b"", [("größe", b"\x00\xff")]),
    (1_700_000_000_001, None, None, []),
    *[(1_700_000_000_002 + i, b"k%d" % i, b"value " * i, []) for i in range(300)],
]
READERS = {
    "aiokafka": aiokafka_records.DefaultRecordBatch,
    "aiokafka, interpreted": aiokafka_records._DefaultRecordBatchPy,
    "kafka-python": kafka_python_records.DefaultRecordBatch,
}
WRITERS = {
    "aiokafka": aiokafka_records.DefaultRecordBatchBuilder,
    "aiokafka, interpreted": aiokafka_records._DefaultRecordBatchBuilderPy,
    "kafka-python": kafka_python_records.DefaultRecordBatchBuilder,
}


@pytest.fixture(autouse=True)
def _snappy_for_kafka_python(monkeypatch):
    """kafka-python looks for python-snappy, which is a cover over cramjam: give it the same cover."""
    cover = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    monkeypatch.setattr(kafka.codec, "snappy", cover)
    monkeypatch.setattr(kafka_python_records.codecs, "has_snappy", lambda: True)


def foreign_rows(reader, batch):
    """(offset, timestamp, key, value, headers) of every record as another client reads them."""
    batch = reader(bytes(batch))
    assert batch.validate_crc()
    return [
        (
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            [(name, None if value is None else bytes(value)) for name, value in record.headers],
        )
        for record in batch
    ]


def expected_rows(base_offset):
    return [(base_offset + i, t, k, v, h) for i, (t, k, v, h) in enumerate(ROWS)]


@pytest.mark.parametrize("codec", list(Codec), ids=lambda c: c.name.lower())
@pytest.mark.parametrize("name", READERS)
def test_others_read_ours(name, codec):
    batch = build_batch(
        ROWS, base_offset=77, codec=codec, producer_id=5, producer_epoch=1, base_sequence=9, transactional=True
    )
    assert foreign_rows(READERS[name], batch) == expected_rows(77)
    view = READERS[name](bytes(batch))
    assert (view.base_offset, view.compression_type, view.is_transactional) == (77, codec, True)
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == (5, 1, 9)
    assert (view.max_timestamp, view.is_control_batch) == (max(r[0] for r in ROWS), False)


@pytest.mark.parametrize("codec", list(Codec), ids=lambda c: c.name.lower())
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("transactional", [False, True])
def test_we_read_others(name, codec, transactional):
    builder = WRITERS[name](
        magic=2,
        compression_type=int(codec),
        is_transactional=transactional,
        producer_id=5,
        producer_epoch=1,
        base_sequence=9,
        batch_size=1 << 20,
    )
    for index, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(index, timestamp=timestamp, key=key, value=value, headers=headers)
    batch = bytearray(builder.build())
    view = BatchView(batch)
    view.check_crc()
    assert (view.size, view.record_count, view.codec) == (len(batch), len(ROWS), codec)
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == (5, 1, 9)
    assert view.is_transactional is transactional
    assert view.max_timestamp == max(r[0] for r in ROWS)
    view.set_offset_and_epoch(1000, 3)
    assert [(*r[:4], list(r.headers)) for r in decode_batch(batch)] == expected_rows(1000)
    check = RecordCheck(view, "orders-0", keyed=True)
    check.feed(view.unpacked_records())
    check.finish()
    assert [note.offset_delta for note in check.noted] == [i for i, row in enumerate(ROWS) if row[1] is None]
    assert check.largest_timestamp == view.max_timestamp


@pytest.mark.parametrize("name", WRITERS)
def test_uncompressed_batches_are_equal_byte_for_byte(name):
    builder = WRITERS[name](
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for index, (timestamp, key, value, headers) in enumerate(ROWS):
        builder.append(index, timestamp=timestamp, key=key, value=value, headers=headers)
    theirs = bytearray(builder.build())
    view = BatchView(theirs)
    assert theirs == build_batch(ROWS, leader_epoch=view.leader_epoch)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("name", READERS)
def test_others_see_log_append_time(name, codec):
    batch = build_batch(ROWS, codec=codec)
    BatchView(batch).set_log_append_time(123_456)
    assert {row[1] for row in foreign_rows(READERS[name], batch)} == {123_456}
    assert READERS[name](bytes(batch)).timestamp_type == 1


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("name", READERS)
def test_others_see_the_end_of_a_transaction(name, committed):
    batch = build_end_txn_marker(
        committed=committed, producer_id=5, producer_epoch=1, coordinator_epoch=4, timestamp=9, base_offset=3
    )
    view = READERS[name](bytes(batch))
    assert view.is_control_batch
    assert view.is_transactional
    record = next(iter(view))
    if name == "kafka-python":
        assert (record.commit, record.abort) == (committed, not committed)
    else:
        marker = aiokafka_control.COMMIT_MARKER if committed else aiokafka_control.ABORT_MARKER
        assert aiokafka_control.ControlRecord.parse(record.key) == marker
