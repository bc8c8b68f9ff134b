"""Dead letters that must not stop a query: too large, of rows the registry refuses; and how many there are."""

import json

import pytest

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.dead_letters import DeadLetters
from klamm.pipeline.sql.runner import run_pipeline
from pipeline.small_registry import small_registry

pytestmark = pytest.mark.timeout(600)
LARGE = 3_000_000
"""Bytes of a record that its topic takes and the dead-letter topic, with the default limit, does not."""


@pytest.fixture
def pipeline_of(klamm_broker, tmp_path):
    def compile_with_settings(text):
        settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
        return compile_text(text, "letters.sql", settings)

    return compile_with_settings


def read(broker, topic):
    return klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60).to_pylist()


def headers_of(row):
    return {header["key"]: header["value"] for header in row["headers"]}


def test_a_letter_that_is_too_large_is_cut_and_its_record_sent_again_whole(
    spark, patiently, pipeline_of, klamm_broker, klamm_admin, klamm_name
):
    topic = klamm_name("orders")
    klamm_admin.create_topic(topic, 1, configs={"max.message.bytes": str(2 * LARGE)})
    large = b"{" + b"x" * LARGE
    records = [
        (b"k", large, [("h", b"1")]),
        (b"k" * 400_000, large, [("h", b"2" * 400_000)]),
        (b"k", b"{small", [("h", b"3")]),
    ]
    with klamm_broker.producer(**{"max.request.size": 2 * LARGE}) as producer:
        for key, value, headers in records:
            producer.send(topic, value, key=key, headers=headers).result(30)
    pipeline = pipeline_of(
        f"CREATE STREAM orders (id BIGINT) WITH (topic = '{topic}');"
        f"CREATE STREAM copies WITH (topic = '{klamm_name('copies')}') AS SELECT id FROM orders;"
    )
    patiently(run_pipeline, pipeline, once=True, spark=spark)

    first, second, third = read(klamm_broker, f"{topic}.dead_letters")
    assert first["value"] == large[: len(first["value"])]
    assert (first["key"], headers_of(first)["h"]) == (b"k", b"1")
    assert int(headers_of(first)["dead_letter.cut"]) > LARGE
    assert (second["key"], "h" in headers_of(second)) == (None, False)
    assert headers_of(second)["dead_letter.offset"] == b"1"
    assert (third["value"], "dead_letter.cut" in headers_of(third)) == (b"{small", False)

    letters = DeadLetters(pipeline, "orders", {"max.request.size": str(2 * LARGE)})
    assert (letters.counts()["records"], letters.counts()["waiting"]) == (3, 3)
    assert (letters.redrive(), letters.lost) == (3, 0)
    sent = [
        (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"]])
        for row in read(klamm_broker, topic)
    ]
    assert sent == [*records, *records]
    # Transaction markers are offsets, too; they are not letters.
    assert (letters.counts()["records"], letters.counts()["waiting"]) == (3, 0)


def test_the_record_of_a_cut_letter_may_be_gone(spark, patiently, pipeline_of, klamm_broker, klamm_admin, klamm_name):
    topic = klamm_name("orders")
    klamm_admin.create_topic(topic, 1, configs={"max.message.bytes": str(2 * LARGE)})
    with klamm_broker.producer(**{"max.request.size": 2 * LARGE}) as producer:
        producer.send(topic, b"{" + b"x" * LARGE).result(30)
        producer.send(topic, b"{small").result(30)
    pipeline = pipeline_of(
        f"CREATE STREAM orders (id BIGINT) WITH (topic = '{topic}');"
        f"CREATE STREAM copies WITH (topic = '{klamm_name('copies')}') AS SELECT id FROM orders;"
    )
    patiently(run_pipeline, pipeline, once=True, spark=spark)
    klamm_admin.delete_records({klamm.TopicPartition(topic, 0): 1})
    letters = DeadLetters(pipeline, "orders", {})
    assert (letters.redrive(), letters.lost) == (1, 1)
    assert letters.counts()["waiting"] == 0


def test_rows_that_the_registrys_schema_forbids_are_dead_letters(
    spark, patiently, pipeline_of, klamm_broker, klamm_admin, klamm_name
):
    names = {name: klamm_name(name) for name in ("orders", "copies", "totals")}
    klamm_admin.create_topic(names["orders"], 1)
    with klamm_broker.producer() as producer:
        for value in (b'{"id": 1, "drink": "tea"}', b'{"id": 2}', b'{"id": 3, "drink": "rum"}'):
            producer.send(names["orders"], value).result(30)
    fields = [{"name": "id", "type": "long"}, {"name": "drink", "type": "string"}]
    with small_registry() as registry:
        for name in ("copies", "totals"):
            schema = {"type": "record", "name": "Order", "fields": fields}
            registry.register(f"{names[name]}-value", json.dumps(schema))
        pipeline = pipeline_of(
            f"""
            SET registry = '{registry.url}';
            CREATE STREAM orders (id BIGINT, drink STRING) WITH (topic = '{names["orders"]}');
            CREATE STREAM copies WITH (topic = '{names["copies"]}', format = 'avro', schema = 'latest') AS
              SELECT id, drink FROM orders;
            CREATE TABLE totals WITH (topic = '{names["totals"]}', format = 'avro', schema = 'latest', key = 'id') AS
              SELECT id, max(drink) AS drink FROM orders GROUP BY id;
            """
        )
        patiently(run_pipeline, pipeline, once=True, spark=spark)
        for name in ("copies", "totals"):
            assert len(read(klamm_broker, names[name])) == 2
            (letter,) = read(klamm_broker, f"{names[name]}.dead_letters")
            assert json.loads(letter["value"]) == {"id": 2, "drink": None}
            assert b"does not fit Avro schema" in headers_of(letter)["dead_letter.error"]
            assert headers_of(letter)["dead_letter.topic"] == names[name].encode()
            letters = DeadLetters(pipeline, name, {})
            assert letters.counts()["waiting"] == 1
            with pytest.raises(ConfigError, match="change the schema or the SELECT"):
                letters.redrive()
