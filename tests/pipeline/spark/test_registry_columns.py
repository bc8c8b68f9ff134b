"""from_registry and to_registry in Spark: from topic to topic, broken records to a topic of their own."""

import json

import pytest
from pyspark.sql import functions as f

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline import dead_letters, from_registry, good_rows, registry_header, to_registry
from klamm.registry.framing import prefix
from pipeline.small_registry import small_registry

pytestmark = pytest.mark.timeout(600)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "drink", "type": ["null", "string"], "default": None}],
    }
)
JSON = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "drink": {"type": "string"}}})
PROTO = 'syntax = "proto3"; message Other {} message Order { int64 id = 1; optional string drink = 2; }'


@pytest.fixture(scope="module")
def registry():
    with small_registry() as running:
        yield running


KINDS = [("AVRO", AVRO, None), ("JSON", JSON, None), ("PROTOBUF", PROTO, "Order")]


def test_there_and_back_in_both_framings(spark, registry):
    rows = spark.range(1, 4).selectExpr(
        "if(id < 3, named_struct('id', id, 'drink', if(id = 1, 'tea', null)), null) as order"
    )
    made, read = [], []
    for kind, text, message in KINDS:
        same = {"subject": f"{kind}-value", "message": message}
        made += [
            to_registry("order", registry.url, **same, schema=text, kind=kind).alias(f"{kind}_framed"),
            to_registry("order", registry.url, **same, framing="header").alias(f"{kind}_bare"),
            f.array(registry_header(registry.url, **same)).alias(f"{kind}_headers"),
        ]
        read += [
            from_registry(f"{kind}_framed", registry.url, **same),
            from_registry(f"{kind}_bare", registry.url, **same, headers=f"{kind}_headers"),
        ]
    decoded = rows.select(*made).select(*read).collect()
    assert [[column and tuple(column) for column in row] for row in decoded] == [
        [(1, "tea")] * 6,
        [(2, None)] * 6,
        [None] * 6,
    ]


def test_broken_records_go_to_a_topic_of_their_own(spark, klamm_broker, servers, registry):
    number = registry.register("broken-value", AVRO)
    source, sink, dead = (klamm_broker.topic(name) for name in ("in", "out", "dead"))
    with klamm_broker.producer() as producer:
        for value in (
            prefix(number) + b"\x06\2\6tea",
            prefix(777) + b"x",
            b"garbage",
            None,
            prefix(number) + b"\x08\0",
        ):
            producer.send(source, value, key=b"k", headers=[("h", b"1")]).result(30)
    rows = spark.read.format("klamm").options(**servers, subscribe=source, includeHeaders="true").load()
    read = rows.withColumn(
        "order", from_registry("value", registry.url, subject="broken-value", headers="headers", bad="dead_letter")
    )
    good = good_rows(read, "order").select(
        f.lit(sink).alias("topic"), "key", f.to_json("order").cast("binary").alias("value"), "headers"
    )
    both = good.unionByName(dead_letters(read, "order", dead))
    both.write.format("klamm").options(**servers).mode("append").save()
    table = klamm.read_topic(sink, bootstrap=klamm_broker.bootstrap, timeout_s=60)
    values = [row and json.loads(row) for row in table["value"].to_pylist()]
    assert values == [{"id": 3, "drink": "tea"}, None, {"id": 4}]
    letters = klamm.read_topic(dead, bootstrap=klamm_broker.bootstrap, timeout_s=60).to_pylist()
    assert [letter["value"] for letter in letters] == [prefix(777) + b"x", b"garbage"]
    letter_headers = [{header["key"]: header["value"] for header in letter["headers"]} for letter in letters]
    assert [
        (headers["h"], headers["dead_letter.topic"].decode(), headers["dead_letter.offset"])
        for headers in letter_headers
    ] == [
        (b"1", source, b"1"),
        (b"1", source, b"2"),
    ]
    assert all(
        headers["dead_letter.stream"] == b"order" and int(headers["dead_letter.timestamp"]) > 0
        for headers in letter_headers
    )
    assert [headers["dead_letter.error"].decode() for headers in letter_headers] == [
        "the registry has no schema 777",
        "the first byte is 103, not 0: no schema is named",
    ]


def test_a_broken_record_ends_a_query_that_asks_for_it(spark, registry):
    registry.register("strict-value", AVRO)
    rows = spark.createDataFrame([(bytearray(b"garbage"),)], "value binary")
    with pytest.raises(Exception, match="no schema is named"):
        rows.select(from_registry("value", registry.url, subject="strict-value")).collect()


def test_mistakes_are_told_before_the_query_runs(spark, registry):
    for work, words in (
        (lambda: from_registry("value", registry.url), "either a subject or a schema_id"),
        (lambda: from_registry("value", registry.url, subject="absent"), "has no subject absent"),
        (lambda: from_registry("value", registry.url, subject="x", bad="ignore"), "bad=ignore"),
        (lambda: to_registry("value", registry.url, subject="absent"), "has no subject absent"),
    ):
        with pytest.raises(ConfigError, match=words):
            work()
