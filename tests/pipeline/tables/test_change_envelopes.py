"""Tables of change logs answer: envelopes are opened by the rules that Spark follows."""

import json

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline import open_tables
from klamm.pipeline.sql import compile_text
from klamm.pipeline.tables.core.change_envelopes import ChangeEnvelope, OpenedChange

DEBEZIUM = "CREATE TABLE t (id BIGINT, v DECIMAL(12, 2)) WITH (format = 'debezium', key = 'id', partitions = 1);"
MAXWELL = """CREATE TABLE t (id BIGINT, v STRING) WITH (format = 'cdc', key = 'id', partitions = 1, op_column = 'type',
  row_column = 'data', upsert_ops = 'insert, update', delete_ops = 'delete');"""
PLAIN = "CREATE TABLE t (id BIGINT, v STRING) WITH (format = 'cdc', key = 'id', partitions = 1);"


@pytest.mark.parametrize(
    ("text", "value", "opened"),
    [
        (DEBEZIUM, None, (None, None, None)),
        (DEBEZIUM, '{"op": "c", "after": {"id": 1, "v": 1.10}}', (b'{"id":1,"v":1.10}', "c", None)),
        (DEBEZIUM, '{"schema": {}, "payload": {"op": "r", "after": {"id": 1}}}', (b'{"id":1}', "r", None)),
        (DEBEZIUM, '{"op": "d", "before": {"id": 1}, "after": null}', (None, "d", None)),
        (DEBEZIUM, '{"op": "u", "after": null}', (None, "u", "the change has no row")),
        (DEBEZIUM, '{"id": 1}', (None, None, "the value is no change: it has no op")),
        (DEBEZIUM, '{"payload": 3}', (None, None, "the value is no change: it has no op")),
        (DEBEZIUM, '{"op": "x"}', (None, "x", "op is x, which is none of c, r, u, d, t")),
        (MAXWELL, '{"type": "INSERT", "data": {"id": 1}}', (b'{"id":1}', "INSERT", None)),
        (MAXWELL, '{"type": "delete", "data": {"id": 1}}', (None, "delete", None)),
        (MAXWELL, '{"type": "t"}', (None, "t", "type is t, which is none of insert, update, delete")),
        (PLAIN, '{"op": "i", "id": 1}', (b'{"op":"i","id":1}', "i", None)),
    ],
)
def test_one_record(text, value, opened):
    envelope = ChangeEnvelope.of(compile_text(text).node("t"))
    assert envelope.open(value and value.encode()) == OpenedChange(*opened)


def test_a_truncation_and_what_is_no_json():
    envelope = ChangeEnvelope.of(compile_text(DEBEZIUM).node("t"))
    assert "is not applied" in envelope.open(b'{"op": "t"}').error
    assert "is no JSON" in envelope.open(b"{").error


@pytest.mark.parametrize("connector", [False, True], ids=["topic", "captured"])
def test_the_rows_of_a_change_log(klamm_broker, tmp_path, connector):
    topic = klamm_broker.topic("changes", partitions=2)
    how = "connector = 'postgres', url = 'postgresql://db/x', table = 't'" if connector else "format = 'debezium'"
    file = tmp_path / "changes.sql"
    file.write_text(
        f"CREATE TABLE accounts (id BIGINT, owner STRING NOT NULL, since TIMESTAMP, op STRING METADATA) WITH "
        f"(topic = '{topic}', {how}, key = 'id');"
        "CREATE TABLE owners WITH (key = 'id') AS SELECT id, owner FROM accounts;"
    )
    changes = [
        (1, {"op": "r", "after": {"id": 1, "owner": "ada", "since": "2026-01-01T00:00:00Z"}}),
        (2, {"op": "c", "after": {"id": 2, "owner": "bob", "since": None}}),
        (3, {"op": "c", "after": {"id": 3, "owner": None}}),
        (1, {"op": "u", "after": {"id": 1, "owner": "eve", "since": "2026-01-01T00:00:00Z"}}),
        (2, {"op": "d", "before": {"id": 2}, "after": None}),
        (2, None),
        (4, {"op": "t"}),
    ]
    with klamm_broker.producer() as producer:
        for number, value in changes:
            data = None if value is None else json.dumps(value).encode()
            producer.send(topic, data, key=json.dumps({"id": number}).encode())
    with open_tables(file, tables=["accounts"], bootstrap=klamm_broker.bootstrap, timeout_s=60) as tables:
        rows = tables.query("SELECT id, owner, year(since) AS y, op FROM accounts").to_pylist()
    assert rows == [{"id": 1, "owner": "eve", "y": 2026, "op": "u"}]


def test_another_order_is_refused(klamm_broker, tmp_path):
    topic = klamm_broker.topic("ordered")
    file = tmp_path / "ordered.sql"
    file.write_text(DEBEZIUM.replace("WITH (", f"WITH (topic = '{topic}', order_by = 'source.lsn', "))
    with pytest.raises(ConfigError, match="in the order of order_by"):
        open_tables(file, tables=["t"], bootstrap=klamm_broker.bootstrap, timeout_s=60)
