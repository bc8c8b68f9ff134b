"""Sources on Spark and a cluster: a database, files and a clock into topics, each row once, over restarts."""

import json
import shutil
from pathlib import Path

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.jdbc_cursors import CursorRange
from klamm.pipeline.sql.dead_letters import DeadLetters
from klamm.pipeline.sql.jdbc_positions import JdbcPositions
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.testing import run

pytestmark = pytest.mark.timeout(600)
EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline" / "sql"

TEXT = """
CREATE SOURCE orders (id INT, item STRING, price DECIMAL(8, 2), sold TIMESTAMP) WITH (
  connector = 'jdbc', url = '${{KLAMM_TEST_DB}}', table = 'orders', cursor = 'id', delay = '0 seconds', batch_size = 2,
  user = 'APP', password = 'hush-hush', topic = '{orders}', key = 'id');
CREATE SOURCE changes WITH (
  connector = 'jdbc', url = '${{KLAMM_TEST_DB}}', cursor = 'SOLD', delay = '0 seconds', user = 'APP',
  topic = '{changes}', query = 'SELECT item, sold FROM orders WHERE price > 1', batch_size = 2);
CREATE SOURCE lines (word STRING NOT NULL, n INT) WITH (
  connector = 'files', path = '{folder}', topic = '{lines}', key = 'word', dead_letter_topic = '{letters}');
CREATE SOURCE ticks WITH (connector = 'rate', rows_per_second = 50, topic = '{ticks}');
"""


@pytest.fixture
def database(spark, monkeypatch, klamm_name):
    """A table in Derby, which is among Spark's jars, inside the JVM of the session."""
    url = f"jdbc:derby:memory:{klamm_name('db').replace('-', '_').replace('.', '_')}"
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    manager = spark._jvm.java.sql.DriverManager
    connection = manager.getConnection(f"{url};create=true;user=APP")

    def execute(*statements):
        for text in statements:
            statement = connection.createStatement()
            statement.execute(text)
            statement.close()

    execute("CREATE TABLE orders (id INT, item VARCHAR(20), price DECIMAL(8, 2), sold TIMESTAMP)")
    monkeypatch.setenv("KLAMM_TEST_DB", url)
    yield execute
    connection.close()
    with pytest.raises(Exception, match="dropped"):
        manager.getConnection(f"{url};drop=true;user=APP")


def insert(number, item, price, second):
    return f"INSERT INTO orders VALUES ({number}, '{item}', {price}, TIMESTAMP('2026-01-01 00:00:0{second}'))"


def rows(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return [(row["key"], json.loads(row["value"])) for row in table.to_pylist()]


def test_a_database_files_and_a_clock(spark, patiently, database, klamm_broker, klamm_name, tmp_path):
    names = {name: klamm_name(name) for name in ("orders", "changes", "lines", "letters", "ticks")}
    folder, home = tmp_path / "in", tmp_path / "home"
    folder.mkdir()
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(home), "partitions": "1", "name": "sources"}
    pipeline = compile_text(TEXT.format(folder=folder, **names), "sources.sql", settings)
    reports = []

    def run():
        patiently(run_pipeline, pipeline, once=True, spark=spark, report=reports.append)

    # Two orders of one number and three of one time, where a batch would end between them.
    database(insert(1, "tea", 2, 1), insert(2, "cup", 3, 1), insert(2, "mug", "4.50", 1), insert(7, "tin", 1, 2))
    (folder / "one.json").write_text('{"word": "a", "n": 1}\n{"word": "b", "n": "many"}\n{"n": 2}\n')
    run()

    def order(number, item, price, second):
        return str(number).encode(), {
            "id": number,
            "item": item,
            "price": price,
            "sold": f"2026-01-01T00:00:0{second}.000000Z",
        }

    first = [order(1, "tea", 2.0, 1), order(2, "cup", 3.0, 1), order(2, "mug", 4.5, 1), order(7, "tin", 1.0, 2)]
    orders = rows(klamm_broker, names["orders"])
    assert sorted(orders, key=str) == sorted(first, key=str)
    assert [row["id"] for _, row in orders] == [1, 2, 2, 7]
    assert sorted(row["ITEM"] for _, row in rows(klamm_broker, names["changes"])) == ["cup", "mug", "tea"]
    assert rows(klamm_broker, names["lines"]) == [(b"a", {"word": "a", "n": 1})]
    letters = DeadLetters(pipeline, "lines", {})
    bad = sorted(letters.read(10), key=lambda letter: letter.error)
    assert [(row.value, row.error) for row in bad] == [
        (b'{"word": "b", "n": "many"}', "the value is no JSON of word STRING, n INT"),
        (b'{"n": 2}', "word is null"),
    ]
    assert bad[0].topic.endswith("one.json")
    with pytest.raises(ConfigError, match="lines reads files"):
        letters.redrive()

    # The marks of what is done are lost, and the rate begins anew from its own: nothing is written again.
    for source in ("orders", "changes"):
        shutil.rmtree(home / f"{source}.0" / "commits")
    database(insert(8, "pot", 5, 2), "UPDATE orders SET sold = TIMESTAMP('2026-01-01 00:00:05') WHERE id = 1")
    (folder / "two.json").write_text('{"word": "c", "n": 3}\n')
    run()
    orders = rows(klamm_broker, names["orders"])
    assert [row["id"] for _, row in orders] == [1, 2, 2, 7, 8]
    assert orders[-1] == order(8, "pot", 5.0, 2)
    changes = [row for _, row in rows(klamm_broker, names["changes"])]
    assert sorted(change["ITEM"] for change in changes) == ["cup", "mug", "pot", "tea", "tea"]
    assert {change["SOLD"] for change in changes} == {f"2026-01-01T00:00:0{second}.000000Z" for second in (1, 2, 5)}
    assert sorted(key for key, _ in rows(klamm_broker, names["lines"])) == [b"a", b"c"]
    values = [row["value"] for _, row in rows(klamm_broker, names["ticks"])]
    assert sorted(values) == list(range(len(values)))

    written = "\n".join(reports) + "".join(path.read_text() for path in home.rglob("*.json") if path.is_file())
    assert "orders: done" in written
    assert "hush-hush" not in written


def test_a_database_source_on_a_restored_or_removed_checkpoint_is_adopted(
    spark, patiently, database, klamm_broker, klamm_name, tmp_path
):
    topic, home = klamm_name("orders"), tmp_path / "home"
    text = TEXT.partition("CREATE SOURCE changes")[0].format(orders=topic)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(home), "partitions": "1", "name": topic}
    pipeline = compile_text(text, "orders.sql", settings)

    def run(*numbers, **options):
        for number in numbers:
            database(insert(number, "tea", 2, 1))
        patiently(run_pipeline, pipeline, once=True, spark=spark, **options)
        return [row["id"] for _, row in rows(klamm_broker, topic)]

    assert run(1, 2, 3) == [1, 2, 3]
    shutil.copytree(home, tmp_path / "copy")
    assert run(4, 5) == [1, 2, 3, 4, 5]

    shutil.rmtree(home / "orders.0")
    shutil.copytree(tmp_path / "copy" / "orders.0", home / "orders.0")
    with pytest.raises(ConfigError, match=r"orders: checkpoint and sink disagree.*set back.*--adopt orders"):
        run()
    assert run(6, adopt=["orders"]) == [1, 2, 3, 4, 5, 6]

    shutil.rmtree(home / "orders.1")
    with pytest.raises(ConfigError, match=r"orders: checkpoint and sink disagree.*it was removed"):
        run()
    assert run(7, 8, adopt=["orders"]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert run(9) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_shop_without_a_database_and_without_a_registry(spark):
    orders = [("ann", 250, 1), ("bob", 100, 2), ("ann", 50, 3)]
    given = [
        {"id": second, "customer": who, "item": "tea", "cents": cents, "ordered": f"2026-01-01T00:00:0{second}.000000Z"}
        for who, cents, second in orders
    ]
    out = run(EXAMPLES / "shop.sql", {"orders": given}, spark=spark)
    out.expect(
        "spent",
        [
            {"customer": "ann", "cents": 300, "orders": 2, "newest": given[2]["ordered"]},
            {"customer": "bob", "cents": 100, "orders": 1, "newest": given[1]["ordered"]},
        ],
    )


def test_positions_where_only_spark_reaches(spark, tmp_path):
    positions = JdbcPositions.at(spark, f"file://{tmp_path}/far/orders.0")
    assert positions.last() is None
    positions.begin(0, CursorRange("integer", None, 5, 3))
    assert positions.last() == (0, CursorRange("integer", None, 5, 3), False)
    for number in range(3):
        positions.begin(number, CursorRange("integer", number, number + 1))
        positions.mark_done(number)
    again = JdbcPositions.at(spark, f"file://{tmp_path}/far/orders.0")
    assert again.last() == (2, CursorRange("integer", 2, 3), True)
    assert sorted(path.name for path in (tmp_path / "far" / "orders.0" / "commits").glob("[0-9]*")) == ["0", "1", "2"]
