"""Compatibility rules of others beside ours: Avro's own for Java, and Apicurio's for JSON Schema.

Where verdicts differ, data decide: what we refuse has a value that the new schema does not take, and what we allow has
none. Every kind of difference is named here.
"""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from compat.registry_programs import compatibility_rules
from klamm.registry.schemas import check_compatibility, parse_schema
from registry import test_avro_oracle as avro
from registry import test_counter_examples as examples
from registry.test_avro_rules import RULES as AVRO_RULES
from registry.test_json_rules import RULES as JSON_RULES

ALIAS_OF_ANOTHER_FIELD = (
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "aliases": ["a"]}],
    },
)
"""Old and new: Avro's check allows it, and its reader then renames the written field, and misses the other."""

REFUSED_BY_US_ONLY = {
    "CONDITION_CHANGED": "Apicurio does not compare if, then and else",
    "CONTAINS_NARROWED": "nor contains",
    "MAX_LENGTH_ADDED": "nor propertyNames",
    "MAX_LENGTH_DECREASED": "nor propertyNames",
    "ADDITIONAL_PROPERTIES_REMOVED": "a pattern that is removed from a closed model closes it further",
    "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": "more items were allowed before by additionalItems",
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": "a branch is replaced while oneOf becomes anyOf",
    "SUM_TYPE_NARROWED": "a branch is removed while oneOf becomes anyOf",
    "TYPE_NARROWED": "the schema false takes nothing",
}
REFUSED_BY_APICURIO_ONLY = {
    "SUBSCHEMA_TYPE_CHANGED": "an enum, a list of types and a choice are compared by form, not by their values",
    "OBJECT_TYPE_PROPERTY_SCHEMAS_NARROWED": "a property that takes everything is no narrowing",
    "OBJECT_TYPE_PROPERTY_SCHEMAS_CHANGED": "additionalProperties covered the property before",
    "OBJECT_TYPE_REQUIRED_PROPERTIES_MEMBER_ADDED": "a required property with a default is filled in by readers",
    "OBJECT_TYPE_PATTERN_PROPERTY_KEYS_MEMBER_ADDED": "a pattern that takes everything is no narrowing",
    "OBJECT_TYPE_PROPERTY_DEPENDENCIES_KEYS_MEMBER_ADDED": "the name was required before",
    "ARRAY_TYPE_ITEM_SCHEMAS_NARROWED": "a position that takes everything is no narrowing",
    "COMBINED_TYPE_CRITERION_NARROWED": "a list of types equals a choice of types",
    "COMBINED_TYPE_ONE_OF_SIZE_DECREASED": "a choice in a choice is one choice",
    "COMBINED_TYPE_SUBSCHEMA_NOT_COMPATIBLE": "a choice in a choice is one choice",
    "ENUM_TYPE_VALUES_MEMBER_REMOVED": "1 and 1.0 are equal",
    "NOT_TYPE_SCHEMA_COMPATIBLE_NONE": "not with fewer types takes more",
    "STRING_TYPE_MIN_LENGTH_ADDED": "a bound that every value keeps",
}


class ForeignRules:
    """The program in Java: a pair of schemas per line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def check(self, schema_type: str, old: object, new: object) -> set[str] | None:
        """Return the kinds of incompatibility; None for schemas that it does not parse."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"format": schema_type, "old": json.dumps(old), "new": json.dumps(new)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return None if "error" in answer else set(answer["kinds"])


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignRules]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        compatibility_rules(), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield ForeignRules(process)
        assert process.stdin is not None
        process.stdin.close()


def check_ours(schema_type: str, old: object, new: object) -> set[str]:
    before, after = (parse_schema(schema_type, json.dumps(schema), {}, is_new=True) for schema in (old, new))
    return {entry.kind for entry in check_compatibility(after, before, "BACKWARD")}


def both_ways(rules: list[Any]) -> Iterator[tuple[Any, Any]]:
    for new, old, *_ in rules:
        yield old, new
        yield new, old


def test_avro_rules_are_those_of_java(foreign: ForeignRules) -> None:
    for old, new in both_ways(AVRO_RULES):
        theirs = foreign.check("AVRO", old, new)
        if (old, new) != ALIAS_OF_ANOTHER_FIELD:
            assert theirs is not None
            assert bool(check_ours("AVRO", old, new)) == bool(theirs), (old, new)


def test_random_avro_schemas_have_the_verdict_of_java(foreign: ForeignRules) -> None:
    @settings(max_examples=500, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(avro.schema_pairs())
    def compare(pair: tuple[Any, Any]) -> None:
        assert bool(check_ours("AVRO", *pair)) == bool(foreign.check("AVRO", *pair)), pair

    compare()


def compare_json(foreign: ForeignRules, old: Any, new: Any) -> None:
    ours, theirs = check_ours("JSON", old, new), foreign.check("JSON", old, new)
    # Apicurio reads schemas without a draft as draft 4, where exclusive bounds are flags.
    if theirs is None or bool(ours) == bool(theirs):
        return
    datum = examples.find_refused_value(7, old, new)
    if ours:
        assert ours <= REFUSED_BY_US_ONLY.keys(), (old, new, ours)
        assert datum is not None, (old, new, ours)
    else:
        assert theirs <= REFUSED_BY_APICURIO_ONLY.keys(), (old, new, theirs)
        # Whether branches of oneOf exclude each other is not checked, as in Confluent's registry.
        assert datum is None or "oneOf" in new, (old, new, theirs)


def test_differences_from_apicurios_rules_are_named(foreign: ForeignRules) -> None:
    for old, new in both_ways(JSON_RULES):
        compare_json(foreign, old, new)


def test_random_json_schemas_differ_only_as_named(foreign: ForeignRules) -> None:
    @settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(examples.json_schema_pairs())
    def compare(pair: tuple[Any, Any]) -> None:
        compare_json(foreign, *pair)

    compare()
