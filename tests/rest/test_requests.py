"""Bodies of requests: what they mean, and how those are refused that mean nothing."""

import base64
import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client.admin.config_types import AlterOp
from klamm.http.refusals import HttpRefusal
from klamm.model.acls import AclOperation, AclResourceType, PatternType
from klamm.rest.core.admin_requests import (
    parse_alterations,
    parse_new_topic,
    parse_rule,
    parse_rule_filter,
)
from klamm.rest.core.consumer_requests import (
    parse_commit,
    parse_instance,
    parse_seek,
    parse_subscription,
    parse_timestamp,
    print_timestamp,
)
from klamm.rest.core.embedded import encode_plain, print_plain
from klamm.rest.core.fields import number_in_path, parse_object
from klamm.rest.core.media_types import EmbeddedFormat
from klamm.rest.core.produce_v2 import SchemaSelector, parse_produce
from klamm.rest.core.produce_v3 import parse_batch, parse_record
from klamm.rest.core.refusals import not_found

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=10,
)


def refused(call, *arguments, **options):
    with pytest.raises(HttpRefusal) as refusal:
        call(*arguments, **options)
    return refusal.value.error_code, refusal.value.message


# Produce, v2


def test_records_of_v2_have_key_value_and_partition():
    body = parse_produce({"records": [{"value": "a"}, {"key": "k", "value": "b", "partition": 3}]}, EmbeddedFormat.JSON)
    assert body.records == [(None, "a", None), ("k", "b", 3)]
    assert parse_produce({"records": [{"value": 1}]}, EmbeddedFormat.JSON, 7).records == [(None, 1, 7)]


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ({}, 422, "records may not be null"),
        ({"records": []}, 422, "records may not be empty"),
        ({"records": {}}, 400, "records is not an array"),
        ({"records": ["text"]}, 400, "not an object"),
        ({"records": [{"valeu": 1}]}, 422, "Unrecognized field: valeu"),
        ({"records": [{"value": 1, "partition": -1}]}, 422, "partition must be between"),
        ({"records": [{"value": 1, "partition": "x"}]}, 422, "partition is not a number"),
    ],
)
def test_bodies_without_records_are_refused(body, code, text):
    answered, message = refused(parse_produce, body, EmbeddedFormat.JSON)
    assert (answered, text in message) == (code, True), message


def test_a_partition_in_the_path_is_that_of_all_records():
    code, message = refused(parse_produce, {"records": [{"value": 1, "partition": 2}]}, EmbeddedFormat.JSON, 1)
    assert (code, message) == (422, "partition 2 of a record is not 1, the partition in the path")


def test_formats_with_a_schema_name_it():
    assert refused(parse_produce, {"records": [{"key": 1}]}, EmbeddedFormat.AVRO)[0] == 42201
    assert refused(parse_produce, {"records": [{"value": 1}]}, EmbeddedFormat.PROTOBUF)[0] == 42202
    body = parse_produce({"records": [{"value": 1}], "value_schema": '"int"'}, EmbeddedFormat.AVRO)
    assert (body.key_schema, body.value_schema) == (None, SchemaSelector(text='"int"'))
    body = parse_produce({"records": [{"value": 1}], "value_schema_id": 5, "value_schema": "x"}, EmbeddedFormat.AVRO)
    assert body.value_schema == SchemaSelector(5)


# Embedded formats


@given(st.binary(max_size=50))
def test_bytes_pass_as_base64(data):
    text = print_plain(EmbeddedFormat.BINARY, data)
    assert encode_plain(EmbeddedFormat.BINARY, json.loads(text)) == data


@settings(max_examples=40)
@given(ANYTHING)
def test_json_passes_unchanged(value):
    data = encode_plain(EmbeddedFormat.JSON, value)
    if value is None:
        assert data is None
        return
    assert json.loads(print_plain(EmbeddedFormat.JSON, data)) == value


def test_digits_of_numbers_are_kept_when_json_is_read():
    assert print_plain(EmbeddedFormat.JSON, b'{"price": 1.10, "id": 12345678901234567890.5}') == (
        '{"price": 1.10, "id": 12345678901234567890.5}'
    )


@pytest.mark.parametrize("value", ["not base64!", "YQ", 5, {"a": 1}, True])
def test_binary_is_base64(value):
    code, message = refused(encode_plain, EmbeddedFormat.BINARY, value)
    assert code == 400
    assert message.endswith("is not a base64 string.")


def test_text_that_utf8_does_not_have_is_refused():
    assert refused(encode_plain, EmbeddedFormat.STRING, "\ud800")[0] == 400
    assert encode_plain(EmbeddedFormat.JSON, "\ud800") == b'"\\ud800"'


def test_a_number_that_json_does_not_have_is_refused():
    assert refused(encode_plain, EmbeddedFormat.JSON, float("inf"))[0] == 400


def test_a_record_that_is_not_json_is_refused():
    assert refused(print_plain, EmbeddedFormat.JSON, b"\xff")[0] == 42203
    assert refused(print_plain, EmbeddedFormat.JSON, b"NaN")[0] == 42203


# Produce, v3


def test_a_record_of_v3_has_headers_key_value_and_time():
    record = parse_record(
        {
            "partition_id": 1,
            "headers": [{"name": "h", "value": base64.b64encode(b"x").decode()}, {"name": "n"}],
            "key": {"type": "BINARY", "data": "Zm9v"},
            "value": {"type": "json", "data": {"a": 1}},
            "timestamp": "2021-02-05T19:14:42Z",
            "unknown": 1,
        }
    )
    assert record.partition_id == 1
    assert record.headers == (("h", b"x"), ("n", None))
    assert (record.key.embedded, record.key.data) == (EmbeddedFormat.BINARY, "Zm9v")
    assert record.value.embedded is EmbeddedFormat.JSON
    assert record.timestamp_ms == 1612552482000
    assert parse_record({"value": {"data": 1}}).value.needs_schema


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({}, 42206, "Payload error. Request body is empty. Data is required."),
        ({"value": "text"}, 400, "value is not an object"),
        ({"value": {"type": "XML"}}, 400, "type=XML"),
        ({"value": {"type": "JSON", "schema_id": 1}}, 400, "JSON does not support schemas."),
        ({"value": {"schema": "{}"}}, 400, "a schema needs a type"),
        ({"value": {"subject_name_strategy": "X"}}, 400, "subject_name_strategy"),
        ({"headers": [{"name": "h", "value": "!"}]}, 400, "base64"),
        ({"headers": "x"}, 400, "headers is not an array"),
        ({"partition_id": "a"}, 422, "partition_id is not a number"),
        ({"timestamp": "yesterday"}, 400, "timestamp=yesterday"),
        ({"timestamp": "1969-01-01T00:00:00Z"}, 400, "before 1970"),
        ({"timestamp": -1}, 400, "timestamp=-1"),
    ],
)
def test_records_of_v3_are_checked(fields, code, text):
    answered, message = refused(parse_record, fields)
    assert (answered, text in message) == (code, True), message


def test_batches_have_ids():
    assert parse_batch({"entries": [{"id": "a", "value": 1}]}) == [("a", {"value": 1})]
    for body, text in (
        ({}, "Request body is empty. Data is required."),
        ({"entries": []}, "Empty batch."),
        ({"entries": [{"id": str(number)} for number in range(11)]}, "Too many entries in batch."),
        ({"entries": [{"id": "a"}, {"id": "a"}]}, "Batch entry IDs are not distinct."),
        ({"entries": [{"id": ""}]}, "Batch entry identifier is not a valid string."),
        ({"entries": [{}]}, "Batch entry identifier is not a valid string."),
    ):
        assert refused(parse_batch, body) == (42208, text)


@given(st.integers(0, 253402300799999))
def test_times_pass_as_text(milliseconds):
    assert parse_timestamp(print_timestamp(milliseconds)) == milliseconds


def test_a_time_beyond_all_calendars_has_no_text():
    assert print_timestamp((1 << 63) - 1) is None
    assert print_timestamp(-1) is None


# Consumer instances


def test_an_instance_has_defaults():
    instance = parse_instance({})
    assert (instance.name, instance.embedded, instance.auto_commit) == (None, EmbeddedFormat.BINARY, True)
    instance = parse_instance({"name": "i", "format": "JSON", "auto.commit.enable": "false", "fetch.min.bytes": "5"})
    assert (instance.embedded, instance.auto_commit, instance.min_bytes) == (EmbeddedFormat.JSON, False, 5)


@pytest.mark.parametrize(
    "body",
    [
        {"format": "xml"},
        {"format": "string"},
        {"auto.offset.reset": "oldest"},
        {"fetch.min.bytes": -10},
        {"auto.commit.enable": "maybe"},
        {"consumer.request.timeout.ms": 10**9},
        {"name": "a/b"},
        {"name": "a" * 250},
    ],
)
def test_settings_of_an_instance_are_checked(body):
    code, message = refused(parse_instance, body)
    assert code == 42204
    assert message.startswith("Invalid consumer configuration: ")


def test_a_subscription_has_topics_or_a_pattern():
    assert parse_subscription({"topics": ["a", "b"]}) == ["a", "b"]
    assert parse_subscription({"topic_pattern": "orders-[0-9]+.*"}).fullmatch("orders-12x")
    assert refused(parse_subscription, {"topics": ["a"], "topic_pattern": "b"})[0] == 40903
    assert refused(parse_subscription, {})[0] == 422
    assert refused(parse_subscription, {"topics": [1]})[0] == 422
    assert refused(parse_subscription, {"topics": "a"})[0] == 422


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*", "(a{1,9}){1,9}", ".*.*.*.*b", "a" * 501, "(", "[*"])
def test_patterns_that_could_stop_the_loop_are_refused(pattern):
    assert refused(parse_subscription, {"topic_pattern": pattern})[0] == 422


@pytest.mark.parametrize("pattern", [r"a\*\*\*\*\(\)\*", "[*+]{2}[*+]", "(a|b)c.*", "x?y?z?w?"])
def test_patterns_that_are_harmless_are_taken(pattern):
    assert parse_subscription({"topic_pattern": pattern}).pattern == pattern


def test_a_commit_names_the_last_record_that_was_processed():
    offsets = parse_commit({"offsets": [{"topic": "t", "partition": 0, "offset": 20, "metadata": "m"}]})
    assert {where: (offset.offset, offset.metadata) for where, offset in offsets.items()} == {("t", 0): (21, "m")}
    assert parse_commit({}) is None
    assert refused(parse_commit, {"offsets": [{"topic": "t", "partition": 0}]})[0] == 422


def test_positions_are_offsets_or_times():
    offsets, times = parse_seek(
        {
            "offsets": [{"topic": "t", "partition": "1", "offset": "5"}],
            "timestamps": [{"topic": "t", "partition": 0, "timestamp": "1970-01-01T00:00:01Z"}],
        }
    )
    assert (offsets, times) == ({("t", 1): 5}, {("t", 0): 1000})
    assert refused(parse_seek, {})[0] == 422
    assert refused(parse_seek, {"offsets": [{"topic": "t", "partition": 0, "offset": -1}]})[0] == 422


# Administration


def test_a_topic_has_counts_or_an_assignment():
    topic, validate_only = parse_new_topic(
        {"topic_name": "t", "partitions_count": 3, "configs": [{"name": "retention.ms", "value": 5}]}
    )
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (3, -1, {"retention.ms": "5"})
    assert not validate_only
    topic, _ = parse_new_topic({"topic_name": "t", "replicas_assignments": {"0": [1, 2], "1": [2, 1]}})
    assert topic.replica_assignment == {0: [1, 2], 1: [2, 1]}
    for assignment in ([], {"a": [1]}, {"0": 1}, {"0": ["x"]}, {"0": [True]}):
        assert refused(parse_new_topic, {"topic_name": "t", "replicas_assignments": assignment})[0] == 422
    assert refused(parse_new_topic, {})[0] == 422


def test_settings_are_set_or_deleted():
    changes, validate_only = parse_alterations(
        {"data": [{"name": "a", "value": "1"}, {"name": "b", "operation": "DELETE"}], "validate_only": True}
    )
    assert changes == {"a": (AlterOp.SET, "1"), "b": (AlterOp.DELETE, None)}
    assert validate_only
    assert refused(parse_alterations, {"data": [{"name": "a", "operation": "APPEND"}]})[0] == 400
    assert refused(parse_alterations, {"data": [{"name": "a"}, {"name": "a"}]})[0] == 400


RULE = {
    "resource_type": "TOPIC",
    "resource_name": "t",
    "pattern_type": "LITERAL",
    "principal": "User:a",
    "host": "*",
    "operation": "READ",
    "permission": "ALLOW",
}


def test_a_rule_has_all_fields():
    rule = parse_rule(RULE)
    assert (rule.resource_type, rule.operation) == (AclResourceType.TOPIC, AclOperation.READ)
    for name in RULE:
        assert refused(parse_rule, {key: value for key, value in RULE.items() if key != name})[0] in (400, 422)
    assert refused(parse_rule, RULE | {"operation": "ANY"}) == (
        400,
        "Bad Request: operation cannot be unspecified or ANY",
    )


def test_a_deletion_of_rules_says_what_it_deletes():
    query = {"resource_type": ["TOPIC"], "pattern_type": ["ANY"], "operation": ["ANY"]}
    assert parse_rule_filter(query, for_deletion=True).pattern_type is PatternType.ANY
    assert parse_rule_filter({}, for_deletion=False).resource_name is None
    assert refused(parse_rule_filter, {}, for_deletion=True)[0] == 400


# Whatever is sent


PARSERS = [
    lambda body: parse_produce(body, EmbeddedFormat.JSON),
    lambda body: parse_produce(body, EmbeddedFormat.AVRO),
    parse_record,
    parse_batch,
    parse_instance,
    parse_subscription,
    parse_commit,
    parse_seek,
    parse_new_topic,
    parse_alterations,
    parse_rule,
]
NAMES = st.sampled_from(
    ["records", "key", "value", "partition", "partition_id", "headers", "timestamp", "entries", "id", "type", "data"]
) | st.sampled_from(
    ["topics", "topic_pattern", "offsets", "timestamps", "topic", "offset", "name", "configs", "topic_name", "format"]
)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, ANYTHING, max_size=6), st.sampled_from(PARSERS))
def test_whatever_is_sent_is_parsed_or_refused(body, parse):
    status = 400
    try:
        parse(body)
    except HttpRefusal as refusal:
        status = refusal.status
        refusal.message.encode()
    assert 400 <= status < 500


@given(st.binary(max_size=40))
def test_any_body_is_an_object_or_refused(data):
    with contextlib.suppress(HttpRefusal):
        assert isinstance(parse_object(data), dict)


@given(st.text(max_size=20))
def test_numbers_in_paths(text):
    with contextlib.suppress(HttpRefusal):
        assert 0 <= number_in_path(text, not_found("no")) < 1 << 31
