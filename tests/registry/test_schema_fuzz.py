"""Texts that are damaged in any way: they are parsed or refused, and what is parsed can be compared."""

import base64
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.registry.schemas import InvalidSchemaError, check_compatibility, parse_schema
from registry.test_json_rules import RULES as JSON_RULES
from registry.test_proto_text import CUSTOM, EDITION, PROTO2, WRITTEN

AVRO = json.dumps(
    {
        "type": "record",
        "name": "a.R",
        "aliases": ["S"],
        "fields": [
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}, "default": "A"},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 4}, "order": "ignore"},
            {"name": "n", "type": ["null", "R", {"type": "array", "items": "E"}], "default": None},
            {"name": "m", "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}}},
        ],
    }
)
JSON_TEXTS = [json.dumps(schema) for new, old, *_ in JSON_RULES for schema in (new, old)]
SEEDS = {"AVRO": [AVRO], "JSON": JSON_TEXTS, "PROTOBUF": [WRITTEN, PROTO2, EDITION, CUSTOM]}
WORDS = {
    "AVRO": ['"type"', '"name"', "null", "0", "-1", "{}", "[]", '"int"', '"R"', ",", ":", "1e9", "true", '""'],
    "JSON": ['"type"', '"$ref"', '"#"', '"#/properties"', "{}", "[]", "0", "true", '"items"', '"not"', "null"],
    "PROTOBUF": ["message", "enum", "{", "}", ";", "=", "1", "0", "oneof", "map<", "[", "]", '"', "option", "(a)", "-",
                 ".", "reserved", "to", "max", "extend", "repeated", "group", "M", "E", "/*", "//"],
}  # fmt: skip


@st.composite
def damaged_texts(draw, schema_type):
    text = draw(st.sampled_from(SEEDS[schema_type]))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 2, 5, 20])))
        filler = draw(
            st.sampled_from(WORDS[schema_type]) | st.text(max_size=2) | st.just(text[: draw(st.integers(0, 40))])
        )
        text = text[:start] + filler + text[end:]
    return text


def parse(schema_type, text, is_new):
    try:
        return parse_schema(schema_type, text, {}, is_new=is_new)
    except InvalidSchemaError:
        return None


@pytest.mark.parametrize("schema_type", SEEDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_texts_are_parsed_or_refused(schema_type, data):
    texts = [data.draw(damaged_texts(schema_type)) for _ in range(2)]
    is_new = data.draw(st.booleans())
    parsed = [schema for schema in (parse(schema_type, text, is_new) for text in texts) if schema is not None]
    for schema in parsed:
        assert parse_schema(schema_type, schema.canonical, {}, is_new=False).canonical == schema.canonical
        normalized = schema.normalize()
        again = parse_schema(schema_type, normalized.canonical, {}, is_new=False)
        assert again.normalize().canonical == normalized.canonical
        if schema_type != "AVRO":  # Avro's normalized text is not in the form that its library prints
            assert again.canonical == normalized.canonical
        assert check_compatibility(normalized, schema, "FULL") == []
        schema.tags()
        schema.field_names()
        assert isinstance(schema.full_name, str)
        assert isinstance(schema.format("serialized"), str)
    if len(parsed) == 2:
        check_compatibility(*parsed, "FULL")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_descriptors_are_parsed_or_refused(data):
    text = data.draw(st.sampled_from(SEEDS["PROTOBUF"]))
    content = bytearray(base64.b64decode(parse("PROTOBUF", text, is_new=True).format("serialized")))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    parsed = parse("PROTOBUF", base64.b64encode(content).decode(), is_new=True)
    if parsed is not None:
        assert check_compatibility(parsed, parsed, "FULL") == []
        parsed.normalize()
