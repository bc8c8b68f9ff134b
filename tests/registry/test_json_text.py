"""JSON Schemas as text: drafts, references that are never fetched, and the text that is stored."""

import json
import socket

import pytest

from klamm.registry.schemas import InvalidSchemaError, SchemaEntity, parse_schema


def parse(schema, references=None, *, is_new=True):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return parse_schema("JSON", text, references or {}, is_new=is_new)


def test_text_keeps_the_order_and_normalized_text_does_not():
    text = '{ "type": "object",\n "properties": {"b": {"type": "string"}, "a": {"minimum": 1.50, "title": "é"}} }'
    parsed = parse(text)
    assert parsed.canonical == (
        '{"type":"object","properties":{"b":{"type":"string"},"a":{"minimum":1.5,"title":"é"}}}'
    )
    assert parsed.normalize().canonical == (
        '{"properties":{"a":{"minimum":1.5,"title":"é"},"b":{"type":"string"}},"type":"object"}'
    )
    assert parse(parsed.canonical).canonical == parsed.canonical
    assert parsed.normalize().normalize().canonical == parsed.normalize().canonical
    assert parsed.format("resolved") == parsed.canonical


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "not JSON"),
        ('"string"', "an object, true or false"),
        ("[]", "an object, true or false"),
        ({"type": "strin"}, "strin"),
        ({"type": "object", "properties": []}, "properties"),
        ({"pattern": "(["}, "regex"),
        ({"minimum": "1"}, "number"),
        ('{"minimum": 1e999}', "too large"),
        ('{"minimum": NaN}', "NaN"),
        ({"$ref": "#/definitions/none"}, "definitions/none"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": 3}, "minimum"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [{}]}, "items"),
        ("[" * 100_000, "nested deeper|not JSON"),
        ('{"not":' * 150 + "{}" + "}" * 150, None),
        ('{"not":' * 250 + "{}" + "}" * 250, "nested deeper"),
    ],
)
def test_invalid_schemas_are_refused(schema, message):
    if message is None:
        parse(schema)
    else:
        with pytest.raises(InvalidSchemaError, match=message):
            parse(schema)


@pytest.mark.parametrize("schema", [True, {}, {"$schema": "http://example.com/unknown"}, {"type": "object", "x-y": 1}])
def test_valid_schemas_are_taken(schema):
    parse(schema)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:{port}/s.json", "https://127.0.0.1:{port}/s.json#/x", "file:///etc/hosts"]
)
@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_nothing_is_fetched(address, draft):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        reference = address.format(port=server.getsockname()[1])
        schema = {"$schema": draft, "properties": {"a": {"$ref": reference}}}
        with pytest.raises(InvalidSchemaError, match=r"not among the references|not present"):
            parse(schema)
        with pytest.raises(BlockingIOError):
            server.accept()
    # What is stored already is readable, and the target stays unknown.
    parse(schema, is_new=False)


def test_schemas_of_the_drafts_need_no_reference():
    parse({"$ref": "http://json-schema.org/draft-07/schema#"})


@pytest.mark.parametrize(
    ("root", "name", "reference"),
    [
        ({}, "address.json", "address.json"),
        ({}, "address.json", "address.json#/definitions/zip"),
        ({}, "http://example.com/address.json", "http://example.com/address.json#/definitions/zip"),
        ({"$id": "http://example.com/user.json"}, "address.json", "address.json#/definitions/zip"),
        ({"$id": "http://example.com/user.json"}, "address.json", "http://example.com/address.json"),
        ({"$id": "http://example.com/user.json"}, "http://example.com/address.json", "address.json"),
    ],
)
def test_references_are_found_by_name_and_by_address(root, name, reference):
    address = parse({"type": "object", "definitions": {"zip": {"type": "string"}}})
    user = parse({**root, "properties": {"home": {"$ref": reference}}}, {name: address})
    assert list(user.field_names()) == ["home"]
    with pytest.raises(InvalidSchemaError):
        parse(user.canonical)


def test_references_of_another_type_are_refused():
    with pytest.raises(InvalidSchemaError, match="AVRO"):
        parse({}, {"a": parse_schema("AVRO", '"int"', {}, is_new=True)})


def test_names_and_fields():
    parsed = parse({"title": "User", "properties": {"a": {}, "b": {}}})
    assert parsed.full_name == "User"
    assert list(parsed.field_names()) == ["a", "b"]
    assert parse(True).full_name == ""
    assert list(parse(True).field_names()) == []


def test_tags_are_read_and_changed():
    parsed = parse(
        {
            "type": "object",
            "properties": {"ssn": {"type": "string", "confluent:tags": ["PII"]}, "n": {"type": "integer"}},
        }
    )
    assert parsed.tags() == {SchemaEntity("sr_field", "object.ssn"): frozenset({"PII"})}
    changed = parsed.with_tags({"object": ["PERSON"], "object.n": ["X"]}, {"object.ssn": ["PII"]})
    assert changed.tags() == {
        SchemaEntity("sr_record", "object"): frozenset({"PERSON"}),
        SchemaEntity("sr_field", "object.n"): frozenset({"X"}),
    }
    assert parsed.tags() == {SchemaEntity("sr_field", "object.ssn"): frozenset({"PII"})}
    with pytest.raises(InvalidSchemaError, match="no record or field"):
        parsed.with_tags({"object.other": ["X"]}, {})


def test_spelling_is_no_meaning():
    assert parse('{"type": "string", "minLength": 1}').meaning == parse('{"minLength": 1, "type": "string"}').meaning
    assert parse({"type": "string"}).meaning != parse({"type": "integer"}).meaning
    first, second = (parse({"$ref": "a.json"}, {"a.json": parse({"type": kind})}) for kind in ("string", "integer"))
    assert first.canonical == second.canonical
    assert first.meaning != second.meaning
