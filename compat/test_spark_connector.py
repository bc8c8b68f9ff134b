"""Spark's own Kafka connector against the broker, and `format("klamm")` beside it on the same topics."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from compat import toolchain
from compat.brokers import Broker
from harness.logins import SecuredListeners, running_listeners
from klamm.client import Admin
from klamm.pipeline import session
from klamm.server.login.bearer_settings import ALLOWED_URLS

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


OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredListeners]:
    with running_listeners(tmp_path_factory.mktemp("secured")) as running:
        yield running


def connector_options(spark: Any, listeners: SecuredListeners, login: str) -> dict[str, str]:
    """The settings of a login as Spark's connector takes them: Java's names, and PEM stores."""
    given_settings = listeners.settings(login)
    authority = given_settings.pop("ssl.ca.location")
    settings = {**given_settings, "ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if login == "OAUTHBEARER":
        # Java's client connects to no other identity provider; workers of a cluster need extraJavaOptions.
        spark._jvm.java.lang.System.setProperty(ALLOWED_URLS, listeners.provider.token_url)
        name, secret = (settings.pop(f"sasl.oauthbearer.client.credentials.client.{part}") for part in ("id", "secret"))
        settings["sasl.jaas.config"] = (
            f'{OAUTH}.OAuthBearerLoginModule required clientId="{name}" clientSecret="{secret}";'
        )
        settings["sasl.login.callback.handler.class"] = f"{OAUTH}.OAuthBearerLoginCallbackHandler"
    return {f"kafka.{name}": value for name, value in settings.items()}


@pytest.mark.parametrize("login", ["OAUTHBEARER", "delegation token"])
def test_both_log_in_with_tokens(spark, listeners: SecuredListeners, topic: str, login: str, tmp_path):
    """What the connector writes with a token is read by `format("klamm")` with the same options, and streamed on."""
    options = connector_options(spark, listeners, login)
    source, sink = f"{topic}-in", f"{topic}-out"
    with Admin(listeners.settings(login)) as admin:
        for name in (source, sink):
            admin.create_topic(name, 1)
    spark.createDataFrame([("one",)], "value string").write.format("kafka").options(**options, topic=source).save()
    values: list[bytes] = []

    def read(name: str, reader: str) -> None:
        values[:] = [row.value for row in spark.read.format(reader).options(**options, subscribe=name).load().collect()]

    for reader in ("kafka", "klamm"):
        eventually(partial(read, source, reader))
        assert values == [b"one"]
    reading = spark.readStream.format("kafka").options(**options, subscribe=source, startingOffsets="earliest")
    writing = reading.load().select("value").writeStream.format("kafka").options(**options, topic=sink)
    writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    read(sink, "kafka")
    assert values == [b"one"]
