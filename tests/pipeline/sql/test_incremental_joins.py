"""Tables of tables that are computed for changed rows only: always what computing all of them gives."""

import json
import os
import random
from functools import reduce

import pytest

from klamm.pipeline.sql import compile_text, incremental_joins, join_store
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.engine import Engine
from klamm.pipeline.sql.folder_topics import FolderTopics, Raw
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(600)

DECLARED = """
CREATE TABLE a (id STRING, x INT, y STRING) WITH (key = 'id');
CREATE TABLE b (id STRING, x INT, z STRING) WITH (key = 'id');
CREATE TABLE c (id BIGINT, z STRING) WITH (key = 'id');
"""


def on(left, right):
    return left is not None and left == right


def left_join(rows, others, matches):
    """Pairs, with None where nothing matches."""
    return [(row, other) for row in rows for other in [o for o in others if matches(row, o)] or [None]]


def join(rows, others, matches):
    return [(row, other) for row in rows for other in others if matches(row, other)]


def get(row, column):
    return None if row is None else row[column]


# Each SELECT with what Python makes of the same tables.
SELECTS = {
    "by_key": (
        "SELECT a.id, a.x, b.z FROM a LEFT JOIN b ON a.y = b.id",
        lambda a, b, c: [
            {"id": r["id"], "x": r["x"], "z": get(o, "z")} for r, o in left_join(a, b, lambda r, o: on(r["y"], o["id"]))
        ],
    ),
    "by_value": (
        "SELECT a.y AS id, a.x, b.z FROM a JOIN b ON a.x = b.x AND b.z <> 'z0'",
        lambda a, b, c: [
            {"id": r["y"], "x": r["x"], "z": o["z"]}
            for r, o in join(a, b, lambda r, o: on(r["x"], o["x"]) and o["z"] not in (None, "z0"))
        ],
    ),
    "with_itself": (
        "SELECT a.id, p.x AS px, p.id AS pid FROM a LEFT JOIN a p ON a.y = p.id",
        lambda a, b, c: [
            {"id": r["id"], "px": get(o, "x"), "pid": get(o, "id")}
            for r, o in left_join(a, a, lambda r, o: on(r["y"], o["id"]))
        ],
    ),
    "through_another": (
        "SELECT a.id, b.x, c.z FROM a JOIN b ON a.y = b.id LEFT JOIN c ON b.x = c.id",
        lambda a, b, c: [
            {"id": r["id"], "x": o["x"], "z": get(n, "z")}
            for (r, o), n in left_join(
                join(a, b, lambda r, o: on(r["y"], o["id"])), c, lambda pair, n: on(pair[1]["x"], n["id"])
            )
        ],
    ),
    "alone": (
        "SELECT * FROM a WHERE x > 1",
        lambda a, b, c: [dict(r) for r in a if r["x"] is not None and r["x"] > 1],
    ),
    "without": (
        "SELECT a.id, a.x FROM a LEFT ANTI JOIN b ON a.y = b.id",
        lambda a, b, c: [
            {"id": r["id"], "x": r["x"]} for r, o in left_join(a, b, lambda r, o: on(r["y"], o["id"])) if o is None
        ],
    ),
    "right_side": (
        "SELECT b.id, a.id AS aid, b.z FROM a RIGHT JOIN b ON a.y = b.id AND a.x <=> b.x",
        lambda a, b, c: [
            {"id": r["id"], "aid": get(o, "id"), "z": r["z"]}
            for r, o in left_join(b, a, lambda r, o: on(o["y"], r["id"]) and o["x"] == r["x"])
        ],
    ),
    "same_names": (
        "SELECT a.*, b.z FROM a JOIN b USING (id)",
        lambda a, b, c: [{**r, "z": o["z"]} for r, o in join(a, b, lambda r, o: on(r["id"], o["id"]))],
    ),
}


class Tables:
    """A pipeline over folders, whose batches a test runs one by one; a restart keeps only the folders."""

    def __init__(self, spark, folder, names, extra=""):
        self._spark = spark
        self._folder = str(folder)
        statements = "".join(f"CREATE TABLE {name} WITH (key = 'id') AS {SELECTS[name][0]};\n" for name in names)
        self.pipeline = compile_text(DECLARED + statements + extra, "joins.sql")
        self.topics = FolderTopics(os.path.join(self._folder, "topics"))
        self.rows = {"a": {}, "b": {}, "c": {}}
        self.names = names
        self._ends = dict.fromkeys("abc", 0)
        self.number = -1
        self.restart()

    def restart(self):
        session = self._spark.newSession()
        identity = QueryIdentity("x", "joins", {}, {}).renew(self.pipeline)
        for name in "abc":
            self.topics.records(name)  # makes its folder
        engine = Engine(session, self.pipeline, self.topics, os.path.join(self._folder, "checkpoints"), identity)
        engine.build()
        self.session = session
        self.joins = {name: engine._writers.table_joins(self.pipeline.node(name)) for name in self.names}
        assert all(self.joins.values()), self.joins

    def change(self, table, key, row):
        value = None if row is None else json.dumps({"id": key, **row}).encode()
        self.topics.add(table, [Raw(str(key).encode(), value)])
        if row is None:
            self.rows[table].pop(key, None)
        else:
            self.rows[table][key] = {"id": key, **row}

    def plan(self):
        """Return the next batch of each query: the records that none of them has read."""
        self.number += 1
        ends = {name: self.topics.end(name)[name]["0"] for name in "abc"}
        parts = [
            self.topics.read_all(self.session, name).where(f"offset >= {self._ends[name]} AND offset < {ends[name]}")
            for name in "abc"
        ]
        self._ends = ends
        return reduce(lambda left, right: left.unionAll(right), parts)

    def save(self, batch, name):
        tables = ", ".join(f"'{table}'" for table in self.pipeline.node(name).tables)
        self.joins[name].save(batch.where(f"topic IN ({tables})"), self.number)

    def batch(self):
        rows = self.plan()
        for name in self.names:
            self.save(rows, name)

    def result(self, name):
        newest = {record["key"]: record["value"] for record in self.topics.records(name)}
        return {key: value for key, value in newest.items() if value is not None}

    def expected(self, name):
        whole = {}
        for row in SELECTS[name][1](*(list(self.rows[table].values()) for table in "abc")):
            if row["id"] is None:
                continue
            key, value = str(row["id"]).encode(), json.dumps(row, separators=(",", ":")).encode()
            whole[key] = max(whole.get(key, b""), value)
        return whole

    def check(self):
        for name in self.names:
            assert self.result(name) == self.expected(name), f"{name} after batch {self.number}"
            changes = [(record["key"], record["value"]) for record in self.topics.records(name)]
            newest = {}
            for key, value in changes:
                assert newest.get(key) != value, f"{name} has {key} written again"
                newest[key] = value


def random_change(chance, tables):
    table = chance.choice("aabbc")
    key = chance.randrange(4) if table == "c" else f"k{chance.randrange(6)}"
    if chance.random() < 0.25:
        return tables.change(table, key, None)
    row = {
        "a": lambda: {"x": chance.choice([None, 0, 1, 2, 3]), "y": chance.choice([None, *(f"k{n}" for n in range(6))])},
        "b": lambda: {"x": chance.choice([None, 0, 1, 2, 3]), "z": chance.choice([None, "z0", "z1", "z2"])},
        "c": lambda: {"z": chance.choice([None, "z0", "z1"])},
    }[table]()
    return tables.change(table, key, row)


@pytest.mark.long
def test_random_joins_are_what_python_computes(spark, tmp_path, monkeypatch):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    tables = Tables(spark, tmp_path, list(SELECTS))
    rebuilt = []
    original = incremental_joins.TableJoins._rebuild
    monkeypatch.setattr(
        incremental_joins.TableJoins,
        "_rebuild",
        lambda self, *args: (rebuilt.append(self._node.name), original(self, *args)),
    )
    for batch in range(7):
        for _ in range(chance.choice([1, 4, 12])):
            random_change(chance, tables)
        if batch == 3:
            tables.restart()
        tables.batch()
        tables.check()
    # The first batch fills the stores; a restart continues with them.
    assert sorted(rebuilt) == sorted(SELECTS)


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    "point", ["before the write", pytest.param("after the write", marks=pytest.mark.long), "after the store"]
)
def test_a_batch_that_dies_is_run_again(spark, tmp_path, monkeypatch, point):
    tables = Tables(spark, tmp_path, ["by_key"])
    for number in range(3):
        tables.change("a", f"k{number}", {"x": number, "y": "k1"})
    tables.change("b", "k1", {"x": 1, "z": "z1"})
    tables.batch()
    tables.check()
    # The row that leaves takes its join value with it, and the rows that joined it must still be found.
    tables.change("b", "k1", None)
    tables.change("a", "k0", {"x": 7, "y": "k2"})
    rows = tables.plan()
    write = tables.topics.write

    def die(*args):
        if point == "after the write":
            write(*args)
        raise KilledError

    if point == "after the store":
        tables.save(rows, "by_key")
    else:
        monkeypatch.setattr(tables.topics, "write", die)
        with pytest.raises(KilledError):
            tables.save(rows, "by_key")
        monkeypatch.undo()
    tables.restart()
    tables.save(rows, "by_key")
    tables.check()
    tables.change("b", "k2", {"x": 1, "z": "z2"})
    tables.batch()
    tables.check()


@pytest.mark.parametrize(
    "lost", ["removed", *(pytest.param(how, marks=pytest.mark.long) for how in ("damaged", "of an earlier batch"))]
)
def test_a_store_that_cannot_be_used_is_made_anew(spark, tmp_path, monkeypatch, lost):
    tables = Tables(spark, tmp_path, ["through_another"])
    tables.change("a", "k0", {"x": 1, "y": "k1"})
    tables.change("b", "k1", {"x": 1, "z": "z1"})
    tables.batch()
    (path,) = tmp_path.glob("checkpoints/*/klamm/joined.sqlite")
    before = path.read_bytes()
    tables.change("c", 1, {"z": "z1"})
    tables.batch()
    if lost == "removed":
        path.unlink()
    else:
        path.write_bytes(b"x" * 5000 if lost == "damaged" else before)
    tables.restart()
    tables.change("c", 1, {"z": "z0"})
    reads = []
    between = tables.topics.between

    def read(session, start, end):
        reads.extend(end)
        return between(session, start, end)

    monkeypatch.setattr(tables.topics, "between", read)
    tables.batch()
    tables.check()
    # The store and the join are made of one read.
    assert sorted(reads) == ["a", "b", "c"]


@pytest.mark.long
def test_a_change_of_many_rows_computes_all(spark, tmp_path, monkeypatch):
    tables = Tables(spark, tmp_path, ["by_key", "by_value"])
    tables.change("b", "k1", {"x": 1, "z": "z1"})
    for number in range(8):
        tables.change("a", f"k{number}", {"x": 1, "y": "k1"})
    tables.batch()
    monkeypatch.setattr(incremental_joins, "ROWS_MAX", 4)
    monkeypatch.setattr(join_store, "ROWS_MAX", 4)
    tables.change("b", "k1", {"x": 1, "z": "z2"})
    tables.batch()
    tables.check()
    tables.change("a", "k2", None)
    tables.batch()
    tables.check()


LOOKUPS = """
CREATE STREAM s (id INT, x BIGINT, y STRING) WITH (key = 'id');
CREATE STREAM one WITH (key = 'id') AS SELECT s.id, a.x, a.y FROM s LEFT JOIN a ON s.y = a.id;
CREATE STREAM two WITH (key = 'id') AS
  SELECT s.id, a.id AS aid, b.z FROM s JOIN a ON s.x = a.x LEFT JOIN b ON a.y = b.id AND b.z > 'z0';
"""


def test_a_stream_finds_the_rows_of_each_step(spark, monkeypatch):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    # So that a table of a few rows is also brought up to date in the way of a large one.
    monkeypatch.setattr(incremental_joins, "_LOAD_OFFSETS", 5)
    a, b, steps, one, two = {}, {}, [], [], []
    for step in range(4):
        changes = {"a": [], "b": [], "s": []}
        for _ in range(chance.choice([2, 9])):
            name, table = chance.choice([("a", a), ("b", b)])
            key = f"k{chance.randrange(5)}"
            if chance.random() < 0.2:
                table.pop(key, None)
                changes[name].append(Raw(key.encode(), None))
                continue
            link = chance.choice([None, "k1", "k2", "k3"])
            row = (
                {"x": chance.choice([None, 1, 2]), "y": link}
                if name == "a"
                else {"x": 0, "z": f"z{chance.randrange(3)}"}
            )
            table[key] = {"id": key, **row}
            changes[name].append(Raw(key.encode(), json.dumps(table[key]).encode()))
        for number in range(6):
            row = {"id": 10 * step + number, "x": chance.choice([None, 1, 2, 3]), "y": f"k{chance.randrange(6)}"}
            changes["s"].append(row)
            match = a.get(row["y"])
            one.append({"id": row["id"], "x": get(match, "x"), "y": get(match, "y")})
            two += [
                {"id": row["id"], "aid": r["id"], "z": get(o, "z")}
                for r, o in left_join(
                    [r for r in a.values() if on(row["x"], r["x"])],
                    list(b.values()),
                    lambda r, o: on(r["y"], o["id"]) and o["z"] > "z0",
                )
            ]
        steps.append(changes)
    out = run(DECLARED + LOOKUPS, steps, spark=spark)
    out.expect("one", one)
    out.expect("two", two)
