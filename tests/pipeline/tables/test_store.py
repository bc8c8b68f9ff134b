"""Rows and positions in DuckDB, without a broker: which version of a key counts, and what a restart finds."""

import itertools
import random

import pyarrow as pa
import pytest

from klamm.pipeline.tables.core.field_types import FieldType
from klamm.pipeline.tables.queries import QueryLimits
from klamm.pipeline.tables.record_reader import DELETED, KEY, OFFSET, PARTITION, TIME
from klamm.pipeline.tables.store import TableStore

COLUMNS = [("id", FieldType("STRING")), ("n", FieldType("BIGINT"))]
LIMITS = QueryLimits(memory_bytes=256 << 20)


def versions(*records):
    """Rows of (partition, offset, time, key, n); n None deletes."""
    columns = list(zip(*records, strict=True))
    return pa.table(
        {
            KEY: pa.array([key.encode() for key in columns[3]], pa.binary()),
            PARTITION: pa.array(columns[0], pa.int32()),
            OFFSET: pa.array(columns[1], pa.int64()),
            TIME: pa.array(columns[2], pa.int64()),
            DELETED: [n is None for n in columns[4]],
            "id": pa.array(columns[3], pa.string()),
            "n": pa.array(columns[4], pa.int64()),
        }
    )


@pytest.fixture
def open_store(tmp_path):
    stores = []

    def make(folder=None, description="v1", columns=COLUMNS, **options):
        store = TableStore(None if folder is None else str(tmp_path / folder), LIMITS, **options)
        stores.append(store)
        store.add_table("t", "topic", ["id"], columns, description)
        return store

    yield make
    for store in stores:
        store.close()


def apply(store, *records, **options):
    with store.transaction() as transaction:
        transaction.apply("t", versions(*records), **options)


def rows(store):
    return dict(store.connection.execute("SELECT id, n FROM t").fetchall())


def test_the_last_record_of_a_key_counts(open_store):
    store = open_store()
    apply(store, (0, 0, 5, "a", 1), (0, 1, 4, "b", 1), (0, 2, 3, "a", 2))
    assert rows(store) == {"a": 2, "b": 1}
    apply(store, (0, 3, 1, "a", 3), (0, 4, 9, "b", None))
    assert rows(store) == {"a": 3}
    apply(store, (0, 5, 9, "b", 7))
    assert rows(store) == {"a": 3, "b": 7}
    apply(store, (0, 1, 99, "a", 0))  # read again
    assert rows(store) == {"a": 3, "b": 7}


def test_a_key_that_moves_to_another_partition(open_store):
    """Offsets say nothing between partitions: the old one may be far ahead."""
    store = open_store()
    apply(store, (0, 1000, 10, "a", 1))
    apply(store, (3, 0, 20, "a", 2))
    assert rows(store) == {"a": 2}
    store = open_store()
    apply(store, (3, 0, 20, "a", 2))
    apply(store, (0, 1000, 10, "a", 1))
    assert rows(store) == {"a": 2}


def newest(records):
    """The rule, in plain Python: of each partition the last record, with its key's latest time; then the latest."""
    last: dict = {}
    for partition, offset, time, key, n in sorted(records):
        before = last.get((key, partition))
        last[key, partition] = (max(time, before[0] if before else time), offset, n)
    result: dict = {}
    for (key, _), version in last.items():
        if key not in result or version[:2] > result[key][:2]:
            result[key] = version
    return {key: n for key, (_, _, n) in result.items() if n is not None}


@pytest.mark.parametrize("seed", range(25))
def test_the_result_does_not_depend_on_the_order_of_partitions(open_store, seed):
    source = random.Random(seed)
    times = itertools.count(1)
    pool = [next(times) for _ in range(200)]
    source.shuffle(pool)  # no two records have the same time: producers' clocks may go back, not stand still
    logs = {
        partition: [
            (partition, offset, pool.pop(), source.choice("abcd"), source.choice([None, 1, 2, 3, 4]))
            for offset in range(source.randrange(12))
        ]
        for partition in range(3)
    }
    everything = [record for log in logs.values() for record in log]
    expected = newest(everything)
    for _ in range(3):
        store = open_store()
        waiting = {partition: list(log) for partition, log in logs.items() if log}
        while waiting:
            batch = []
            for partition in source.sample(sorted(waiting), source.randint(1, len(waiting))):
                size = source.randint(1, len(waiting[partition]))
                batch += waiting[partition][:size]
                del waiting[partition][:size]
                if not waiting[partition]:
                    del waiting[partition]
            apply(store, *batch)
        assert rows(store) == expected, (seed, logs)


def test_deleted_keys_stay_until_nothing_older_can_come(open_store):
    store = open_store()
    apply(store, (1, 0, 20, "a", None))
    apply(store, (0, 7, 10, "a", 1))
    assert rows(store) == {}
    with store.transaction() as transaction:
        transaction.purge_deleted(20)
    apply(store, (0, 7, 10, "a", 1))
    assert rows(store) == {}
    with store.transaction() as transaction:
        transaction.purge_deleted(21)
    assert store.connection.execute('SELECT count(*) FROM klamm."rows of t"').fetchone() == (0,)


def test_a_key_column_that_is_not_in_the_key(open_store):
    store = open_store()
    first, second = versions((0, 0, 1, "a", 1)), versions((0, 1, 2, "a", 2))
    moved = second.set_column(second.column_names.index("id"), "id", pa.array(["b"]))
    for batch in (first, moved):
        with store.transaction() as transaction:
            transaction.apply("t", batch, keys_may_change=True)
    assert rows(store) == {"b": 2}
    assert store.connection.execute("SELECT n FROM t WHERE id = 'b'").fetchall() == [(2,)]


def test_rows_and_positions_change_together(open_store):
    store = open_store("kept")

    def fail_midway():
        with store.transaction() as transaction:
            transaction.apply("t", versions((0, 0, 1, "a", 1)))
            transaction.move("t", "topic-id", {0: 1})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_midway()
    assert rows(store) == {}
    assert store.positions("t").offsets == {}
    with store.transaction() as transaction:
        transaction.apply("t", versions((0, 0, 1, "a", 1)))
        transaction.move("t", "topic-id", {0: 1, 2: 9})
        transaction.count_bad("t", 3)
    store.close()
    again = open_store("kept")
    assert rows(again) == {"a": 1}
    assert again.positions("t") == type(again.positions("t"))("topic-id", {0: 1, 2: 9})
    assert again.bad_count("t") == 3
    apply(again, (0, 1, 2, "a", 2), (0, 2, 2, "b", 5))
    assert rows(again) == {"a": 2, "b": 5}


def test_another_declaration_starts_again(open_store):
    store = open_store("kept")
    with store.transaction() as transaction:
        transaction.apply("t", versions((0, 0, 1, "a", 1)))
        transaction.move("t", "topic-id", {0: 1})
    store.close()
    again = open_store("kept", description="v2")
    assert rows(again) == {}
    assert again.positions("t").offsets == {}


def test_a_damaged_store_is_built_anew(open_store, tmp_path):
    store = open_store("kept")
    apply(store, (0, 0, 1, "a", 1))
    store.close()
    (tmp_path / "kept" / "tables.duckdb").write_bytes(b"no database at all" * 1000)
    again = open_store("kept")
    assert rows(again) == {}
    apply(again, (0, 0, 1, "a", 1))
    assert rows(again) == {"a": 1}


def test_columns_that_become_more_and_wider(open_store):
    store = open_store()
    apply(store, (0, 0, 1, "a", 1))
    with store.transaction() as transaction:
        wider = [("id", FieldType("STRING")), ("n", FieldType("DOUBLE")), ("tag", FieldType("STRING"))]
        transaction.set_columns("t", wider, {"id": "STRING", "n": "DOUBLE", "tag": "STRING"})
        batch = versions((0, 1, 2, "b", 2)).append_column("tag", pa.array(["x"]))
        transaction.apply("t", batch)
    assert store.connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [("a", 1.0, None), ("b", 2.0, "x")]
    assert store.inferred_types("t") == {"id": "STRING", "n": "DOUBLE", "tag": "STRING"}


def test_a_reader_sees_whole_transactions(open_store):
    store = open_store()
    apply(store, (0, 0, 1, "a", 1))
    reader = store.connection.cursor()
    with store.transaction() as transaction:
        transaction.apply("t", versions((0, 1, 2, "a", 2), (0, 2, 2, "b", 2)))
        assert reader.execute("SELECT id, n FROM t").fetchall() == [("a", 1)]
    assert sorted(reader.execute("SELECT id, n FROM t").fetchall()) == [("a", 2), ("b", 2)]
    reader.close()
