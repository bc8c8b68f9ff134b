"""Spark's own Kafka connector against the broker, and `format("klamm")` beside it on the same topics."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from compat import toolchain
from compat.brokers import Broker
from klamm.client import Admin
from klamm.pipeline import session

ROWS = 2000
SCHEMA = "key string, value string, partition int, headers array<struct<key: string, value: binary>>"
COLUMNS = "cast(key as string) as key", "cast(value as string) as value", "partition", "headers"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    running = session(
        "compat",
        master="local[2]",
        progress=False,
        config={
            "spark.jars": ",".join(map(str, toolchain.spark_jars())),
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.log.level": "OFF",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield running
    running.stop()


@pytest.fixture
def topics(broker: Broker, topic: str) -> list[str]:
    names = [f"{topic}-{direction}" for direction in ("in", "out")]
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        for name in names:
            admin.create_topic(name, 3)
    return names


def servers(broker: Broker) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap}


def given(spark: Any, count: int = ROWS) -> Any:
    return spark.range(count).selectExpr(
        "cast(id as string) as key",
        "if(id % 7 = 0, null, concat('value ', id)) as value",
        "cast(id % 3 as int) as partition",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) as headers",
    )


def rows(frame: Any) -> list[Any]:
    return sorted(tuple(row) for row in frame.selectExpr(*COLUMNS).collect())


def eventually(work: Any) -> None:
    """Spark gives the Python process of `format("klamm")` ten seconds to start; a busy machine may take longer."""
    for left in range(3, -1, -1):
        try:
            return work()
        except Exception as error:
            if not left or "connect back" not in str(error):
                raise
    return None


@pytest.mark.parametrize(("writer", "reader"), [("kafka", "kafka"), ("kafka", "klamm"), ("klamm", "kafka")])
def test_what_one_writes_the_other_reads(spark, broker: Broker, topics, writer, reader):
    options = servers(broker)
    expected = rows(given(spark))

    def write() -> None:
        given(spark).write.format(writer).options(**options, topic=topics[0]).mode("append").save()

    eventually(write)
    isolation = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
    actual: list[Any] = []

    def read() -> None:
        actual[:] = rows(spark.read.format(reader).options(**options, **isolation, subscribe=topics[0]).load())

    eventually(read)
    assert [row[:3] for row in actual] == [row[:3] for row in expected]
    assert [bytes(row[3][0].value) for row in actual] == [row[0].encode() for row in expected]


def test_a_stream_from_topic_to_topic(spark, broker: Broker, topics, tmp_path):
    """Two runs over one checkpoint, small batches; then a range by offsets and one by time."""
    source, sink = topics
    options = servers(broker)

    def run() -> None:
        reading = spark.readStream.format("kafka").options(
            **options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="300", failOnDataLoss="true"
        )
        writing = reading.load().select("key", "value").writeStream.format("kafka").options(**options, topic=sink)
        writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    first, second = 500, 400
    given(spark, first).write.format("kafka").options(**options, topic=source).mode("append").save()
    run()
    between_ms = int(time.time() * 1000)
    given(spark, second).write.format("kafka").options(**options, topic=source).mode("append").save()
    run()
    copied = spark.read.format("kafka").options(**options, subscribe=sink).load()
    assert copied.count() == first + second
    assert copied.selectExpr("count(distinct key)").first()[0] == first, (
        "the keys of the second write are among those of the first"
    )
    upto = f'{{"{source}":{{"0":10,"1":20,"2":30}}}}'
    part = spark.read.format("kafka").options(**options, subscribe=source, endingOffsets=upto).load()
    assert part.count() == 10 + 20 + 30
    later = spark.read.format("kafka").options(**options, subscribe=source, startingTimestamp=str(between_ms)).load()
    assert later.count() == second
