"""Spark jobs and pipelines log in in every way: passwords, client certificates, delegation tokens, and tokens that they
request from an identity provider.

The pipeline reads and writes streams by the same format as the job, which reads and writes batches.
"""

import json

import pytest

from harness.logins import LOGINS, running_listeners
from klamm.client import Admin, Consumer, Producer
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.testing import unique

pytestmark = pytest.mark.timeout(600)

TEXT = """
SET bootstrap = '{bootstrap.servers}';
SET kafka.security.protocol = '{security.protocol}';
SET kafka.ssl.ca.location = '{ssl.ca.location}';
SET kafka.sasl.mechanism = 'OAUTHBEARER';
SET kafka.sasl.oauthbearer.token.endpoint.url = '{sasl.oauthbearer.token.endpoint.url}';
SET kafka.sasl.oauthbearer.client.credentials.client.id = 'alice';
SET kafka.sasl.oauthbearer.client.credentials.client.secret = '${ORDERS_SECRET}';
CREATE STREAM payments (account STRING, amount INT) WITH (topic = '{payments}');
CREATE STREAM large WITH (topic = '{large}') AS SELECT account, amount FROM payments WHERE amount > 3;
"""


@pytest.fixture(scope="module")
def listeners(tmp_path_factory):
    with running_listeners(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
def settings(listeners):
    """Client credentials, as all processes of a job get them."""
    return listeners.settings("OAUTHBEARER")


def make_topic(settings, *values: str) -> str:
    with Admin(settings) as admin:
        admin.create_topic(topic := unique(), 1)
    with Producer(settings) as producer:
        for value in values:
            producer.send(topic, value.encode())
    return topic


def read_values(settings, topic: str, count: int) -> list[str]:
    reading = {"auto.offset.reset": "earliest", "group.id": unique(), "isolation.level": "read_committed"}
    with Consumer({**settings, **reading}) as consumer:
        consumer.subscribe([topic])
        records = iter(consumer)
        return [next(records).value.decode() for _ in range(count)]


def test_a_job_reads_and_writes(spark, patiently, listeners, settings):
    topic = make_topic(settings)
    options = {f"kafka.{name}": value for name, value in settings.items()}
    before = listeners.provider.tokens_issued
    rows = spark.createDataFrame([("one",), ("two",)], "value string").coalesce(1)
    patiently(rows.write.format("klamm").options(**options, topic=topic).mode("append").save)
    frame = patiently(spark.read.format("klamm").options(**options, subscribe=topic).load)
    assert {row.value for row in patiently(frame.collect)} == {b"one", b"two"}
    assert listeners.provider.tokens_issued > before
    # Plans are printed in logs and on Spark's pages.
    assert "alice-secret" not in frame._jdf.queryExecution().toString()


def test_a_pipeline_reads_and_writes(spark, patiently, settings, monkeypatch, tmp_path):
    names = {
        "payments": make_topic(settings, '{"account": "a", "amount": 5}', '{"account": "b", "amount": 1}'),
        "large": unique(),
    }
    monkeypatch.setenv("ORDERS_SECRET", "alice-secret")
    text = TEXT
    for name, value in {**settings, **names}.items():
        text = text.replace(f"{{{name}}}", value)
    pipeline = compile_text(text, "bank.sql", {"checkpoint": str(tmp_path)})
    patiently(run_pipeline, pipeline, once=True, spark=spark)
    assert [json.loads(value) for value in read_values(settings, names["large"], 1)] == [{"account": "a", "amount": 5}]
    # The secret is that of the environment, and no file of the pipeline contains it.
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"alice-secret" not in path.read_bytes(), path


@pytest.mark.parametrize("login", [login for login in LOGINS if login != "OAUTHBEARER"])
def test_a_job_and_a_stream_log_in(spark, patiently, listeners, login, tmp_path):
    """The sink writes a batch, a stream copies it to another topic, and the source reads that."""
    settings = listeners.settings(login)
    options = {f"kafka.{name}": value for name, value in settings.items()}
    topic, copy = make_topic(settings), make_topic(settings)
    rows = spark.createDataFrame([("one",), ("two",)], "value string").coalesce(1)
    patiently(rows.write.format("klamm").options(**options, topic=topic).mode("append").save)

    def run_stream() -> None:
        frame = spark.readStream.format("klamm").options(**options, subscribe=topic, startingOffsets="earliest").load()
        writer = frame.select("value").writeStream.format("klamm").options(**options, topic=copy)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    patiently(run_stream)
    frame = patiently(spark.read.format("klamm").options(**options, subscribe=copy).load)
    assert {row.value for row in patiently(frame.collect)} == {b"one", b"two"}
    # Plans are printed in logs and on Spark's pages.
    assert "alice-secret" not in frame._jdf.queryExecution().toString()
