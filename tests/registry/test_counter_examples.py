"""What BACKWARD forbids is forbidden for a reason: a datum of the old schema that the new one does not read.

The other half of the oracles: there, what is allowed is read. Rules that forbid more than a datum could show are named
in the lists below.
"""

import copy
import itertools
import json
from random import Random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from klamm.registry.schemas import check_compatibility, parse_schema
from klamm.registry.schemas.json_schema import _VALIDATORS

from . import test_avro_oracle as avro
from . import test_json_oracle as json_schema
from . import test_proto_oracle as proto
from .test_avro_rules import RULES as AVRO_RULES
from .test_json_rules import RULES as JSON_RULES
from .test_proto_rules import PROTO2_RULES
from .test_proto_rules import RULES as PROTO_RULES

ATTEMPTS = 40


def list_refused(rules):
    """Both directions of a table that are refused: (reader, writer, kinds)."""
    for new, old, backward, forward in rules:
        if backward:
            yield new, old, backward
        if forward:
            yield old, new, forward


# Avro: fastavro is the reader

AVRO_CONSERVATIVE = {
    "NAME_MISMATCH": "fastavro reads records and enums of any name; Java's resolution compares names",
}


def is_fixed_of_another_name(old, new):
    """fastavro reads a fixed of any name, also in a union, as another one of the same size."""
    before, after = ({name: node for name, node in avro.collect_named(schema, {}).items() if node["type"] == "fixed"}
                     for schema in (old, new))  # fmt: skip
    sizes = {node["size"] for node in after.values()}
    return any(name not in after and node["size"] in sizes for name, node in before.items())


def find_unread_datum(draw, old, new):
    """Return a datum of the old schema that fastavro does not read with the new one, in a tuple."""
    for attempt in range(ATTEMPTS):
        # Draws may all be the least ones; variants differ nevertheless.
        value = avro.draw_value(draw, old, avro.collect_named(old, {}), variant=attempt)
        try:
            avro.read_fastavro(value, old, new)
        except Exception:  # noqa: BLE001 - fastavro has no common class of errors
            return (value,)
    return None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(avro.schema_pairs(), st.data())
def test_refused_changes_of_avro_have_a_datum(pair, data):
    old, new = (parse_schema("AVRO", json.dumps(schema), {}, is_new=True) for schema in pair)
    kinds = {entry.kind for entry in check_compatibility(new, old, "BACKWARD")}
    event("refused" if kinds else "allowed")
    if kinds and not kinds & AVRO_CONSERVATIVE.keys() and not is_fixed_of_another_name(*pair):
        assert find_unread_datum(data.draw, *pair) is not None, pair


# JSON Schema: jsonschema-rs is the reader

SCALARS = (*json_schema.SCALARS, 5, 6, 7, -2, -3, -0.5, 1.5, "bb", "cc", "aaaa", "abab", "abcde", "x" * 10)


def make_value(random, depth):
    kind = random.randrange(3) if depth else 0
    if kind == 0:
        return random.choice(SCALARS)
    if kind == 1:
        return [make_value(random, depth - 1) for _ in range(random.randrange(5))]
    names = random.sample(["a", "b", "c", "ab", "d", "abc", "long"], random.randrange(6))
    return {name: make_value(random, depth - 1) for name in names}


def list_candidates(schema):
    """Values of the types that a schema of `draw_json_schema` names; most of VALUES are not valid for it.

    Of other schemas, as compat has them, only the parts that those have are followed.
    """
    match schema:
        case {"type": "array", "items": dict()}:
            items = list(list_candidates(schema["items"]))
            yield from ([item] * size for size in range(5) for item in items)
            yield from (items[start : start + size] for size in range(2, 5) for start in range(len(items)))
        case {"type": "object", "properties": dict()}:
            parts = {name: list(list_candidates(part)) for name, part in schema["properties"].items()}
            for size in range(len(parts) + 1):
                for names in itertools.combinations(parts, size):
                    for values in itertools.product(*(parts[name] for name in names)):
                        yield dict(zip(names, values, strict=True))
                        yield {**dict(zip(names, values, strict=True)), "d": True}
        case _:
            yield from SCALARS
            yield from schema.get("enum", ()) if isinstance(schema, dict) else ()


VALUES = [
    *SCALARS,
    *(make_value(Random(seed), depth) for depth in (1, 2, 3) for seed in range(1200)),
]


def find_refused_value(draft, old, new):
    """Return a value that is valid for the old schema and not for the new one, in a tuple."""
    before, after = _VALIDATORS[draft](old), _VALIDATORS[draft](new)
    for value in itertools.chain(VALUES, list_candidates(old)):
        if before.is_valid(value) and not after.is_valid(json_schema.add_defaults(copy.deepcopy(value), new)):
            return (value,)
    return None


@pytest.mark.parametrize(("new", "old", "kinds"), list(list_refused(JSON_RULES)))
def test_every_rule_of_json_schema_has_a_value(new, old, kinds):
    assert find_refused_value(7, old, new) is not None, kinds


def draw_json_schema(draw, depth):
    """Keywords that do not interact: each bound alone can be broken by a value."""
    kinds = ["string", "number", "integer", "boolean", "null"] + (
        ["object", "array", "choice", "enum"] if depth else []
    )
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "string":
            bounds = [{}, {"minLength": 1}, {"minLength": 2}, {"maxLength": 2}, {"maxLength": 3}, {"pattern": "^a"}]
            return {"type": kind, **draw(st.sampled_from(bounds))}
        case "number" | "integer":
            bounds = [{}, {"minimum": 0}, {"minimum": 2}, {"maximum": 2}, {"maximum": 4}, {"exclusiveMinimum": 0},
                      {"multipleOf": 2}, {"multipleOf": 3}]  # fmt: skip
            return {"type": kind, **draw(st.sampled_from(bounds))}
        case "enum":
            values = st.sampled_from(["a", "ab", "", 1, 2, -1, 2.5, None, True])
            return {"enum": draw(st.lists(values, min_size=1, max_size=4, unique_by=json.dumps))}
        case "choice":
            names = st.sampled_from(["string", "integer", "boolean", "null"])
            listed = draw(st.lists(names, min_size=1, max_size=3, unique=True))
            return {draw(st.sampled_from(["anyOf", "oneOf"])): [{"type": name} for name in listed]}
        case "array":
            bounds = [{}, {"minItems": 1}, {"maxItems": 2}, {"uniqueItems": True}]
            return {"type": kind, "items": draw_json_schema(draw, 0), **draw(st.sampled_from(bounds))}
        case "object":
            names = draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=2, unique=True))
            models = [{}, {}, {"additionalProperties": False}, {"additionalProperties": {"type": "boolean"}}]
            schema = {"type": kind, "properties": {name: draw_json_schema(draw, 0) for name in names}}
            required = {"required": names[:1]} if names and draw(st.booleans()) else {}
            return {**schema, **required, **draw(st.sampled_from(models))}
    return {"type": kind}


@st.composite
def json_schema_pairs(draw):
    old = draw_json_schema(draw, 1)
    new = draw_json_schema(draw, 1)
    if isinstance(old.get("type"), str) and draw(st.booleans()):
        # Of the same type, so that rules about its keywords decide.
        while new.get("type") != old["type"]:
            new = draw_json_schema(draw, 1)
    return old, new


def is_enum_with_bounds(old, new):
    """The rules compare keywords: the values of an enum are not tried with bounds that the old schema has not."""
    return "enum" in old and set(new) & {"minLength", "maxLength", "pattern", "minimum", "maximum", "multipleOf",
                                         "exclusiveMinimum"}  # fmt: skip


def is_integer_by_multiples(old, new):
    """A multiple of a whole number is an integer; the rules compare types before bounds."""
    return '"number", "multipleOf"' in json.dumps(old) and '"integer"' in json.dumps(new)


def is_length_by_pattern(old, new):
    """The pattern needs a character; the rules compare keywords."""
    return '"pattern": "^a"' in json.dumps(old) and '"minLength": 1' in json.dumps(new)


def is_empty(old, _):
    """No value that is tried is valid for the old schema."""
    before = _VALIDATORS[7](old)
    return not any(before.is_valid(value) for value in itertools.chain(VALUES, list_candidates(old)))


JSON_CONSERVATIVE = (is_enum_with_bounds, is_integer_by_multiples, is_length_by_pattern, is_empty)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(json_schema_pairs())
def test_refused_changes_of_json_schema_have_a_value(pair):
    old, new = (parse_schema("JSON", json.dumps(schema), {}, is_new=True) for schema in pair)
    kinds = [entry.kind for entry in check_compatibility(new, old, "BACKWARD")]
    event("refused" if kinds else "allowed")
    if kinds and find_refused_value(7, *pair) is None:
        assert any(rule(*pair) for rule in JSON_CONSERVATIVE), (kinds, *pair)


# Protobuf: the library of Python is the reader

PROTO_CONSERVATIVE = {
    "PACKAGE_CHANGED": "names are no part of messages; readers by name do not find the type",
    "MESSAGE_REMOVED": "the same; message indexes of records may name another message",
    "FIELD_NAMED_TYPE_CHANGED": "messages of two names may have the same fields",
    "REQUIRED_FIELD_REMOVED": "an older reader misses it, which FORWARD forbids; Confluent's rules forbid it both ways",
    "FIELD_NUMERIC_LABEL_CHANGED": "one number is read as a list of one",
    "REQUIRED_FIELD_ADDED": "a field that became required is missing only if writers left it out",
}


def find_lost_field(written, read):
    """Return what a reader does not see, or sees otherwise, of a message; None if nothing.

    A field that the new schema has not is no loss: readers ignore it. Of a oneof it is: none of its members is set.
    """
    if not read.IsInitialized():
        return "a required field"
    readable = {field.number: field for field in read.DESCRIPTOR.fields}
    for field, value in written.ListFields():
        match = readable.get(field.number)
        if match is None:
            if field.containing_oneof is not None:
                return field.name
            continue
        seen = getattr(read, match.name)
        if (field.message_type is None) != (match.message_type is None):
            return field.name
        if field.message_type is not None and not (field.is_repeated or match.is_repeated):
            if not read.HasField(match.name) or find_lost_field(value, seen):
                return field.name
        elif field.message_type is not None:
            if str(value) != str(seen):
                return field.name
        elif list_contents(field, value) != list_contents(match, seen):
            return field.name
    return None


def list_contents(field, value):
    contents = value if field.is_repeated else [value]
    return [item.encode() if isinstance(item, str) else item for item in contents]


def find_lost_message(data, old, new):
    """Return a message of the old schema that the new one does not read in full."""
    for name in (message.name for message in old.linked.proto.message_type):
        classes = [proto.message_class(schema, name) for schema in (old, new)]
        for _ in range(ATTEMPTS):
            written = proto.fill(data, classes[0]())
            try:
                read = classes[1].FromString(written.SerializeToString())
            except DecodeError:
                return written
            if find_lost_field(written, read):
                return written
    return None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(proto.file_pairs(), st.data())
def test_refused_changes_of_protobuf_have_a_message(pair, data):
    old, new = (parse_schema("PROTOBUF", text, {}, is_new=True) for text in pair)
    kinds = {entry.kind for entry in check_compatibility(new, old, "BACKWARD")}
    event("refused" if kinds else "allowed")
    if kinds and not kinds & PROTO_CONSERVATIVE.keys():
        assert find_lost_message(data, old, new) is not None, (kinds, *pair)


def test_every_rule_has_a_datum_or_a_name():
    """Kinds of the tables: those of the random pairs have data, the others are in a list of conservative rules."""
    listed = {kind for *_, kinds in [*list_refused(PROTO_RULES), *list_refused(PROTO2_RULES)] for kind in kinds}
    assert PROTO_CONSERVATIVE.keys() <= listed | proto.KINDS
    assert listed - PROTO_CONSERVATIVE.keys() <= proto.KINDS
    listed = {kind for *_, kinds in list_refused(AVRO_RULES) for kind in kinds}
    assert AVRO_CONSERVATIVE.keys() <= listed
    assert listed <= avro.KINDS
