"""JSON Schema's compatibility rules: is every value that the writer's schema allows valid for the reader's schema?

A schema is a set of values, so a change is compatible if it widens the set. "new" is the reader, "old" the writer.

| new compared with old | kind if it is incompatible |
|---|---|
| types taken away; all of them | TYPE_NARROWED; TYPE_CHANGED |
| `enum` or `const` with fewer values; with none of the old values | ENUM_ARRAY_NARROWED; ENUM_ARRAY_CHANGED |
| `minimum`, `exclusiveMinimum` added or increased | MINIMUM_ADDED, _INCREASED, EXCLUSIVE_MINIMUM_... |
| `maximum`, `exclusiveMaximum` added or decreased | MAXIMUM_ADDED, _DECREASED, EXCLUSIVE_MAXIMUM_... |
| `multipleOf` added; a multiple of the old one; another | MULTIPLE_OF_ADDED; _EXPANDED; _CHANGED |
| `minLength`, `minItems`, `minProperties` added or increased | MIN_LENGTH_ADDED, _INCREASED, ... |
| `maxLength`, `maxItems`, `maxProperties` added or decreased | MAX_LENGTH_ADDED, _DECREASED, ... |
| `pattern` added; changed | PATTERN_ADDED; PATTERN_CHANGED |
| a name added to `required`, without a default; of a property that an unopen model did not have | \
REQUIRED_ATTRIBUTE_ADDED; REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL |
| properties, `additionalProperties`, items | `models` |
| `uniqueItems` added | UNIQUE_ITEMS_ADDED |
| `contains` added or narrowed | CONTAINS_NARROWED |
| `propertyNames` narrowed | the kinds of its schema |
| `dependentRequired` for a name added; with more names | DEPENDENCY_ARRAY_ADDED; DEPENDENCY_ARRAY_EXTENDED |
| `dependentSchemas` for a name added or narrowed | DEPENDENCY_SCHEMA_ADDED; the kinds of its schema |
| an `oneOf` or `anyOf` where there was none | COMBINED_TYPE_CHANGED |
| an `oneOf` or `anyOf` with fewer branches; with other branches | \
SUM_TYPE_NARROWED; COMBINED_TYPE_SUBSCHEMAS_CHANGED |
| an element added to `allOf` | the kinds of the element |
| `not` added or extended | NOT_TYPE_EXTENDED |
| `if`, `then`, `else` added or changed | CONDITION_CHANGED |
| a `$ref` to another unknown document | TYPE_CHANGED |

Compatible is therefore everything else: bounds widened or removed, names no longer required, branches added to a
choice, elements removed from `allOf`, any change of titles, descriptions, formats, defaults. Keywords count for the
types that they apply to. A choice of one equals its branch; a list of types equals a choice of types.

Three rules follow the registry's API and not the sets: a property that becomes required is compatible if it has a
default (readers fill it in), branches of `oneOf` are not checked to exclude each other, and the policy LENIENT
allows PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL, PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL and narrower
`additionalProperties`.
"""

from __future__ import annotations

from collections.abc import Iterator

from klamm.registry.schemas.comparison import CompatibilityPolicy, Incompatibility, PairComparison, join_names
from klamm.registry.schemas.json_schema.documents import JsonDocument, JsonNode
from klamm.registry.schemas.json_schema.facts import (
    ALL_TYPES,
    ANY,
    ContainsRule,
    Facts,
    SchemaChoice,
    collect_members,
    read_facts,
    value_key,
)
from klamm.registry.schemas.json_schema.models import compare_arrays, compare_objects
from klamm.registry.schemas.json_schema.scalars import compare_lengths, compare_numbers, compare_patterns

_LENIENT = {
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    "ADDITIONAL_PROPERTIES_REMOVED",
    "ADDITIONAL_PROPERTIES_NARROWED",
}
_FINITE = {"null": (None,), "boolean": (True, False)}


def check_json_schema(
    reader: JsonDocument, writer: JsonDocument, policy: CompatibilityPolicy = CompatibilityPolicy.STRICT
) -> list[Incompatibility]:
    """Return why the reader's schema does not allow all that the writer's allows."""
    return JsonComparison(policy).run(reader.root_node, writer.root_node, "#")


class JsonComparison(PairComparison[JsonNode]):
    """Compares schemas by what they demand; `models` does so for the parts of objects and arrays."""

    # A step reads whole schemas and a level takes several frames.
    steps_max = 20_000
    depth_max = 60

    def __init__(self, policy: CompatibilityPolicy) -> None:
        super().__init__()
        self._is_lenient = policy is CompatibilityPolicy.LENIENT
        # Schemas that are no part of a document: a writer's schema with one of its branches.
        self._cases: dict[frozenset[tuple[int, bool]], JsonNode] = {}
        self._members: dict[int, tuple[tuple[JsonNode, bool], ...]] = {}

    def compare_nodes(self, reader: JsonNode, writer: JsonNode, path: str) -> list[Incompatibility]:
        """Compare what two schemas demand, and if that fails, the cases that the writer's schema consists of."""
        if reader.equals(writer):
            return []
        demands, given = self._facts(reader), self._facts(writer)
        if not given.types:
            return []  # no value is valid for the writer's schema
        incompatibilities = self._compare_facts(demands, given, writer, path)
        if not incompatibilities:
            return []
        for cases in self._split(writer, demands, given):
            self.spend(len(cases))
            if all(not self.compare(reader, case, path) for case in cases):
                return []
        return incompatibilities

    def covers(self, reader: JsonNode, writers: list[JsonNode], path: str) -> list[Incompatibility]:
        """Compare with schemas that hold at once: one that fits is enough."""
        first: list[Incompatibility] | None = None
        for writer in writers or [ANY]:
            incompatibilities = self.compare(reader, writer, path)
            if not incompatibilities:
                return []
            first = first or incompatibilities
        return first or []

    def allows(self, kind: str) -> bool:
        """Whether the policy allows what a rule forbids."""
        return self._is_lenient and kind in _LENIENT

    def is_any(self, node: JsonNode) -> bool:
        """Whether a schema takes everything."""
        return node.value is True or self._facts(node) == Facts()

    def is_nothing(self, node: JsonNode) -> bool:
        """Whether a schema takes nothing."""
        return not self._facts(node).types

    def has_default(self, node: JsonNode) -> bool:
        """Whether a schema, or one that it refers to, has a default."""
        return any(isinstance(member.value, dict) and "default" in member.value for member in collect_members([node]))

    def _facts(self, node: JsonNode) -> Facts:
        if node.facts is None:
            members = self._members.get(id(node))
            if members is None:
                node.facts = read_facts(collect_members([node]))
            else:
                without_choices = frozenset(id(member) for member, with_choices in members if not with_choices)
                node.facts = read_facts((member for member, _ in members), without_choices)
            self.spend(1)
        facts: Facts = node.facts
        return facts

    def _split(self, writer: JsonNode, demands: Facts, given: Facts) -> Iterator[list[JsonNode]]:
        """Return lists of cases; the values of the writer's schema are in one of a list's cases."""
        members = self._members.get(id(writer))
        if members is None:
            members = tuple((member, True) for member in collect_members([writer]))
        names = sorted(_name_types(given.types))
        if demands.choices and len(names) > 1 and given.types != ALL_TYPES:
            yield [self._case(members, [_TYPES[name]]) for name in names]
        # Only one choice is split, otherwise the cases would multiply; without the others a case is a larger set.
        rest = tuple((member, False) for member, _ in members)
        for choice in given.choices:
            yield [self._case(rest, collect_members([branch])) for branch in choice.branches]

    def _case(self, members: tuple[tuple[JsonNode, bool], ...], more: list[JsonNode]) -> JsonNode:
        combined = {id(member): (member, with_choices) for member, with_choices in members}
        combined |= {id(member): (member, True) for member in more}
        # The same members are the same node: a branch that refers to the whole comes back to a pair that is known.
        key = frozenset((identity, with_choices) for identity, (_, with_choices) in combined.items())
        case = self._cases.get(key)
        if case is None:
            # Its value is only a name: a text that no other schema has.
            case = self._cases[key] = JsonNode(ANY.document, {"$comment": f"case {len(self._cases)} of {id(self)}"}, "")
            self._members[id(case)] = tuple(combined.values())
        return case

    def _compare_facts(self, demands: Facts, given: Facts, writer: JsonNode, path: str) -> list[Incompatibility]:
        missing = given.types - demands.types
        if missing or demands.unresolved - given.unresolved:
            return [_compare_types(demands, given, path)]
        incompatibilities = _compare_values(demands, given, path)
        if given.types & {"integer", "fraction"}:
            incompatibilities += compare_numbers(demands, given, path)
        if "string" in given.types:
            incompatibilities += compare_lengths(demands, given, "Length", path)
            incompatibilities += compare_patterns(demands, given, path)
        if "object" in given.types:
            incompatibilities += compare_lengths(demands, given, "Properties", path)
            incompatibilities += compare_objects(self, demands, given, path)
            incompatibilities += self._compare_dependencies(demands, given, writer, path)
        if "array" in given.types:
            incompatibilities += compare_lengths(demands, given, "Items", path)
            incompatibilities += compare_arrays(self, demands, given, path)
            incompatibilities += self._compare_contents(demands, given, path)
        incompatibilities += self._compare_choices(demands, given, writer, path)
        incompatibilities += self._compare_negations(demands, given, path)
        incompatibilities += self._compare_conditions(demands, given, writer, path)
        return incompatibilities

    def _compare_choices(self, demands: Facts, given: Facts, writer: JsonNode, path: str) -> list[Incompatibility]:
        incompatibilities = []
        for choice in demands.choices:
            place = f"{path}/{choice.keyword}"
            self.spend(len(choice.branches))
            if not any(
                not self.compare(branch, writer, f"{place}/{index}") for index, branch in enumerate(choice.branches)
            ):
                incompatibilities.append(_describe_choice(choice, given.choices, place))
        return incompatibilities

    def _compare_negations(self, demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
        place = f"{path}/not"
        for negation in demands.negations:
            # Excluded by the old schema already: what it excludes contains what the new one excludes.
            excluded = any(not self.compare(old, negation, place) for old in given.negations)
            if not excluded and self._facts(negation).types & given.types:
                return [Incompatibility("NOT_TYPE_EXTENDED", place, f"The schema of not at path '{place}' is extended")]
        return []

    def _compare_conditions(self, demands: Facts, given: Facts, writer: JsonNode, path: str) -> list[Incompatibility]:
        for condition, consequence, alternative in demands.conditions:
            # What all old data fulfils is no condition, whatever the old schema had there.
            then, otherwise = (not self.compare(part, writer, path) for part in (consequence, alternative))
            if not (then and otherwise) and not any(
                self._is_same_condition(condition, old_condition)
                and (then or not self.compare(consequence, old_consequence, f"{path}/then"))
                and (otherwise or not self.compare(alternative, old_alternative, f"{path}/else"))
                for old_condition, old_consequence, old_alternative in given.conditions
            ):
                message = f"The condition at path '{path}/if' is added or narrowed"
                return [Incompatibility("CONDITION_CHANGED", f"{path}/if", message)]
        return []

    def _is_same_condition(self, new: JsonNode, old: JsonNode) -> bool:
        return not self.compare(new, old, "") and not self.compare(old, new, "")

    def _compare_contents(self, demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
        place = f"{path}/contains"
        for contents in demands.contents:
            if contents.least == 0 and contents.most is None:
                continue
            if not any(self._is_contained(contents, old, place) for old in given.contents):
                return [
                    Incompatibility("CONTAINS_NARROWED", place, f"The schema at path '{place}' is added or narrowed")
                ]
        return []

    def _is_contained(self, new: ContainsRule, old: ContainsRule, place: str) -> bool:
        enough = new.least == 0 or (new.least <= old.least and not self.compare(new.node, old.node, place))
        if new.most is None:
            return enough
        # Items that the new schema counts must have been counted by the old one.
        few = old.most is not None and old.most <= new.most and not self.compare(old.node, new.node, place)
        return enough and few

    def _compare_dependencies(self, demands: Facts, given: Facts, writer: JsonNode, path: str) -> list[Incompatibility]:
        incompatibilities = []
        place = f"{path}/dependencies"
        for name, others in demands.dependent_names.items():
            missing = others - given.dependent_names.get(name, set()) - given.required
            if missing and not _is_impossible(self, name, given):
                kind = "DEPENDENCY_ARRAY_EXTENDED" if name in given.dependent_names else "DEPENDENCY_ARRAY_ADDED"
                message = f"The property {name} at path '{place}' needs {join_names(missing)} too"
                incompatibilities.append(Incompatibility(kind, f"{place}/{name}", message))
        for name, nodes in demands.dependent_schemas.items():
            for node in nodes:
                old = given.dependent_schemas.get(name, [])
                if _is_impossible(self, name, given) or not self.compare(node, writer, f"{place}/{name}"):
                    continue
                if not old:
                    message = f"The property {name} at path '{place}' demands more of the object"
                    incompatibilities.append(Incompatibility("DEPENDENCY_SCHEMA_ADDED", f"{place}/{name}", message))
                else:
                    incompatibilities += self.covers(node, old, f"{place}/{name}")
        return incompatibilities


_TYPES = {
    name: JsonDocument({"type": name}, {}).root_node
    for name in ("null", "boolean", "integer", "number", "string", "array", "object")
}


def _is_impossible(comparison: JsonComparison, name: str, given: Facts) -> bool:
    return any(
        name not in model.properties and not model.patterns and comparison.is_nothing(model.written_rest)
        for model in given.objects
    )


def _compare_types(demands: Facts, given: Facts, path: str) -> Incompatibility:
    unresolved = demands.unresolved - given.unresolved
    if unresolved:
        message = f"The schema at path '{path}' refers to {join_names(unresolved)}, which is not known"
        return Incompatibility("TYPE_CHANGED", path, message)
    new, old = (join_names(_name_types(facts.types)) or "nothing" for facts in (demands, given))
    kind = "TYPE_NARROWED" if demands.types & given.types or not demands.types else "TYPE_CHANGED"
    return Incompatibility(kind, path, f"The type at path '{path}' is {new}, the old one is {old}")


def _name_types(types: frozenset[str]) -> set[str]:
    return {"number" if name == "fraction" else name for name in types if name != "integer" or "fraction" not in types}


def _compare_values(demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
    if demands.enum is None:
        return []
    written = set(given.enum or ())
    if given.enum is None:
        if not given.types <= set(_FINITE):
            message = f"The enum at path '{path}' is added"
            return [Incompatibility("ENUM_ARRAY_NARROWED", f"{path}/enum", message)]
        written = {value_key(value) for name in given.types for value in _FINITE[name]}
    missing = written - set(demands.enum)
    if not missing:
        return []
    kind = "ENUM_ARRAY_NARROWED" if written & set(demands.enum) else "ENUM_ARRAY_CHANGED"
    return [Incompatibility(kind, f"{path}/enum", f"The enum at path '{path}' misses {join_names(missing)}")]


def _describe_choice(choice: SchemaChoice, old_choices: list[SchemaChoice], place: str) -> Incompatibility:
    if not old_choices:
        kind = "COMBINED_TYPE_CHANGED"
    elif any(len(choice.branches) < len(old.branches) for old in old_choices):
        kind = "SUM_TYPE_NARROWED"
    else:
        kind = "COMBINED_TYPE_SUBSCHEMAS_CHANGED"
    return Incompatibility(kind, place, f"No branch of {choice.keyword} at path '{place}' takes all old values")
