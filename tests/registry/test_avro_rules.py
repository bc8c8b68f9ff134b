"""Every rule of Avro's table, both ways, and the limits of a check."""

import json

import pytest

from klamm.registry.schemas import check_compatibility, parse_schema
from klamm.registry.schemas.comparison import CompatibilityLevel


def parse(schema, references=None):
    return parse_schema("AVRO", json.dumps(schema), references or {}, is_new=True)


def record(*fields, name="R", **more):
    return {"type": "record", "name": name, **more, "fields": list(fields)}


def field(name, field_type="int", **more):
    return {"name": name, "type": field_type, **more}


def enum(*symbols, name="E", **more):
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size, name="F", **more):
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items):
    return {"type": "array", "items": items}


def mapping(values):
    return {"type": "map", "values": values}


TREE = record(field("value"), field("left", ["null", "R"], default=None), name="R")

RULES = [
    # reader, writer, kinds when the reader reads the writer's data, kinds the other way round
    ("int", "int", [], []),
    ("long", "int", [], ["TYPE_MISMATCH"]),
    ("float", "int", [], ["TYPE_MISMATCH"]),
    ("double", "int", [], ["TYPE_MISMATCH"]),
    ("float", "long", [], ["TYPE_MISMATCH"]),
    ("double", "long", [], ["TYPE_MISMATCH"]),
    ("double", "float", [], ["TYPE_MISMATCH"]),
    ("string", "bytes", [], []),
    ("int", "boolean", ["TYPE_MISMATCH"], ["TYPE_MISMATCH"]),
    ("null", "int", ["TYPE_MISMATCH"], ["TYPE_MISMATCH"]),
    ("string", "int", ["TYPE_MISMATCH"], ["TYPE_MISMATCH"]),
    ({"type": "int", "logicalType": "date"}, "int", [], []),
    ({"type": "int", "logicalType": "date"}, {"type": "int", "logicalType": "time-millis"}, [], []),
    (array("long"), array("int"), [], ["TYPE_MISMATCH"]),
    (mapping("long"), mapping("int"), [], ["TYPE_MISMATCH"]),
    (array("int"), mapping("int"), ["TYPE_MISMATCH"], ["TYPE_MISMATCH"]),
    (fixed(4), fixed(4), [], []),
    (fixed(4), fixed(5), ["FIXED_SIZE_MISMATCH"], ["FIXED_SIZE_MISMATCH"]),
    (fixed(4), fixed(4, name="G"), ["NAME_MISMATCH"], ["NAME_MISMATCH"]),
    (fixed(4, aliases=["G"]), fixed(4, name="G"), [], ["NAME_MISMATCH"]),
    (fixed(4, name="a.F"), fixed(4, name="b.F"), [], []),
    (fixed(4), "bytes", ["TYPE_MISMATCH"], ["TYPE_MISMATCH"]),
    (enum("A", "B"), enum("B", "A"), [], []),
    (enum("A", "B", "C"), enum("A", "B"), [], ["MISSING_ENUM_SYMBOLS"]),
    (enum("A", "B", default="A"), enum("A", "B", "C"), [], []),
    (enum("A"), enum("A", name="D"), ["NAME_MISMATCH"], ["NAME_MISMATCH"]),
    (enum("A", aliases=["D"]), enum("A", name="D"), [], ["NAME_MISMATCH"]),
    (enum("A"), "string", ["TYPE_MISMATCH"], ["TYPE_MISMATCH"]),
    (record(field("a")), record(field("a")), [], []),
    (record(field("a")), record(field("a"), name="S"), ["NAME_MISMATCH"], ["NAME_MISMATCH"]),
    (record(aliases=["S"]), record(name="S"), [], ["NAME_MISMATCH"]),
    (record(name="a.R", aliases=["S"]), record(name="b.S"), ["NAME_MISMATCH"], ["NAME_MISMATCH"]),
    (record(name="a.R", aliases=["b.S"]), record(name="b.S"), [], ["NAME_MISMATCH"]),
    (record(name="a.R"), record(name="b.R"), [], []),
    (record(), {**record(), "type": "error"}, [], []),
    (record(field("a"), field("b")), record(field("b"), field("a")), [], []),
    (record(), record(field("a")), [], ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    (record(field("a", default=1)), record(), [], []),
    (record(field("a", ["null", "int"], default=None)), record(), [], []),
    (record(field("a", ["null", "int"])), record(), ["READER_FIELD_MISSING_DEFAULT_VALUE"], []),
    (record(field("a", "long")), record(field("a", "int")), [], ["TYPE_MISMATCH"]),
    (record(field("b", aliases=["a"])), record(field("a")), [], ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    # `a` is read as the field of that name; it does not count for the alias a second time.
    (record(field("a"), field("b", aliases=["a"])), record(field("a")), ["READER_FIELD_MISSING_DEFAULT_VALUE"], []),
    (record(field("a", default=1)), record(field("a")), [], []),
    (record(field("a", doc="x", order="ignore", x=1)), record(field("a")), [], []),
    (["int", "string"], "int", [], ["TYPE_MISMATCH"]),
    (["long", "null"], "int", [], ["TYPE_MISMATCH", "TYPE_MISMATCH"]),
    (["int", "string"], ["string", "int"], [], []),
    (["int", "string", "null"], ["string", "int"], [], ["MISSING_UNION_BRANCH"]),
    (["long", "boolean"], ["int", "boolean"], [], ["MISSING_UNION_BRANCH"]),
    ("int", ["int"], [], []),
    ("double", ["int", "long"], [], ["MISSING_UNION_BRANCH"]),
    (["null", "boolean"], "int", ["MISSING_UNION_BRANCH"], ["TYPE_MISMATCH", "TYPE_MISMATCH"]),
    ([], [], [], []),
    ([record(field("a"), name="A"), "null"], record(field("a"), name="A"), [], ["TYPE_MISMATCH"]),
    ([record(field("a"), name="A"), "null"], record(name="A"), ["MISSING_UNION_BRANCH"], ["TYPE_MISMATCH"]),
    (TREE, TREE, [], []),
    (
        record(field("value", "long"), field("left", ["null", "R"], default=None)),
        TREE,
        [],
        ["TYPE_MISMATCH"],
    ),
]


@pytest.mark.parametrize(("reader", "writer", "forwards", "backwards"), RULES)
def test_rule(reader, writer, forwards, backwards):
    new, old = parse(reader), parse(writer)
    assert [entry.kind for entry in check_compatibility(new, old, "BACKWARD")] == forwards
    assert [entry.kind for entry in check_compatibility(new, old, "FORWARD")] == backwards
    assert bool(check_compatibility(new, old, "FULL")) == bool(forwards or backwards)


@pytest.mark.parametrize("level", CompatibilityLevel)
def test_levels_choose_the_direction(level):
    added = parse(record(field("a")))
    kinds = [entry.kind for entry in check_compatibility(added, parse(record()), level)]
    assert kinds == (["READER_FIELD_MISSING_DEFAULT_VALUE"] if level.is_backward else [])
    kinds = [entry.kind for entry in check_compatibility(parse(record()), added, level)]
    assert kinds == (["READER_FIELD_MISSING_DEFAULT_VALUE"] if level.is_forward else [])


def test_an_incompatibility_says_where():
    old = parse(record(field("a", record(field("b", array("int")), name="S"))))
    new = parse(record(field("a", record(field("b", array("string")), name="S"))))
    (mismatch,) = check_compatibility(new, old, "BACKWARD")
    assert mismatch.path == "/fields/0/type/fields/0/type/items"
    assert "string" in mismatch.message
    assert "int" in mismatch.message
    assert mismatch.describe().startswith("{errorType:'TYPE_MISMATCH', description:'")


def test_references_are_compared_too():
    before = parse(record(field("street", "string"), name="Address"))
    after = parse(record(field("street", "string"), field("zip", "string"), name="Address"))
    user = record(field("home", "Address"), name="User")
    new, old = parse(user, {"address": after}), parse(user, {"address": before})
    (missing,) = check_compatibility(new, old, "BACKWARD")
    assert (missing.kind, missing.path) == ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0/type/fields/1")
    assert check_compatibility(new, old, "FORWARD") == []


def chain(length, last, prefix="N"):
    """N0 uses N1 twice, N1 uses N2 twice: 2**length paths, `length` types."""
    schema = last
    for number in reversed(range(length)):
        name = f"{prefix}{number}"
        inner = f"{prefix}{number + 1}" if number + 1 < length else schema
        schema = record(field("a", schema), field("b", inner), field("c", ["null", inner]), name=name)
    return schema


def test_types_that_are_used_often_are_compared_once():
    old, new = parse(chain(40, "long")), parse(chain(40, "int"))
    assert check_compatibility(old, new, "BACKWARD") == []
    incompatibilities = check_compatibility(new, old, "BACKWARD")
    assert incompatibilities[0].kind == "TYPE_MISMATCH"
    assert len(incompatibilities) < 200


def test_a_result_that_relied_on_an_incompatible_pair_is_not_kept():
    # The branch A of the reader's union fails only after B was compared under the assumption that A is compatible.
    def schema(leaf):
        inner = record(field("a", ["null", "A"], default=None), name="B")
        return record(
            field("first", ["null", record(field("b", inner), field("leaf", leaf), name="A")], default=None),
            field("second", "B"),
        )

    incompatibilities = check_compatibility(parse(schema("int")), parse(schema("long")), "BACKWARD")
    assert [(entry.kind, entry.path) for entry in incompatibilities] == [
        ("MISSING_UNION_BRANCH", "/fields/0/type/1"),
        ("MISSING_UNION_BRANCH", "/fields/1/type/fields/0/type/1"),
    ]


def test_cycles_of_different_lengths_end():
    def cycle(length):
        schema = f"C0_{length}"
        names = [f"C{number}_{length}" for number in range(length)]
        for name in reversed(names):
            schema = record(field("next", schema), name=name, aliases=[f"C{n}_{m}" for m in (7, 9) for n in range(m)])
        return parse(schema)

    assert check_compatibility(cycle(7), cycle(9), "FULL") == []


def test_a_check_that_takes_too_long_is_given_up():
    def wide(kind):
        return parse(
            [record(field("a", kind), name=f"B{n}", aliases=[f"B{m}" for m in range(400)]) for n in range(400)]
        )

    (limit,) = check_compatibility(wide("int"), wide("string"), "BACKWARD")
    assert limit.kind == "CHECK_LIMIT_EXCEEDED"
