"""Every rule of JSON Schema's tables, both ways, with all drafts, and the limits of a check."""

import json

import pytest

from klamm.registry.schemas import check_compatibility, parse_schema

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}


def parse(schema, references=None, *, draft=None):
    if draft is not None:
        schema = {"$schema": DRAFTS[draft], **schema}
    return parse_schema("JSON", json.dumps(schema), references or {}, is_new=True)


def kinds(new, old, level="BACKWARD", policy="STRICT"):
    return [entry.kind for entry in check_compatibility(new, old, level, policy)]


def string(**more):
    return {"type": "string", **more}


def integer(**more):
    return {"type": "integer", **more}


def thing(properties=None, **more):
    return {"type": "object", **({"properties": properties} if properties is not None else {}), **more}


def closed(properties=None, **more):
    return thing(properties, additionalProperties=False, **more)


def array(items=None, **more):
    return {"type": "array", **({"items": items} if items is not None else {}), **more}


STRING, INTEGER, NUMBER = string(), integer(), {"type": "number"}

RULES = [
    # new, old, kinds of BACKWARD, kinds of FORWARD
    ({}, STRING, [], ["TYPE_NARROWED"]),
    (True, STRING, [], ["TYPE_NARROWED"]),
    (STRING, False, [], ["TYPE_NARROWED"]),
    (STRING, STRING, [], []),
    (string(title="a", description="b", format="date", default="c", examples=["d"]), STRING, [], []),
    # types
    (STRING, INTEGER, ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    (NUMBER, INTEGER, [], ["TYPE_NARROWED"]),
    ({"type": ["string", "null"]}, STRING, [], ["TYPE_NARROWED"]),
    ({"type": ["string", "null"]}, {"type": ["null", "string"]}, [], []),
    ({"type": ["string"]}, STRING, [], []),
    # enum, const
    ({"enum": ["a", "b"]}, {"enum": ["a"]}, [], ["ENUM_ARRAY_NARROWED"]),
    ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}, [], []),
    ({"enum": ["a"]}, {"enum": ["b"]}, ["ENUM_ARRAY_CHANGED"], ["ENUM_ARRAY_CHANGED"]),
    ({"enum": ["a"]}, STRING, ["ENUM_ARRAY_NARROWED"], []),
    ({"enum": [1]}, {"const": 1.0}, [], []),
    ({"enum": [1]}, {"enum": [True]}, ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    ({"enum": [True, False]}, {"type": "boolean"}, [], []),
    ({"enum": ["a", 1]}, {"enum": ["a"]}, [], ["TYPE_NARROWED"]),
    ({"enum": [{"a": [1.0]}]}, {"enum": [{"a": [1]}]}, [], []),
    # numbers
    ({"type": "integer", "minimum": 5}, INTEGER, ["MINIMUM_ADDED"], []),
    (integer(minimum=6), integer(minimum=5), ["MINIMUM_INCREASED"], []),
    (integer(maximum=6), INTEGER, ["MAXIMUM_ADDED"], []),
    (integer(maximum=5), integer(maximum=6), ["MAXIMUM_DECREASED"], []),
    (integer(exclusiveMinimum=5), INTEGER, ["EXCLUSIVE_MINIMUM_ADDED"], []),
    (integer(exclusiveMinimum=6), integer(exclusiveMinimum=5), ["EXCLUSIVE_MINIMUM_INCREASED"], []),
    (integer(exclusiveMaximum=5), INTEGER, ["EXCLUSIVE_MAXIMUM_ADDED"], []),
    (integer(exclusiveMaximum=5), integer(exclusiveMaximum=6), ["EXCLUSIVE_MAXIMUM_DECREASED"], []),
    (integer(minimum=5), integer(exclusiveMinimum=5), [], ["EXCLUSIVE_MINIMUM_INCREASED"]),
    (integer(maximum=5), integer(exclusiveMaximum=5), [], ["EXCLUSIVE_MAXIMUM_DECREASED"]),
    (integer(multipleOf=2), INTEGER, ["MULTIPLE_OF_ADDED"], []),
    (integer(multipleOf=4), integer(multipleOf=2), ["MULTIPLE_OF_EXPANDED"], []),
    (integer(multipleOf=2), integer(multipleOf=3), ["MULTIPLE_OF_CHANGED"], ["MULTIPLE_OF_CHANGED"]),
    ({"type": "number", "multipleOf": 0.1}, {"type": "number", "multipleOf": 0.3}, [], ["MULTIPLE_OF_EXPANDED"]),
    # keywords count for the types that they apply to
    (integer(maxLength=5, required=["a"], minItems=3), INTEGER, [], []),
    # strings
    (string(minLength=1), STRING, ["MIN_LENGTH_ADDED"], []),
    (string(minLength=0), STRING, [], []),
    (string(minLength=2), string(minLength=1), ["MIN_LENGTH_INCREASED"], []),
    (string(maxLength=1), STRING, ["MAX_LENGTH_ADDED"], []),
    (string(maxLength=1), string(maxLength=2), ["MAX_LENGTH_DECREASED"], []),
    (string(pattern="a"), STRING, ["PATTERN_ADDED"], []),
    (string(pattern="a"), string(pattern="b"), ["PATTERN_CHANGED"], ["PATTERN_CHANGED"]),
    # objects
    (thing(minProperties=1), thing(), ["MIN_PROPERTIES_ADDED"], []),
    (thing(minProperties=2), thing(minProperties=1), ["MIN_PROPERTIES_INCREASED"], []),
    (thing(maxProperties=1), thing(), ["MAX_PROPERTIES_ADDED"], []),
    (thing(maxProperties=1), thing(maxProperties=2), ["MAX_PROPERTIES_DECREASED"], []),
    (thing({"a": STRING}, required=["a"]), thing({"a": STRING}), ["REQUIRED_ATTRIBUTE_ADDED"], []),
    (thing({"a": string(default="x")}, required=["a"]), thing({"a": STRING}), [], []),
    (thing({"a": STRING}), thing(), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"], []),
    (thing({"a": {}}), thing(), [], []),
    (thing({"a": True}), thing(), [], []),
    (closed({"a": STRING}), closed(), [], ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
    (
        closed({"a": STRING}, required=["a"]),
        closed(),
        ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"],
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    (
        closed({"a": string(default="x")}, required=["a"]),
        closed(),
        [],
        ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    (closed(), closed({"a": False}), [], []),
    (thing({"a": NUMBER}), thing({"a": INTEGER}), [], ["TYPE_NARROWED"]),
    (thing({"a": STRING}), thing({"a": INTEGER}), ["TYPE_CHANGED"], ["TYPE_CHANGED"]),
    (
        thing({"a": STRING, "b": NUMBER}, additionalProperties=INTEGER),
        thing({"a": STRING}, additionalProperties=INTEGER),
        [],
        ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    (
        thing({"a": STRING}, additionalProperties=INTEGER),
        thing(additionalProperties=INTEGER),
        ["PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    (thing(additionalProperties=STRING), thing({"a": STRING}, additionalProperties=STRING), [], []),
    (closed(patternProperties={"^a": STRING}), closed({"ab": STRING}), [], ["ADDITIONAL_PROPERTIES_REMOVED"]),
    (thing(patternProperties={"^a": STRING}), thing(), ["PATTERN_PROPERTY_NARROWED"], []),
    (thing(patternProperties={"^a": {}}), thing(), [], []),
    (
        thing(patternProperties={"^a": NUMBER}),
        thing(patternProperties={"^a": INTEGER}),
        [],
        ["PATTERN_PROPERTY_NARROWED"],
    ),
    (closed(patternProperties={"^a": STRING}), closed(), [], ["ADDITIONAL_PROPERTIES_REMOVED"]),
    (thing(additionalProperties=False), thing(), ["ADDITIONAL_PROPERTIES_REMOVED"], []),
    (thing(additionalProperties=STRING), thing(), ["ADDITIONAL_PROPERTIES_NARROWED"], []),
    (thing(additionalProperties=STRING), closed(), [], ["ADDITIONAL_PROPERTIES_REMOVED"]),
    (thing(additionalProperties=NUMBER), thing(additionalProperties=INTEGER), [], ["ADDITIONAL_PROPERTIES_NARROWED"]),
    (thing(additionalProperties=True), thing(), [], []),
    (thing(propertyNames={"maxLength": 3}), thing(), ["MAX_LENGTH_ADDED"], []),
    (thing(propertyNames={"maxLength": 3}), thing(propertyNames={"maxLength": 2}), [], ["MAX_LENGTH_DECREASED"]),
    # dependencies
    (thing(dependencies={"a": ["b"]}), thing(), ["DEPENDENCY_ARRAY_ADDED"], []),
    (thing(dependencies={"a": ["b", "c"]}), thing(dependencies={"a": ["b"]}), ["DEPENDENCY_ARRAY_EXTENDED"], []),
    (thing(dependencies={"a": ["b"]}), thing(required=["b"]), [], ["REQUIRED_ATTRIBUTE_ADDED"]),
    (thing(dependencies={"a": {"maxProperties": 3}}), thing(), ["DEPENDENCY_SCHEMA_ADDED"], []),
    (
        thing(dependencies={"a": {"maxProperties": 3}}),
        thing(dependencies={"a": {"maxProperties": 2}}),
        [],
        ["MAX_PROPERTIES_DECREASED"],
    ),
    # arrays
    (array(minItems=1), array(), ["MIN_ITEMS_ADDED"], []),
    (array(minItems=2), array(minItems=1), ["MIN_ITEMS_INCREASED"], []),
    (array(maxItems=1), array(), ["MAX_ITEMS_ADDED"], []),
    (array(maxItems=1), array(maxItems=2), ["MAX_ITEMS_DECREASED"], []),
    (array(uniqueItems=True), array(), ["UNIQUE_ITEMS_ADDED"], []),
    (array(NUMBER), array(INTEGER), [], ["TYPE_NARROWED"]),
    (array(STRING), array(), ["TYPE_NARROWED"], []),
    (array([STRING, INTEGER]), array([STRING, INTEGER]), [], []),
    (array([STRING, INTEGER]), array([STRING]), ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"], []),
    (array([STRING, {}]), array([STRING]), [], []),
    (
        array([STRING, INTEGER], additionalItems=False),
        array([STRING], additionalItems=False),
        [],
        ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"],
    ),
    (
        array([STRING, INTEGER], additionalItems=NUMBER),
        array([STRING], additionalItems=NUMBER),
        ["ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        [],
    ),
    (
        array([STRING, STRING], additionalItems=NUMBER),
        array([STRING], additionalItems=NUMBER),
        ["ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
        ["ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"],
    ),
    (array([STRING], additionalItems=False), array([STRING]), ["ADDITIONAL_ITEMS_REMOVED"], []),
    (array([STRING], additionalItems=NUMBER), array([STRING]), ["ADDITIONAL_ITEMS_NARROWED"], []),
    (array(contains=STRING), array(), ["CONTAINS_NARROWED"], []),
    (array(contains=NUMBER), array(contains=INTEGER), [], ["CONTAINS_NARROWED"]),
    # choices
    ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING]}, [], ["SUM_TYPE_NARROWED"]),
    ({"anyOf": [STRING, INTEGER]}, {"anyOf": [INTEGER, STRING]}, [], []),
    ({"anyOf": [STRING, INTEGER]}, {"oneOf": [INTEGER, STRING]}, [], []),
    ({"oneOf": [STRING]}, STRING, [], []),
    ({"oneOf": [STRING, INTEGER]}, STRING, [], ["TYPE_NARROWED"]),
    ({"oneOf": [STRING, {"type": "null"}]}, {"type": ["string", "null"]}, [], []),
    (
        {"oneOf": [STRING, array()]},
        {"oneOf": [STRING, INTEGER]},
        ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"],
        ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"],
    ),
    ({"oneOf": [INTEGER, array()]}, STRING, ["COMBINED_TYPE_CHANGED"], ["TYPE_NARROWED"]),
    ({"oneOf": [NUMBER, STRING]}, {"oneOf": [INTEGER, STRING]}, [], ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]),
    ({"oneOf": [STRING, {"oneOf": [INTEGER, array()]}]}, {"oneOf": [STRING, INTEGER, array()]}, [], []),
    (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        thing(required=["a"]),
        [],
        ["REQUIRED_ATTRIBUTE_ADDED"],
    ),
    ({"allOf": [{"maxLength": 5}]}, {"allOf": [{"maxLength": 5}, STRING]}, [], ["TYPE_NARROWED"]),
    ({"allOf": [STRING, {"maxLength": 5}]}, {"allOf": [STRING]}, ["MAX_LENGTH_ADDED"], []),
    ({"allOf": [STRING]}, STRING, [], []),
    ({"allOf": [{"maxLength": 5}, STRING]}, string(maxLength=4), [], ["MAX_LENGTH_DECREASED"]),
    ({"not": STRING}, {"not": {"type": ["string", "null"]}}, [], ["NOT_TYPE_EXTENDED"]),
    ({"not": STRING}, {}, ["NOT_TYPE_EXTENDED"], []),
    ({"not": STRING}, INTEGER, [], ["TYPE_NARROWED"]),
    ({"if": STRING, "then": {"maxLength": 3}}, {}, ["CONDITION_CHANGED"], []),
    ({"if": STRING, "then": {"maxLength": 3}}, {"if": STRING, "then": {"maxLength": 2}}, [], ["CONDITION_CHANGED"]),
    (
        {"maxLength": 9, "if": {"minLength": 2}, "then": {"maxLength": 9}, "else": {"pattern": "a"}},
        {"maxLength": 9, "if": {"minLength": 2}, "then": {"pattern": "b"}, "else": {"pattern": "a"}},
        [],
        ["CONDITION_CHANGED"],
    ),
    ({"if": STRING, "then": {"maxLength": 3}}, string(maxLength=3), [], ["TYPE_NARROWED"]),
]


@pytest.mark.parametrize(("new", "old", "backward", "forward"), RULES)
def test_rule(new, old, backward, forward):
    parsed_new, parsed_old = parse(new), parse(old)
    assert kinds(parsed_new, parsed_old, "BACKWARD") == backward
    assert kinds(parsed_new, parsed_old, "FORWARD") == forward
    assert kinds(parsed_new, parsed_new, "FULL") == []


LENIENT = [
    (thing({"a": STRING}), thing(), True),
    (closed(), closed({"a": STRING}), True),
    (closed(), thing(), True),
    (thing(additionalProperties=STRING), thing(), True),
    (thing({"a": STRING}, required=["a"]), thing({"a": STRING}), False),
    (thing({"a": STRING}), thing({"a": INTEGER}), False),
]


@pytest.mark.parametrize(("new", "old", "allowed"), LENIENT)
def test_the_lenient_policy_allows_changes_of_the_content_model(new, old, allowed):
    assert kinds(parse(new), parse(old))
    assert bool(kinds(parse(new), parse(old), policy="LENIENT")) is not allowed


SAME_IN_ALL_DRAFTS = [
    (thing({"a": STRING}), thing(), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    (closed({"a": STRING}), closed(), []),
    (string(maxLength=3), string(maxLength=4), ["MAX_LENGTH_DECREASED"]),
    ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING]}, []),
]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(("new", "old", "expected"), SAME_IN_ALL_DRAFTS)
def test_rules_hold_in_all_drafts(draft, new, old, expected):
    assert kinds(parse(new, draft=draft), parse(old, draft=draft)) == expected
    # A newer draft of the same schema is the same schema.
    assert kinds(parse(new, draft=2020), parse(old, draft=draft)) == expected


def test_drafts_spell_the_same_schema_differently():
    exclusive = parse(integer(minimum=3, exclusiveMinimum=True), draft=4)
    assert kinds(parse(integer(exclusiveMinimum=3), draft=6), exclusive, "FULL") == []
    positions = parse(array([STRING, INTEGER], additionalItems=False), draft=7)
    assert kinds(parse(array(False, prefixItems=[STRING, INTEGER]), draft=2020), positions, "FULL") == []
    dependencies = parse(thing(dependencies={"a": ["b"], "c": {"maxProperties": 2}}), draft=7)
    dependent = thing(dependentRequired={"a": ["b"]}, dependentSchemas={"c": {"maxProperties": 2}})
    assert kinds(parse(dependent, draft=2019), dependencies, "FULL") == []
    definitions = parse({"$ref": "#/definitions/s", "definitions": {"s": STRING}, "maxLength": 3}, draft=7)
    # Beside $ref, draft 7 ignores maxLength and 2019-09 does not.
    newer = parse({"$ref": "#/$defs/s", "$defs": {"s": STRING}, "maxLength": 3}, draft=2019)
    assert kinds(newer, definitions) == ["MAX_LENGTH_ADDED"]
    assert kinds(definitions, newer) == []


def test_unevaluated_properties_close_the_model_of_the_whole():
    def user(**properties):
        base = {"type": "object", "properties": {"id": INTEGER}}
        return parse({"allOf": [base], "properties": properties, "unevaluatedProperties": False}, draft=2020)

    assert kinds(user(name=STRING), user()) == []
    assert kinds(user(), user(name=STRING)) == ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]
    open_model = parse({"type": "object", "properties": {"id": INTEGER}}, draft=2020)
    assert kinds(user(), open_model) == ["ADDITIONAL_PROPERTIES_REMOVED"]


def test_unevaluated_items_close_the_positions():
    def row(*items):
        return parse({"type": "array", "prefixItems": list(items), "unevaluatedItems": False}, draft=2020)

    assert kinds(row(STRING, INTEGER), row(STRING)) == []
    assert kinds(row(STRING), row(STRING, INTEGER)) == ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"]


def test_numbers_of_contained_items_count_from_2019_on():
    def some(least, most):
        return parse(array(contains=STRING, minContains=least, maxContains=most), draft=2020)

    assert kinds(some(1, 5), some(2, 4)) == []
    assert kinds(some(2, 4), some(1, 4)) == ["CONTAINS_NARROWED"]
    assert kinds(some(2, 4), some(2, 5)) == ["CONTAINS_NARROWED"]


def test_an_incompatibility_says_where():
    old = parse(thing({"a": array(thing({"b": STRING}))}))
    new = parse(thing({"a": array(thing({"b": INTEGER}))}))
    (changed,) = check_compatibility(new, old, "BACKWARD")
    assert changed.path == "#/properties/a/items/properties/b"
    assert "integer" in changed.message
    assert "string" in changed.message


def test_references_are_compared_by_their_targets():
    def user(street):
        address = parse({"$id": "http://example.com/address.json", **thing({"street": street})})
        schema = {"$id": "http://example.com/user.json", **thing({"home": {"$ref": "address.json#/properties/street"}})}
        return parse(schema, {"address.json": address})

    assert kinds(user(STRING), user(STRING), "FULL") == []
    assert kinds(user(STRING), user(INTEGER)) == ["TYPE_CHANGED"]
    inlined = parse(thing({"home": STRING}))
    assert kinds(user(STRING), inlined, "FULL") == []


def tree(value, name="tree"):
    node = thing({"value": value, "children": array({"$ref": f"#/definitions/{name}"})})
    return {"$ref": f"#/definitions/{name}", "definitions": {name: node}}


def test_recursive_schemas_are_compared():
    assert kinds(parse(tree(NUMBER)), parse(tree(INTEGER, "node"))) == []
    assert kinds(parse(tree(INTEGER, "node")), parse(tree(NUMBER))) == ["TYPE_NARROWED"]
    assert kinds(parse({"$ref": "#"}), parse({"$ref": "#", "title": "x"}), "FULL") == []
    endless = {"anyOf": [{"$ref": "#"}, STRING]}
    assert kinds(parse(endless), parse(endless)) == []
    assert kinds(parse(INTEGER), parse(endless)) != []


def nested_choices(depth, leaf):
    """Each level uses the next one in many branches: 8**depth paths."""
    definitions = {f"n{depth}": leaf}
    for level in range(depth):
        branches = [thing({f"p{number}": {"$ref": f"#/definitions/n{level + 1}"}}) for number in range(8)]
        definitions[f"n{level}"] = {"oneOf": branches}
    return {"$ref": "#/definitions/n0", "definitions": definitions}


def test_many_choices_end():
    old = parse(nested_choices(8, INTEGER))
    assert kinds(parse(nested_choices(8, INTEGER)), old) == []
    assert kinds(parse(nested_choices(8, NUMBER)), old) == []
    assert kinds(parse(nested_choices(8, STRING)), old) != []


def test_choices_of_choices_end():
    def schema(count, leaf):
        return parse({"allOf": [{"oneOf": [string(maxLength=n * 10 + m) for n in range(9)]} for m in range(9)]} | leaf)

    assert kinds(schema(9, {"minLength": 3}), schema(9, {})) != []


def test_patterns_that_backtrack_end():
    pattern = {"^(a+)+$": STRING}
    old = closed({"a" * 60 + "b": INTEGER})
    assert kinds(parse(closed(patternProperties=pattern)), parse(old)) == ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]
