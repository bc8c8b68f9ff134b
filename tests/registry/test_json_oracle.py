"""Random pairs of JSON Schemas, with jsonschema-rs as oracle: a value of the old schema is valid for the new one."""

import copy
import json
from random import Random

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from klamm.registry.schemas import check_compatibility, parse_schema
from klamm.registry.schemas.json_schema import _VALIDATORS
from registry.test_json_rules import RULES

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
NAMES = ("a", "b", "ab", "c")
KINDS = {kind for _, _, *both in RULES for kinds in both for kind in kinds}


def draw_schema(draw, draft, depth):
    kinds = ["string", "integer", "number", "boolean", "null", "enum"]
    if draft > 4:
        kinds += ["any"]
    if depth:
        kinds += ["object", "array", "choice", "all", "not", "types", "object", "reference"]
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "string":
            return maybe(draw, {"type": kind}, minLength=st.integers(0, 2), maxLength=st.integers(1, 3),
                         pattern=st.sampled_from(["^a", "b$"]))  # fmt: skip
        case "integer" | "number":
            schema = maybe(draw, {"type": kind}, minimum=st.integers(-2, 2), maximum=st.integers(0, 4),
                           multipleOf=st.sampled_from([1, 2, 3, 4, 0.5]))  # fmt: skip
            if draft > 4:
                schema = maybe(draw, schema, exclusiveMinimum=st.integers(-2, 2), exclusiveMaximum=st.integers(0, 4))
            return schema
        case "boolean" | "null":
            return {"type": kind}
        case "enum":
            values = st.sampled_from(["a", "ab", 1, 1.0, 2.5, None, True, [1], {"a": 1}])
            return {"enum": draw(st.lists(values, min_size=1, max_size=3, unique_by=json.dumps))}
        case "any":
            return draw(st.sampled_from([{}, True, False, {"const": "a"}]))
        case "types":
            names = st.sampled_from(["string", "integer", "null", "array", "object", "number"])
            return {"type": draw(st.lists(names, min_size=1, max_size=3, unique=True))}
        case "choice":
            # Branches of oneOf that overlap are outside of the rules; types keep them apart.
            if draw(st.booleans()):
                names = draw(st.lists(st.sampled_from(["string", "boolean", "null"]), min_size=1, unique=True))
                return {"oneOf": [{"type": name} for name in names] + [draw_object(draw, draft, depth - 1)]}
            return {"anyOf": [draw_schema(draw, draft, depth - 1) for _ in range(draw(st.integers(1, 3)))]}
        case "all":
            return {"allOf": [draw_schema(draw, draft, depth - 1) for _ in range(2)]}
        case "not":
            return {"not": draw_schema(draw, draft, depth - 1)}
        case "object":
            return draw_object(draw, draft, depth)
        case "reference":
            return {"$ref": "#/definitions/d"}
    return draw_array(draw, draft, depth)


def maybe(draw, schema, **keywords):
    """Add some of the keywords."""
    return {**schema, **{name: draw(values) for name, values in keywords.items() if draw(st.integers(0, 3)) == 0}}


def draw_object(draw, draft, depth):
    schema = {"type": "object"}
    names = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    schema["properties"] = {name: draw_schema(draw, draft, max(depth - 1, 0)) for name in names}
    if names and draw(st.booleans()):
        schema["required"] = names[:1]
    match draw(st.integers(0, 4)):
        case 0:
            schema["additionalProperties"] = False
        case 1:
            schema["additionalProperties"] = draw_schema(draw, draft, 0)
        case 2:
            schema["patternProperties"] = {"^a": draw_schema(draw, draft, 0)}
    keyword = "dependentRequired" if draft >= 2019 else "dependencies"
    schema = maybe(draw, schema, minProperties=st.integers(0, 2), maxProperties=st.integers(1, 3))
    return maybe(draw, schema, **{keyword: st.just({"a": ["b"]})})


def draw_array(draw, draft, depth):
    schema = maybe(draw, {"type": "array"}, minItems=st.integers(0, 2), maxItems=st.integers(1, 3),
                   uniqueItems=st.booleans())  # fmt: skip
    match draw(st.integers(0, 2)):
        case 0:
            schema["items"] = draw_schema(draw, draft, depth - 1)
        case 1:
            positions = [draw_schema(draw, draft, depth - 1) for _ in range(draw(st.integers(1, 2)))]
            schema["prefixItems" if draft == 2020 else "items"] = positions
            if draw(st.booleans()):
                schema["items" if draft == 2020 else "additionalItems"] = draw(
                    st.sampled_from([False, {"type": "null"}])
                )
                if draft == 4 and schema["additionalItems"] is False:
                    schema["additionalItems"] = False
    return schema


def mutate(draw, schema, draft):
    """Return the schema with one part changed, at a random place."""
    if not isinstance(schema, dict) or draw(st.integers(0, 3)) == 0:
        return draw_schema(draw, draft, 1)
    changed = copy.deepcopy(schema)
    keywords = sorted(changed)
    if not keywords or draw(st.integers(0, 4)) == 0:
        return {**changed, **draw_keyword(draw, draft)}
    keyword = draw(st.sampled_from(keywords))
    value = changed[keyword]
    match keyword:
        case "properties" | "patternProperties" if value:
            name = draw(st.sampled_from(sorted(value)))
            if draw(st.booleans()):
                value[name] = mutate(draw, value[name], draft)
            else:
                del value[name]
        case "anyOf" | "allOf" | "prefixItems" | "enum" if len(value) > 1 and draw(st.booleans()):
            value.pop()
        case "anyOf" | "allOf":
            value.append(draw_schema(draw, draft, 0))
        case "not" | "items" | "additionalProperties" if isinstance(value, dict):
            changed[keyword] = mutate(draw, value, draft)
        case (
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties"
        ):
            changed[keyword] = value + draw(st.sampled_from([-1, 1])) if value > 0 else value + 1
        case "$schema" | "definitions":
            pass
        case _:
            del changed[keyword]
    if draft == 4 and "dependencies" in changed and not changed["dependencies"]["a"]:
        del changed["dependencies"]
    return changed


def draw_keyword(draw, draft):
    return draw(
        st.sampled_from(
            [
                {"minLength": 1},
                {"maxLength": 4},
                {"minimum": 0},
                {"required": ["a"]},
                {"properties": {"c": {"type": "string"}}},
                {"properties": {"c": {"type": "string", "default": "x"}}, "required": ["c"]},
                {"additionalProperties": False},
                {"additionalProperties": {"type": "integer"}},
                {"type": ["string", "integer", "object", "null"]},
                {"minItems": 1},
                {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
            ]
        )
    )


SCALARS = (None, True, False, 0, 1, 2, 3, -1, 4, 1.0, 0.5, 2.5, "", "a", "b", "ab", "abc", "xyzb")


def make_value(random, depth):
    kind = random.randrange(3) if depth else 0
    if kind == 0:
        return random.choice(SCALARS)
    if kind == 1:
        return [make_value(random, depth - 1) for _ in range(random.randrange(4))]
    return {name: make_value(random, depth - 1) for name in random.sample([*NAMES, "d"], random.randrange(4))}


VALUES = [*SCALARS, *(make_value(Random(seed), 3) for seed in range(400))]


@st.composite
def schema_pairs(draw):
    draft = draw(st.sampled_from(sorted(DRAFTS)))
    definitions = {"d": draw_schema(draw, draft, 1)}
    old = draw_schema(draw, draft, 2)
    if not isinstance(old, dict) or "$ref" in old:
        old = {"type": "object", "properties": {"a": old}}
    new = mutate(draw, old, draft)
    for _ in range(draw(st.integers(0, 2))):
        new = mutate(draw, new, draft)
    if not isinstance(new, dict) or "$ref" in new:
        new = {"type": "object", "properties": {"a": new}}
    new_definitions = definitions
    if draw(st.integers(0, 3)) == 0:
        new_definitions = {"d": mutate(draw, definitions["d"], draft)}
    header = {"$schema": DRAFTS[draft]}
    return draft, {**header, **old, "definitions": definitions}, {**header, **new, "definitions": new_definitions}


def add_defaults(value, schema):
    """Fill in what readers fill in: a required property that is missing and has a default."""
    if isinstance(value, dict) and isinstance(schema, dict):
        for name, part in schema.get("properties", {}).items():
            if isinstance(part, dict) and "default" in part and name in schema.get("required", ()):
                value.setdefault(name, part["default"])
    return value


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema_pairs())
def test_what_backward_allows_is_valid(pair):
    draft, old, new = pair
    try:
        old_validator, new_validator = _VALIDATORS[draft](old), _VALIDATORS[draft](new)
    except ValueError:
        event("a mutation that is no schema")
        return
    parsed_old, parsed_new = (parse_schema("JSON", json.dumps(schema), {}, is_new=True) for schema in (old, new))
    incompatibilities = check_compatibility(parsed_new, parsed_old, "BACKWARD")
    assert {entry.kind for entry in incompatibilities} <= KINDS
    assert check_compatibility(parsed_new, parsed_new, "BACKWARD") == []
    # To draft 4, 1.0 equals 1 and is no integer: the rules take both as the same value.
    values = [value for value in VALUES if draft > 4 or "1.0" not in json.dumps(value)]
    valid = [value for value in values if old_validator.is_valid(value)]
    refused = [value for value in valid if not new_validator.is_valid(add_defaults(copy.deepcopy(value), new))]
    event(f"{'in' if incompatibilities else ''}compatible, values {'refused' if refused else 'taken'}")
    if not incompatibilities:
        assert refused == [], (refused[0], old, new)


@pytest.mark.parametrize("draft", DRAFTS)
def test_normalized_texts_mean_the_same(draft):
    schema = {"$schema": DRAFTS[draft], "type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1]}}}
    parsed = parse_schema("JSON", json.dumps(schema), {}, is_new=True)
    assert check_compatibility(parsed.normalize(), parsed, "FULL") == []
    jsonschema_rs.validator_for(json.loads(parsed.normalize().canonical))
