"""What a schema demands, in one form for all drafts: the conjunction of its keywords, of `allOf` and of `$ref`.

| draft | differs in | here |
|---|---|---|
| 4 | `exclusiveMinimum: true` beside `minimum` | a bound that is exclusive |
| 4 to 2019-09 | `items: [...]` and `additionalItems` | positions and the rest |
| 2020-12 | `prefixItems` and `items` | positions and the rest |
| 4 to 7 | `dependencies` | dependent names and dependent schemas |
| 4 to 7 | keywords beside `$ref` are ignored | only the target counts |
| 6 on | `const` | an enum of one value |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from klamm.registry.schemas.json_schema.documents import JsonDocument, JsonNode

# "number" is integers and fractions, so that widening to it is a larger set.
ALL_TYPES = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_LENGTHS_MIN = ("minLength", "minItems", "minProperties")
_LENGTHS_MAX = ("maxLength", "maxItems", "maxProperties")

ANY = JsonDocument(True, {}).root_node
"""The schema that takes everything: what holds where a schema says nothing."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of numbers and the keyword that sets it."""

    keyword: str
    value: Fraction
    exclusive: bool

    def tightness(self, *, lower: bool) -> tuple[Fraction, bool]:
        """Return a value by which tighter bounds are larger."""
        return (self.value if lower else -self.value, self.exclusive)


@dataclass(slots=True)
class ObjectModel:
    """Which properties an object may have: open if the rest is anything, closed if it is nothing."""

    properties: dict[str, JsonNode]
    patterns: dict[str, JsonNode]
    rest: JsonNode
    written_rest: JsonNode
    """The rest as far as a writer is bound by it; more than `rest` where that depends on the data."""


@dataclass(slots=True)
class ArrayModel:
    """Schemas of the first items by position, and of the rest."""

    positions: list[JsonNode]
    rest: JsonNode
    written_rest: JsonNode


@dataclass(slots=True)
class SchemaChoice:
    """A `oneOf` or `anyOf`."""

    keyword: str
    branches: list[JsonNode]


@dataclass(slots=True)
class ContainsRule:
    """A `contains` with its limits."""

    node: JsonNode
    least: int
    most: int | None


@dataclass(slots=True)
class Facts:
    """The demands of a schema; an empty one takes everything."""

    types: frozenset[str] = ALL_TYPES
    enum: dict[str, Any] | None = None
    """Values by a text that is equal for equal values."""
    lower: list[Bound] = field(default_factory=list)
    upper: list[Bound] = field(default_factory=list)
    multiples: list[Fraction] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    """The tightest of `minLength`, `maxLength`, `minItems`, ..."""
    patterns: set[str] = field(default_factory=set)
    unique_items: bool = False
    required: set[str] = field(default_factory=set)
    objects: list[ObjectModel] = field(default_factory=list)
    arrays: list[ArrayModel] = field(default_factory=list)
    property_names: list[JsonNode] = field(default_factory=list)
    contents: list[ContainsRule] = field(default_factory=list)
    dependent_names: dict[str, set[str]] = field(default_factory=dict)
    dependent_schemas: dict[str, list[JsonNode]] = field(default_factory=dict)
    choices: list[SchemaChoice] = field(default_factory=list)
    negations: list[JsonNode] = field(default_factory=list)
    conditions: list[tuple[JsonNode, JsonNode, JsonNode]] = field(default_factory=list)
    unresolved: set[str] = field(default_factory=set)
    """Addresses of schemas that are in no known document, such as meta-schemas."""


def collect_members(nodes: Iterable[JsonNode]) -> list[JsonNode]:
    """Return the schemas that hold at once: the nodes, what they refer to, and the elements of `allOf`."""
    members: dict[int, JsonNode] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if id(node) in members:
            continue
        members[id(node)] = node
        if isinstance(node.value, dict):
            pending += [target for _, target in node.references() if target is not None]
            if not is_replaced(node):
                pending += [node.part(value) for value in schemas_of(node.value.get("allOf"))]
    return list(members.values())


def is_replaced(node: JsonNode) -> bool:
    """Whether a `$ref` hides all other keywords."""
    return node.document.draft <= 7 and isinstance(node.value.get("$ref"), str)


def read_facts(members: Iterable[JsonNode], without_choices: frozenset[int] = frozenset()) -> Facts:
    """Return what the members demand together; choices of some of them can be left out."""
    facts = Facts()
    for node in members:
        if isinstance(node.value, bool):
            facts.types = facts.types if node.value else frozenset()
            continue
        facts.unresolved |= {address for address, target in node.references() if target is None}
        if is_replaced(node):
            continue
        _read_values(facts, node.value)
        _read_numbers(facts, node)
        _read_lengths(facts, node.value)
        _read_object(facts, node)
        _read_array(facts, node)
        _read_logic(facts, node, with_choices=id(node) not in without_choices)
    if facts.enum is not None:
        facts.enum = {key: value for key, value in facts.enum.items() if type_of(value) in facts.types}
        facts.types = frozenset(type_of(value) for value in facts.enum.values())
    return facts


def type_of(value: Any) -> str:
    """Return the type of a JSON value; a number without a fraction is an integer, however it is written."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def value_key(value: Any) -> str:
    """Return a text that is equal for values that JSON Schema holds for equal: 1 and 1.0, but not true."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def schemas_of(value: Any) -> list[Any]:
    """Return the schemas in a list of schemas; nothing if it is no list."""
    return [item for item in value if isinstance(item, (dict, bool))] if isinstance(value, list) else []


def _read_values(facts: Facts, value: dict[str, Any]) -> None:
    names = value.get("type")
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list):
        types = {"integer", "fraction"} if "number" in names else set()
        facts.types &= types | {name for name in names if isinstance(name, str)}
    for values in (value.get("enum"), [value["const"]] if "const" in value else None):
        if isinstance(values, list):
            keys = {value_key(item): item for item in values}
            known = keys if facts.enum is None else facts.enum
            facts.enum = {key: item for key, item in keys.items() if key in known}


def _read_numbers(facts: Facts, node: JsonNode) -> None:
    value = node.value
    for keyword, bounds in (("Minimum", facts.lower), ("Maximum", facts.upper)):
        inclusive, exclusive = value.get(keyword.lower()), value.get(f"exclusive{keyword}")
        if _is_number(inclusive):
            bounds.append(Bound(keyword.lower(), _fraction(inclusive), exclusive is True))
        if _is_number(exclusive):
            bounds.append(Bound(f"exclusive{keyword}", _fraction(exclusive), exclusive=True))
    if _is_number(value.get("multipleOf")) and value["multipleOf"] > 0:
        facts.multiples.append(_fraction(value["multipleOf"]))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fraction(value: float) -> Fraction:
    # By its decimal text: 0.1 is a tenth, not the nearest binary fraction.
    return Fraction(Decimal(repr(value)))


def _read_lengths(facts: Facts, value: dict[str, Any]) -> None:
    for keyword in (*_LENGTHS_MIN, *_LENGTHS_MAX):
        length: Any = value.get(keyword)
        if _is_number(length) and (keyword in _LENGTHS_MAX or length > 0):
            tighter = min if keyword in _LENGTHS_MAX else max
            facts.lengths[keyword] = tighter(int(length), facts.lengths.get(keyword, int(length)))
    if isinstance(value.get("pattern"), str):
        facts.patterns.add(value["pattern"])
    facts.unique_items |= value.get("uniqueItems") is True
    if isinstance(value.get("required"), list):
        facts.required |= {name for name in value["required"] if isinstance(name, str)}


def _parts(node: JsonNode, keyword: str) -> dict[str, JsonNode]:
    parts = node.value.get(keyword)
    if not isinstance(parts, dict):
        return {}
    return {name: node.part(part) for name, part in parts.items() if isinstance(part, (dict, bool))}


def _part(node: JsonNode, keyword: str) -> JsonNode | None:
    part = node.value.get(keyword)
    return node.part(part) if isinstance(part, (dict, bool)) else None


def _read_object(facts: Facts, node: JsonNode) -> None:
    properties, patterns = _parts(node, "properties"), _parts(node, "patternProperties")
    rest = _part(node, "additionalProperties")
    if properties or patterns or rest is not None:
        facts.objects.append(ObjectModel(properties, patterns, rest or ANY, rest or ANY))
    unevaluated = _part(node, "unevaluatedProperties")
    if unevaluated is not None and node.document.draft >= 2019:
        _read_unevaluated_properties(facts, node, unevaluated)
    names = _part(node, "propertyNames")
    if names is not None:
        facts.property_names.append(names)
    dependencies = node.value.get("dependentRequired", {}), node.value.get("dependencies", {})
    for dependency in dependencies:
        for name, others in dependency.items() if isinstance(dependency, dict) else ():
            if isinstance(others, list):
                facts.dependent_names.setdefault(name, set()).update(
                    other for other in others if isinstance(other, str)
                )
    for keyword in ("dependentSchemas", "dependencies"):
        for name, part in _parts(node, keyword).items():
            facts.dependent_schemas.setdefault(name, []).append(part)


def _read_unevaluated_properties(facts: Facts, node: JsonNode, unevaluated: JsonNode) -> None:
    members = [member for member in collect_members([node]) if isinstance(member.value, dict)]
    if any("additionalProperties" in member.value for member in members):
        return  # every property is evaluated
    properties: dict[str, JsonNode] = {}
    patterns: dict[str, JsonNode] = {}
    for member in members:
        properties |= _parts(member, "properties")
        patterns |= _parts(member, "patternProperties")
    depends = any(_has_branches(member.value) or "dependentSchemas" in member.value for member in members)
    facts.objects.append(ObjectModel(properties, patterns, unevaluated, ANY if depends else unevaluated))


def _has_branches(value: dict[str, Any]) -> bool:
    return any(keyword in value for keyword in ("anyOf", "oneOf", "if", "$dynamicRef", "$recursiveRef"))


def _read_array(facts: Facts, node: JsonNode) -> None:
    value = node.value
    positions, rest = _read_positions(node)
    if positions or rest is not None:
        facts.arrays.append(ArrayModel(positions, rest or ANY, rest or ANY))
    unevaluated = _part(node, "unevaluatedItems")
    if unevaluated is not None and node.document.draft >= 2019:
        members = [member for member in collect_members([node]) if isinstance(member.value, dict)]
        models = [_read_positions(member) for member in members]
        if all(model_rest is None for _, model_rest in models):
            longest = max((model_positions for model_positions, _ in models), key=len)
            depends = any(_has_branches(member.value) or "contains" in member.value for member in members)
            facts.arrays.append(ArrayModel(longest, unevaluated, ANY if depends else unevaluated))
    contents = _part(node, "contains")
    if contents is not None:
        least, most = value.get("minContains", 1), value.get("maxContains")
        counted = node.document.draft >= 2019
        facts.contents.append(
            ContainsRule(
                contents,
                int(least) if counted and _is_number(least) else 1,
                int(most) if counted and _is_number(most) else None,
            )
        )


def _read_positions(node: JsonNode) -> tuple[list[JsonNode], JsonNode | None]:
    if node.document.draft >= 2020:
        return [node.part(item) for item in schemas_of(node.value.get("prefixItems"))], _part(node, "items")
    if isinstance(node.value.get("items"), list):
        return [node.part(item) for item in schemas_of(node.value["items"])], _part(node, "additionalItems")
    return [], _part(node, "items")


def _read_logic(facts: Facts, node: JsonNode, *, with_choices: bool) -> None:
    for keyword in ("anyOf", "oneOf"):
        branches = [node.part(value) for value in schemas_of(node.value.get(keyword))]
        if branches and with_choices:
            facts.choices.append(SchemaChoice(keyword, branches))
    negation = _part(node, "not")
    if negation is not None:
        facts.negations.append(negation)
    condition = _part(node, "if")
    if condition is not None and node.document.draft >= 7:
        facts.conditions.append((condition, _part(node, "then") or ANY, _part(node, "else") or ANY))
