"""Rows that come after the watermark: counted, shown with samples, and written to a topic, once."""

import json

import pytest

import klamm
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.late_rows import dropped_rows, late_selects, rows_select
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.spark_jvm import hadoop_configuration
from klamm.pipeline.sql.state_folders import home_of

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("select", "rows"),
    [
        (
            "SELECT a, count(*) FROM s GROUP BY a, window(at, '1 minute')",
            "SELECT *, window(at, '1 minute').end AS _late_end FROM s",
        ),
        (
            "SELECT a, sum(b) FROM s x WHERE b > (1 + 2) GROUP BY a, window(at, '10 minutes', '5 minutes')",
            "SELECT *, window(at, '10 minutes', '5 minutes').end AS _late_end FROM s x WHERE b > (1 + 2)",
        ),
        (
            "SELECT a, count(*) FROM s GROUP BY a, session_window(s.at, '5 minutes')",
            "SELECT *, (s.at + cast('5 minutes' AS INTERVAL)) AS _late_end FROM s",
        ),
        ("SELECT a FROM s JOIN t ON s.id = t.id", None),
        ("SELECT a, count(*) FROM s GROUP BY a", None),
        ("WITH x AS (SELECT * FROM s) SELECT a, count(*) FROM x GROUP BY a, window(at, '1 minute')", None),
    ],
)
def test_the_rows_of_a_grouped_select_with_the_end_of_their_window(select, rows):
    text = (
        "CREATE STREAM s (id INT, a STRING, b INT, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 second');"
        "CREATE STREAM t (id INT, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 second');"
        f"CREATE TABLE result WITH (key = 'a') AS {select};"
    )
    assert rows_select(compile_text(text).node("result").create.select) == rows


STREAMS = (("s", "at"), ("t", "at"))
WINDOWED = "SELECT a, count(*) FROM {} GROUP BY a, window(at, '1 minute')"


@pytest.mark.parametrize(
    ("select", "view", "timed", "selects"),
    [
        ("SELECT * FROM s JOIN t ON s.id = t.id", None, STREAMS, ["SELECT *, `at` AS _late_end FROM `s`"] * 2),
        (WINDOWED.format("s"), None, STREAMS[:1], ["SELECT *, window(at, '1 minute').end AS _late_end FROM s"]),
        # Rows of open windows count as late by their own time, and those of a join need rows of other batches.
        (f"WITH x AS ({WINDOWED.format('s')}) SELECT * FROM x", None, STREAMS[:1], None),
        (f"SELECT a, count(*) FROM ({WINDOWED.format('s')}) GROUP BY a", None, STREAMS[:1], None),
        ("SELECT * FROM v", WINDOWED.format("s"), STREAMS[:1], None),
        (WINDOWED.format("s JOIN t ON s.id = t.id"), None, STREAMS, None),
    ],
)
def test_rows_are_late_by_all_streams_or_not_counted(select, view, timed, selects):
    views = f"CREATE VIEW v AS {view};" if view else ""
    pipeline = compile_text(
        "CREATE STREAM s (id INT, a STRING, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 second');"
        "CREATE STREAM t (id INT, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 second');"
        f"{views} CREATE STREAM result AS {select};"
    )
    inner = [pipeline.node("v").create.select] if view else []
    expected = selects and [text.replace("`s`", f"`{name}`") for text, (name, _) in zip(selects, timed, strict=True)]
    assert late_selects(pipeline.node("result").create.select, inner, timed) == expected


def test_a_stream_without_duplicates_drops_rows_by_their_own_time():
    select = compile_text(
        "CREATE STREAM s (a STRING, at TIMESTAMP) WITH (timestamp = 'at', watermark = '1 second', deduplicate = 'a');"
        f"CREATE TABLE result WITH (key = 'a') AS {WINDOWED.format('s')};"
    ).node("result")
    assert late_selects(select.create.select, [], STREAMS[:1], {"s"}) == ["SELECT *, `at` AS _late_end FROM `s`"]


def test_what_spark_dropped_is_added_up_over_operators():
    operators = [{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}, {}]
    assert dropped_rows({"stateOperators": operators}) == 3
    assert dropped_rows({}) == 0


TEXT = """
CREATE STREAM clicks (page STRING, n INT, at TIMESTAMP)
  WITH (topic = '{clicks}', timestamp = 'at', watermark = '10 seconds', max_records = 1000);
CREATE TABLE counts WITH (topic = '{counts}', key = 'page', late_topic = '{late}') AS
  SELECT page, window(at, '1 minute').end AS until, count(*) AS n FROM clicks
  WHERE n > 0 GROUP BY page, window(at, '1 minute');
"""


@pytest.mark.parametrize("place", ["{folder}/home", "file://{folder}/home", "viewfs://late/far/home"])
def test_late_rows_are_counted_sampled_and_written_once(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path, place
):
    """In a folder, by a URL of this machine, and on a file system that only Hadoop's classes reach."""
    (tmp_path / "far").mkdir()
    hadoop_configuration(spark).set("fs.viewfs.mounttable.late.link./far", f"file://{tmp_path}/far")
    names = {name: klamm_name(name) for name in ("clicks", "counts", "late")}
    klamm_admin.create_topic(names["clicks"], 1)
    checkpoint = place.format(folder=tmp_path)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": checkpoint, "partitions": "1"}
    pipeline = compile_text(TEXT.format(**names), "clicks.sql", settings)

    def step(*rows):
        with klamm_broker.producer() as producer:
            for row in rows:
                producer.send(names["clicks"], json.dumps(row).encode())
        patiently(run_pipeline, pipeline, once=True, spark=spark)
        return home_of(pipeline).status()["queries"]["counts"]

    def click(minute, second=0, **more):
        return {"page": "a", "n": 1, "at": f"2026-05-01T10:{minute:02d}:{second:02d}Z", **more}

    assert step(click(0), click(5))["late_rows"] == 0
    # The watermark is 10:04:50 now. 10:01 is late; 10:04:10 is before it, but its window ends at 10:05.
    late = [click(1, second) for second in (1, 2, 3)]
    status = step(*late, click(4, 10), click(1, 4, n=0), click(6))
    assert status["late_rows"] == 3
    assert [json.loads(sample)["at"][17:19] for sample in status["late_samples"]] != []
    assert {json.loads(sample)["page"] for sample in status["late_samples"]} == {"a"}

    rows = klamm.read_topic(names["late"], bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()
    assert sorted(json.loads(row["value"])["at"] for row in rows) == [
        f"2026-05-01T10:01:0{n}.000000Z" for n in (1, 2, 3)
    ]
    headers = {header["key"]: header["value"] for header in rows[0]["headers"]}
    assert headers["late.query"] == b"counts"
    assert headers["late.watermark"].startswith(b"2026-05-01 10:04:50")


JOIN = """
CREATE STREAM orders (id INT, at TIMESTAMP) WITH (topic = '{orders}', timestamp = 'at', watermark = '10 seconds');
CREATE STREAM paid (id INT, sum INT, paid_at TIMESTAMP)
  WITH (topic = '{paid}', timestamp = 'paid_at', watermark = '10 seconds');
CREATE STREAM both WITH (topic = '{both}', late_topic = '{late}') AS SELECT orders.id, sum FROM orders JOIN paid
  ON orders.id = paid.id AND paid_at BETWEEN at - INTERVAL '1 minute' AND at + INTERVAL '1 minute';
CREATE VIEW minutes AS SELECT window(at, '1 minute').end AS until, id FROM orders GROUP BY id, window(at, '1 minute');
CREATE STREAM known WITH (topic = '{known}') AS SELECT * FROM minutes;
"""


def test_late_rows_of_both_sides_of_a_join_are_counted(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    names = {name: klamm_name(name) for name in ("orders", "paid", "both", "late", "known")}
    for name in ("orders", "paid"):
        klamm_admin.create_topic(names[name], 1)
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    pipeline = compile_text(JOIN.format(**names), "orders.sql", settings)

    def step(**rows):
        with klamm_broker.producer() as producer:
            for topic, sent in rows.items():
                for row in sent:
                    producer.send(names[topic], json.dumps(row).encode())
        patiently(run_pipeline, pipeline, once=True, spark=spark)
        return home_of(pipeline).status()["queries"]

    def at(minute):
        return f"2026-05-01T10:{minute:02d}:00Z"

    step(orders=[{"id": 1, "at": at(30)}], paid=[{"id": 1, "sum": 5, "paid_at": at(30)}])
    # Rows are compared with the watermark of the batch before.
    step(orders=[{"id": 4, "at": at(30)}], paid=[{"id": 5, "sum": 5, "paid_at": at(30)}])
    late = [{"id": 2, "sum": 7, "paid_at": at(2)}, {"id": 3, "sum": 8, "paid_at": at(3)}]
    queries = step(orders=[{"id": 2, "at": at(1)}, {"id": 9, "at": at(31)}], paid=late)
    assert (queries["both"]["late_rows"], queries["both"]["late_uncounted"]) == (3, 0), queries
    rows = klamm.read_topic(names["late"], bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()
    sums = sorted(json.loads(row["value"]).get("sum", 0) for row in rows)
    assert sums == [0, 7, 8]
    # The window is in a view.
    assert (queries["known"]["late_rows"], queries["known"]["late_uncounted"]) == (0, 1)
