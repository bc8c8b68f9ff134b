"""The examples in examples/pipeline/sql do what they say; another client subscribes to what one of them writes."""

import json
from pathlib import Path

import confluent_kafka
import pytest

from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.pipeline_record import output_places
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.testing import Deleted, run

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline" / "sql"
pytestmark = pytest.mark.timeout(600)


def at(seconds):
    return f"2026-01-01T12:{seconds // 60:02d}:{seconds % 60:02d}.000000Z"


def readings(*rows):
    return [{"sensor": sensor, "celsius": celsius, "at": at(seconds)} for sensor, celsius, seconds in rows]


def test_examples_can_run_on_one_cluster():
    """Pipelines are told apart by what they write: two with one output refuse each other."""
    writers = {}
    for path in sorted(EXAMPLES.glob("*.sql")):
        pipeline = compile_text(path.read_text(), str(path))
        for place in output_places(pipeline, "host", "/work").values():
            writers.setdefault(place, []).append(path.name)
    assert {place: names for place, names in writers.items() if len(names) > 1} == {}


@pytest.mark.long
def test_a_windowed_table_changes_and_a_windowed_stream_waits(spark):
    """The third step is too late for the first minute by half a minute of patience; in the second it is not."""
    steps = [
        readings(("roof", 20.0, 10), ("roof", 21.0, 50), ("cave", 4.0, 20)),
        readings(("roof", 23.0, 40), ("roof", 19.0, 100)),
        readings(("roof", 99.0, 5), ("cave", 6.0, 61)),
    ]
    out = run(EXAMPLES / "readings.sql", [{"readings": step} for step in steps], spark=spark)
    out.expect(
        "sensors",
        [
            {"sensor": "roof", "readings": 5, "celsius": 19.0, "warmest": 99.0},
            {"sensor": "cave", "readings": 2, "celsius": 6.0, "warmest": 6.0},
        ],
    )
    out.expect(
        "per_minute",
        [
            {"sensor": "roof", "minute": at(0), "readings": 3, "mean": 21.3},
            {"sensor": "cave", "minute": at(0), "readings": 1, "mean": 4.0},
            {"sensor": "roof", "minute": at(60), "readings": 1, "mean": 19.0},
            {"sensor": "cave", "minute": at(60), "readings": 1, "mean": 6.0},
        ],
    )
    roof = [row["mean"] for _, row in out.changes["per_minute"] if row["sensor"] == "roof" and row["minute"] == at(0)]
    assert roof == [20.5, 21.3]
    out.expect(
        "reports",
        [{"sensor": "roof", "until": at(60), "mean": 21.3}, {"sensor": "cave", "until": at(60), "mean": 4.0}],
    )


def test_visits(spark):
    clicks = [("ann", "/", 0), ("bob", "/", 5), ("ann", "/buy", 25), ("ann", "/", 49), ("ann", "/late", 200)]
    steps = [
        {"clicks": [{"visitor": who, "page": page, "at": at(when)} for who, page, when in clicks]},
        {"clicks": [{"visitor": "bob", "page": "/", "at": at(40)}, {"visitor": "bob", "page": "/end", "at": at(199)}]},
    ]
    out = run(EXAMPLES / "visits.sql", steps, spark=spark)
    out.expect(
        "visits",
        [
            {"visitor": "ann", "began": at(0), "ended": at(79), "clicks": 3, "pages": ["/", "/buy"]},
            {"visitor": "bob", "began": at(5), "ended": at(35), "clicks": 1, "pages": ["/"]},
        ],
    )


@pytest.mark.long
def test_orders_with_customers(spark):
    steps = [
        {
            "customers": [{"id": "1", "name": "Ann", "city": "Ulm"}, {"id": "2", "name": "Bob", "city": "Ulm"}],
            "orders": [{"id": 1, "customer": "1", "cents": 500}, {"id": 2, "customer": "3", "cents": 100}],
        },
        {
            "customers": [{"id": "1", "name": "Ann", "city": "Bonn"}],
            "orders": [{"id": 3, "customer": "1", "cents": 50}, {"id": 4, "customer": "2", "cents": 70}],
        },
        {"customers": [Deleted(id="2")], "orders": [{"id": 5, "customer": "2", "cents": 1}]},
    ]
    out = run(EXAMPLES / "customers.sql", steps, spark=spark)
    out.expect(
        "named_orders",
        [
            {"id": 1, "cents": 500, "name": "Ann", "city": "Ulm"},
            {"id": 2, "cents": 100, "name": None, "city": None},
            {"id": 3, "cents": 50, "name": "Ann", "city": "Bonn"},
            {"id": 4, "cents": 70, "name": "Bob", "city": "Ulm"},
            {"id": 5, "cents": 1, "name": None, "city": None},
        ],
    )
    out.expect("cities", [{"city": "Bonn", "cents": 550, "customers": 1}])
    assert [row and row["cents"] for key, row in out.changes["cities"] if key == b"Ulm"] == [500, 70, None]


def subscribed(bootstrap, topics, wanted):
    """Records of topics by librdkafka, as a group, until there are as many as wanted."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "dashboard",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    records = []
    try:
        consumer.subscribe(topics)
        while len(records) < wanted:
            message = consumer.poll(60)
            assert message is not None, f"{len(records)} of {wanted} records came"
            assert message.error() is None, message.error()
            records.append((message.key(), json.loads(message.value())))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return records


@pytest.mark.long
def test_another_client_subscribes_to_a_result(spark, patiently, klamm_own_broker, tmp_path):
    """A group of librdkafka sees each change of a table once, over two runs of the pipeline."""
    settings = {"bootstrap": klamm_own_broker.bootstrap, "checkpoint": str(tmp_path / "home")}
    text = (EXAMPLES / "words.sql").read_text()
    pipeline = compile_text(text, "words.sql", settings)
    producer = confluent_kafka.Producer({"bootstrap.servers": klamm_own_broker.bootstrap})
    with klamm_own_broker.admin() as admin:
        admin.create_topic("lines", 2)
    for line, counts in (("to be or not", {"to": 1, "be": 1, "or": 1, "not": 1}), ("to be", {"to": 2, "be": 2})):
        producer.produce("lines", line)
        assert not producer.flush(60)
        patiently(run_pipeline, pipeline, once=True, spark=spark)
        records = subscribed(klamm_own_broker.bootstrap, ["counts"], len(counts))
        assert sorted(records) == sorted((word.encode(), {"word": word, "n": n}) for word, n in counts.items())
