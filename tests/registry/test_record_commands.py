"""`klamm produce` and `klamm consume` with schemas: what a person types and reads."""

import json

import pytest
from click.testing import CliRunner

from klamm.cli import exit_codes
from klamm.cli.main import cli
from klamm.client import Producer
from klamm.registry.serializers import AvroSerializer
from klamm.telemetry.log import Level, configure
from klamm.testing import unique

USER = """{"type": "record", "name": "User", "fields": [
    {"name": "name", "type": "string"}, {"name": "city", "type": ["null", "string"], "default": null},
    {"name": "born", "type": {"type": "int", "logicalType": "date"}}]}"""
PROTO = 'syntax = "proto3"; message Other { int32 n = 1; } message Order { string drink = 1; int32 size_ml = 2; }'
ADA = {"name": "Ada", "city": "London", "born": "1815-12-10"}
LINUS = {"name": "Linus", "city": None, "born": "1969-12-28"}


@pytest.fixture
def run(klamm_broker, registry):
    def call(*args, code=0, given=None, url=registry.url):
        options = ["-b", klamm_broker.bootstrap, "--registry", url]
        result = CliRunner().invoke(cli, [*args, *options], input=given)
        assert result.exit_code == code, result.output
        return result.output if code else result.stdout

    configure(Level.WARNING)
    yield call
    configure()


@pytest.fixture
def topic(klamm_broker):
    name = unique("users")
    with klamm_broker.admin() as admin:
        admin.create_topic(name, 1)
    return name


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "user.avsc"
    path.write_text(USER)
    return str(path)


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


def values(output):
    return [json.loads(line)["value"] for line in output.splitlines()]


def test_values_of_a_schema(run, topic, users):
    run("produce", topic, "--value", "registry", "--schema", users, given=lines(ADA))
    # The newest schema, now that there is one; a field with a default may be left out.
    run("produce", topic, "--value", "registry", given=lines({"name": "Linus", "born": "1969-12-28"}))
    assert values(run("consume", topic, "--value", "registry", "-o", "jsonl")) == [ADA, LINUS]
    chosen = run("consume", topic, "--value", "registry", "--where", 'value.city == "London"', "-f", "%v\\n")
    assert json.loads(chosen) == ADA
    assert values(run("consume", topic, "--value", "registry", "--last", "1", "-o", "jsonl")) == [LINUS]
    copied = run("consume", topic, "--value", "registry", "-o", "jsonl")
    run("produce", topic, "-i", "jsonl", "--value", "registry", given=copied)
    assert len(values(run("consume", topic, "--value", "registry", "-o", "jsonl"))) == 4


def test_keys_and_messages(run, topic, tmp_path, klamm_broker, registry):
    order = tmp_path / "order.proto"
    order.write_text(PROTO)
    AvroSerializer(registry.url, '"string"').serialize(topic, "x", part="key")
    run(
        *("produce", topic, "-i", "jsonl", "--value", "registry", "--schema", str(order), "--message", "Order"),
        *("--key-form", "registry"),
        given=json.dumps({"key": '"table 7"', "value": {"drink": "tea"}}),
    )
    both = ("--value", "registry", "--key-form", "registry", "-o", "jsonl")
    (row,) = map(json.loads, run("consume", topic, *both).splitlines())
    assert (row["key"], row["value"]) == ("table 7", {"drink": "tea", "size_ml": 0})
    assert run("consume", topic, "--key", "table 7", *both)
    assert not run("consume", topic, "--key", "table 8", *both)


def test_records_that_do_not_fit(run, topic, users, klamm_broker):
    run("produce", topic, "--value", "registry", "--schema", users, given=lines(ADA))
    message = run("produce", topic, "--value", "registry", given=lines(ADA, {"name": 1}), code=exit_codes.USAGE)
    assert "record 2: the value does not fit Avro schema" in message
    assert "value.name is 1, expected text" in message
    assert "the value is no JSON" in run("produce", topic, "--value", "registry", given="Ada\n", code=exit_codes.USAGE)
    with Producer(bootstrap_servers=klamm_broker.bootstrap) as producer:
        producer.send(topic, b"plain text")
    assert values(run("consume", topic, "--value", "registry", "-o", "jsonl"))[-1] == "plain text"


def test_a_dry_run_registers_nothing(run, topic, users, registry):
    message = run("produce", topic, "--value", "registry", "--schema", users, "--dry-run", given=lines(ADA))
    assert '"Ada"' in message
    assert f"{topic}-value" not in registry.get("/subjects")
    refused = run(
        "produce", topic, "--value", "registry", "--schema", users, "--dry-run", given="{}\n", code=exit_codes.USAGE
    )
    assert "has no field name" in refused


def test_nothing_is_written_or_decoded_under_rules_without_executors(run, topic, users, registry):
    run("produce", topic, "--value", "registry", "--schema", users, given=lines(ADA))
    rule = {"name": "encryptPII", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT", "tags": ["PII"]}
    registry.register(f"{topic}-value", USER, ruleSet={"domainRules": [rule]})
    refused = run("produce", topic, "--value", "registry", given=lines(ADA), code=1)
    assert f"{topic}-value: schema " in refused
    assert "rule encryptPII of the type ENCRYPT" in refused
    # The record of the first version, which has no rules, is decoded.
    assert values(run("consume", topic, "--value", "registry", "-o", "jsonl")) == [ADA]


def test_what_is_missing(run, topic, users, tmp_path):
    message = run("produce", topic, "--value", "registry", given="{}\n", code=exit_codes.NOT_FOUND)
    assert f"no subject {topic}-value; write one with `klamm schema put" in message
    other = tmp_path / "schema.txt"
    other.write_text(USER)
    run("produce", topic, "--value", "registry", "--schema", str(other), given="{}\n", code=exit_codes.USAGE)
    run("produce", topic, "--schema", users, given="{}\n", code=exit_codes.USAGE)
    bad = tmp_path / "bad.avsc"
    bad.write_text("{}")
    assert "Invalid" in run("produce", topic, "--value", "registry", "--schema", str(bad), given="{}\n", code=1)


def test_no_registry(run, topic, users, monkeypatch):
    monkeypatch.setattr("klamm.registry.client_settings._RETRIES", 0)
    run("produce", topic, "--value", "registry", "--schema", users, given=lines(ADA))
    url = "http://127.0.0.1:1"
    message = run("consume", topic, "--value", "registry", "-o", "jsonl", url=url, code=exit_codes.NO_ANSWER)
    assert "`klamm registry` runs one" in message
    run("produce", topic, "--value", "registry", given=lines(ADA), url=url, code=exit_codes.NO_ANSWER)
