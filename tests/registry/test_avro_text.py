"""Avro schemas as text: what is accepted, and the one text that is stored for equal schemas."""

import json

import pytest

from klamm.registry.schemas import InvalidSchemaError, SchemaEntity, parse_schema


def parse(schema, references=None, *, is_new=True):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return parse_schema("AVRO", text, references or {}, is_new=is_new)


def record(*fields, name="R", **more):
    return {"type": "record", "name": name, **more, "fields": list(fields)}


CANONICAL = [
    ("string", '"string"'),
    ('"null"', '"null"'),
    ("null", '"null"'),
    ({"type": "string"}, '"string"'),
    ({"type": {"type": "string"}}, '"string"'),
    ({"type": "string", "avro.java.string": "String"}, '{"type":"string","avro.java.string":"String"}'),
    (
        {"logicalType": "decimal", "scale": 2, "type": "bytes", "precision": 4},
        '{"type":"bytes","logicalType":"decimal","scale":2,"precision":4}',
    ),
    ([{"type": "null"}, "long"], '["null","long"]'),
    ({"items": {"type": "int"}, "type": "array"}, '{"type":"array","items":"int"}'),
    ({"values": "int", "x": 1, "type": "map"}, '{"type":"map","values":"int","x":1}'),
    (
        {"symbols": ["A", "B"], "default": "B", "doc": "d", "name": "E", "type": "enum", "aliases": ["F"], "p": 1},
        '{"type":"enum","name":"E","doc":"d","symbols":["A","B"],"default":"B","p":1,"aliases":["F"]}',
    ),
    ({"size": 16, "name": "a.F", "type": "fixed"}, '{"type":"fixed","name":"F","namespace":"a","size":16}'),
    # One name, two spellings.
    (record(name="a.b.C"), '{"type":"record","name":"C","namespace":"a.b","fields":[]}'),
    (record(name="C", namespace="a.b"), '{"type":"record","name":"C","namespace":"a.b","fields":[]}'),
    (record(name="a.b.C", namespace="x"), '{"type":"record","name":"C","namespace":"a.b","fields":[]}'),
    (
        record({"order": "ignore", "aliases": ["g"], "default": 1, "doc": "é", "x": [], "type": "int", "name": "f"}),
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"int","doc":"é","default":1,"order":"ignore",'
            '"aliases":["g"],"x":[]}]}'
        ),
    ),
    (record({"name": "x", "type": "int", "order": "IGNORE"}), None),
    # The namespace is inherited, and not printed again; one that differs is, also the null one.
    (
        record(
            {"name": "x", "type": record(name="a.I")},
            {"name": "y", "type": record(name="J", namespace="")},
            {"name": "z", "type": "a.I"},
            name="a.R",
        ),
        (
            '{"type":"record","name":"R","namespace":"a","fields":[{"name":"x","type":{"type":"record","name":"I",'
            '"fields":[]}},{"name":"y","type":{"type":"record","name":"J","namespace":"","fields":[]}},'
            '{"name":"z","type":"I"}]}'
        ),
    ),
    (record({"name": "next", "type": ["null", "R"], "default": None}), None),
]


@pytest.mark.parametrize(("schema", "canonical"), CANONICAL)
def test_canonical_text(schema, canonical):
    parsed = parse(schema)
    if canonical is not None:
        assert parsed.canonical == canonical
    assert parse(parsed.canonical).canonical == parsed.canonical
    assert parse(parsed.normalize().canonical).normalize().canonical == parsed.normalize().canonical


def test_normalized_text_has_full_names_and_sorted_properties():
    written = record(
        {"name": "x", "type": record(name="I"), "z": 1, "a": {"d": 1, "c": 2}},
        {"name": "y", "type": "I"},
        name="a.R",
    )
    assert parse(written).normalize().canonical == (
        '{"name":"a.R","type":"record","fields":[{"name":"x","type":{"name":"a.I","type":"record","fields":[]},'
        '"order":"ASCENDING","a":{"c":2,"d":1},"z":1},{"name":"y","type":"a.I","order":"ASCENDING"}]}'
    )
    unordered = {"type": "enum", "name": "E", "aliases": ["c.Z", "B"], "symbols": ["A"], "default": "A", "doc": "d"}
    assert parse(unordered).normalize().canonical == (
        '{"name":"E","type":"enum","symbols":["A"],"doc":"d","aliases":["B","c.Z"],"default":"A"}'
    )
    money = {"scale": 2, "a": 1, "precision": 4, "type": "bytes", "logicalType": "decimal"}
    assert parse(money).normalize().canonical == (
        '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2,"a":1}'
    )


INVALID = [
    ("", "not JSON"),
    ("{", "not JSON"),
    ("{}", "attribute type"),
    ("[" * 500 + "]" * 500, "nested deeper"),
    ("[" * 100_000, "nested deeper|not JSON"),
    ("NaN", "undefined name"),
    ('{"type": "int", "x": NaN}', "NaN"),
    ("7", "no type"),
    ("text", "undefined name"),
    ({"type": "strong"}, "undefined name: strong"),
    ({"type": "array"}, "no items"),
    ({"type": "map", "items": "int"}, "no values"),
    ({"type": "record", "fields": []}, "no name"),
    ({"type": "record", "name": "R"}, "no fields"),
    (record({"name": "x"}), "no type"),
    (record({"type": "int"}), "no name"),
    (record("x"), "no object"),
    (record({"name": "x", "type": "int"}, {"name": "x", "type": "int"}), "twice"),
    (record({"name": "x-y", "type": "int"}), "no valid name"),
    (record({"name": "1", "type": "int"}), "no valid name"),
    (record(name="a..b"), "no valid name"),
    (record(name="int"), "primitive"),
    (record({"name": "x", "type": "int", "order": "up"}), "order"),
    (record({"name": "x", "type": "int", "aliases": "y"}), "aliases"),
    (record({"name": "x", "type": record()}), "defined twice"),
    (["int", "int"], "duplicate in union"),
    (["int", ["string"]], "contains a union"),
    ([record(name="a.X"), {"type": "fixed", "name": "X", "namespace": "a", "size": 1}], "defined twice"),
    ({"type": "enum", "name": "E"}, "no symbols"),
    ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "symbol twice"),
    ({"type": "enum", "name": "E", "symbols": ["A B"]}, "no valid name"),
    ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "none of its symbols"),
    ({"type": "fixed", "name": "F"}, "size"),
    ({"type": "fixed", "name": "F", "size": -1}, "size"),
    ({"type": "fixed", "name": "F", "size": True}, "size"),
]


@pytest.mark.parametrize(("schema", "message"), INVALID)
def test_invalid_schemas_are_refused(schema, message):
    with pytest.raises(InvalidSchemaError, match=message):
        parse(schema)


DEFAULTS = [
    ("int", 2**31 - 1, True),
    ("int", 2**31, False),
    ("int", True, False),
    ("int", "1", False),
    ("int", 1.0, False),
    ("long", 2**31, True),
    ("float", 1, True),
    ("double", "1", False),
    ("boolean", False, True),
    ("boolean", 0, False),
    ("null", None, True),
    ("string", None, False),
    ("bytes", "\u00ff", True),
    (["null", "int"], None, True),
    (["null", "int"], 1, True),
    (["null", "int"], "x", False),
    ({"type": "array", "items": "int"}, [1, 2], True),
    ({"type": "array", "items": "int"}, [1, "x"], False),
    ({"type": "map", "values": "int"}, {"a": 1}, True),
    ({"type": "map", "values": "int"}, [], False),
    (record({"name": "a", "type": "int"}, name="I"), {"a": 1}, True),
    (record({"name": "a", "type": "int"}, name="I"), {}, False),
    (record({"name": "a", "type": "int", "default": 0}, name="I"), {}, True),
    # A default of R that contains R by default would never end.
    ("R", {}, False),
]


@pytest.mark.parametrize(("field_type", "default", "fits"), DEFAULTS)
def test_defaults_of_new_schemas_fit_their_types(field_type, default, fits):
    schema = record({"name": "x", "type": field_type, "default": default})
    if fits:
        parse(schema)
    else:
        with pytest.raises(InvalidSchemaError, match="does not fit"):
            parse(schema)
    parse(schema, is_new=False)


def test_stored_schemas_may_have_names_that_are_not_valid_any_more():
    assert parse(record({"name": "x-y", "type": "int"}), is_new=False).field_names() == ["x-y"]


def test_references_are_names_until_they_are_resolved():
    address = parse(record({"name": "street", "type": "string"}, name="a.Address"))
    user = parse(record({"name": "home", "type": "a.Address"}, {"name": "work", "type": "a.Address"}, name="b.User"),
                 {"address": address})  # fmt: skip
    assert user.full_name == "b.User"
    assert user.canonical == (
        '{"type":"record","name":"User","namespace":"b","fields":[{"name":"home","type":"a.Address"},'
        '{"name":"work","type":"a.Address"}]}'
    )
    assert user.format("resolved") == (
        '{"type":"record","name":"User","namespace":"b","fields":[{"name":"home","type":{"type":"record",'
        '"name":"Address","namespace":"a","fields":[{"name":"street","type":"string"}]}},'
        '{"name":"work","type":"a.Address"}]}'
    )
    assert parse(user.format("resolved")).format("resolved") == user.format("resolved")
    assert user.format("unknown") == user.canonical
    with pytest.raises(InvalidSchemaError, match=r"undefined name: a\.Address"):
        parse(user.canonical)
    with pytest.raises(InvalidSchemaError, match="defined twice"):
        parse(record(name="a.Address"), {"address": address})


def test_tags_are_read_and_changed():
    tagged = record(
        {"name": "ssn", "type": "string", "confluent:tags": ["PII"]}, {"name": "n", "type": "int"}, name="a.User"
    )
    user = parse(tagged)
    assert user.tags() == {SchemaEntity("sr_field", "a.User.ssn"): frozenset({"PII"})}
    changed = user.with_tags({"a.User": ["PERSON"], "a.User.n": ["X"]}, {"a.User.ssn": ["PII"]})
    assert changed.canonical == (
        '{"type":"record","name":"User","namespace":"a","fields":[{"name":"ssn","type":"string"},'
        '{"name":"n","type":"int","confluent:tags":["X"]}],"confluent:tags":["PERSON"]}'
    )
    assert user.tags() == {SchemaEntity("sr_field", "a.User.ssn"): frozenset({"PII"})}
    with pytest.raises(InvalidSchemaError, match=r"no record or field a\.User\.other"):
        user.with_tags({"a.User.other": ["X"]}, {})


def test_unknown_types_are_refused():
    with pytest.raises(InvalidSchemaError, match="THRIFT"):
        parse_schema("THRIFT", "", {}, is_new=True)


def test_spelling_is_no_meaning():
    address = parse(record({"name": "street", "type": "string"}, name="a.Address"))
    user = record({"name": "home", "type": "a.Address"}, name="b.User")
    apart = parse(user, {"address": address})
    together = parse(apart.format("resolved"))
    assert apart.canonical != together.canonical
    assert apart.meaning == together.meaning == together.normalize().meaning
    assert apart.meaning != parse(record(name="b.User")).meaning
