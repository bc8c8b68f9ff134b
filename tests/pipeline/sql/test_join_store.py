"""The local rows of joined tables: newest versions, hashes, results, and files that cannot be used."""

import random
import sqlite3

import pytest

from klamm.pipeline.sql.join_store import JoinStore, StoredRecord, TooManyRowsError, decode_headers, encode_headers


def record(key, value, offset, *, partition=0, at=0, hashes=(1,)):
    value = None if value is None else value.encode()
    return StoredRecord(key.encode(), partition, offset, at, value, None, hashes, at)


@pytest.fixture
def store(tmp_path):
    opened = JoinStore(str(tmp_path / "joins" / "x.sqlite"), "x", {"t": 1, "u": 2})
    opened.index()
    yield opened
    opened.close()


def values(store, *keys):
    return {row.key.decode(): row.value.decode() for row in store.records("t", [key.encode() for key in keys])}


def test_the_newest_version_counts(store):
    store.apply("t", [record("a", "1", 0), record("b", "2", 1), record("a", "3", 2), record("b", None, 3)])
    assert values(store, "a", "b", "c") == {"a": "3"}
    # Read again, as after a restart.
    store.apply("t", [record("a", "1", 0), record("b", "2", 1)])
    assert values(store, "a", "b") == {"a": "3"}


def newest(records):
    """The rule of `table_records.newest_records`, row by row."""
    rows = {}
    for key in {row.key for row in records}:
        latest = {}
        for row in (candidate for candidate in records if candidate.key == key):
            newer = latest.get(row.partition)
            last = row if newer is None or row.offset > newer[1].offset else newer[1]
            time = row.timestamp_us if newer is None else max(newer[0], row.timestamp_us)
            latest[row.partition] = (time, last)
        _, row = max(latest.values(), key=lambda version: (version[0], version[1].offset))
        if row.value is not None:
            rows[key] = row.value
    return rows


def test_partitions_may_be_read_in_any_order(store):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(60):
        partitions = [
            [
                record(
                    chance.choice("abc"),
                    chance.choice([None, "v", "w", "x"]),
                    # Versions of two partitions with one time and one offset have no order.
                    3 * offset + number,
                    partition=number,
                    at=chance.randrange(6),
                )
                for offset in range(chance.randrange(6))
            ]
            for number in range(3)
        ]
        everything = [row for partition in partitions for row in partition]
        queues = [list(partition) for partition in partitions]
        arrivals = []
        while any(queues):
            arrivals.append(chance.choice([queue for queue in queues if queue]).pop(0))
        with store.transaction():
            store.clear()
            store.apply("t", arrivals)
        kept = {row.key: row.value for row in store.records("t", [b"a", b"b", b"c"])}
        assert kept == newest(everything)


def test_rows_are_found_by_their_hashes(store):
    store.apply("u", [record("a", "1", 0, hashes=(5, 7)), record("b", "1", 1, hashes=(5, None))])
    assert store.keys_by_hash("u", 0, [5, 6]) == {b"a", b"b"}
    assert store.keys_by_hash("u", 1, [7]) == {b"a"}
    assert store.hashes("u", [b"a", b"b"], 1) == {7}
    store.apply("u", [record("a", None, 2, hashes=(5, 7)), record("b", "2", 3, hashes=(6, 7))])
    assert store.keys_by_hash("u", 0, [5]) == set()
    assert store.keys_by_hash("u", 1, [7]) == {b"b"}


def test_a_batch_that_needs_too_much_says_so(store, monkeypatch):
    monkeypatch.setattr("klamm.pipeline.sql.join_store.ROWS_MAX", 2)
    store.apply("t", [record(key, "1", offset) for offset, key in enumerate("abc")])
    assert len(store.records("t", [b"a", b"b"])) == 2
    with pytest.raises(TooManyRowsError):
        store.records("t", [b"a", b"b", b"c"])
    with pytest.raises(TooManyRowsError):
        store.keys_by_hash("t", 0, [1])


def test_results_of_one_key_from_several_roots(store):
    assert store.replace_results([b"r1", b"r2"], [(b"r1", b"k", b"1"), (b"r2", b"k", b"3"), (b"r2", b"m", b"1")]) == [
        (b"k", b"3"),
        (b"m", b"1"),
    ]
    assert store.replace_results([b"r1"], [(b"r1", b"k", b"2")]) == []
    assert store.replace_results([b"r2"], []) == [(b"k", b"2"), (b"m", None)]
    assert store.replace_results([b"r1"], []) == [(b"k", None)]


def test_a_transaction_that_fails_changes_nothing(store):
    def fail():
        with store.transaction():
            store.apply("t", [record("a", "1", 0)])
            store.put("batch", "1")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert values(store, "a") == {}
    assert store.get("batch") is None


def test_a_file_is_kept_for_its_description_only(tmp_path):
    path = str(tmp_path / "x.sqlite")
    first = JoinStore(path, "one", {"t": 1})
    first.apply("t", [record("a", "1", 0)])
    first.close()
    again = JoinStore(path, "one", {"t": 1})
    assert again.count("t") == 1
    again.close()
    other = JoinStore(path, "two", {"t": 2})
    assert other.count("t") == 0
    other.close()


def test_a_damaged_file_is_made_anew(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"no database at all, but long enough to be read as one" * 100)
    store = JoinStore(str(path), "one", {"t": 1})
    assert store.count("t") == 0
    store.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_headers_survive():
    headers = [{"key": "a", "value": b"\x00\xff"}, {"key": "a", "value": None}]
    assert decode_headers(encode_headers(headers)) == headers
    assert decode_headers(encode_headers([])) == []
    assert decode_headers(encode_headers(None)) is None


def test_rows_by_columns_are_those_of_records(store):
    import pyarrow as pa

    from klamm.pipeline.sql import join_frames

    headers = [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    rows = [
        StoredRecord(b"a", 0, 5, 70, b"1", None, (3, None), 90),
        StoredRecord(b"b", 1, 2, 71, None, encode_headers(headers), (4, 5), 71),
        StoredRecord(b"c", 0, 6, 72, b"2", encode_headers([]), (6, 7), 72),
    ]
    place = [
        {"partition": row.partition, "offset": row.offset, "timestamp_us": row.timestamp_us, "latest_us": row.latest_us}
        for row in rows
    ]
    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch(
        {
            "_klamm_key": [row.key for row in rows],
            "_klamm_value": [row.value for row in rows],
            "_klamm_place": place,
            "_klamm_headers": pa.array([None, headers, []], header_type),
            "_klamm_hashes": [list(row.hashes) for row in rows],
        }
    )
    assert list(join_frames._stored_rows(batch)) == [row.row() for row in rows]
    assert list(join_frames._stored_rows(batch.slice(0, 1))) == [rows[0].row()]
    store.clear()
    store.load("u", join_frames._stored_rows(batch))
    store.index()
    kept = store.records("u", [b"a", b"b", b"c"])
    assert [(row.key, row.value, row.headers) for row in kept] == [(b"a", b"1", None), (b"c", b"2", "[]")]
    # With its indexes again, a table is merged with what comes.
    store.load("u", [(b"a", 0, 95, 4, 70, b"older", None, 1, 1), (b"a", 0, 95, 9, 70, b"newer", None, 8, 9)])
    assert [row.value for row in store.records("u", [b"a"])] == [b"newer"]
    assert store.keys_by_hash("u", 1, [9, 5]) == {b"a"}
