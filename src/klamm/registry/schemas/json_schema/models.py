"""The parts of objects and arrays: which may be there, and what they may be.

A content model is *open* if `additionalProperties` is absent or true, *closed* if it is false, else *partially open*;
a property that matches a pattern of `patternProperties` is covered by that pattern's schema.

| change | old model | new model | kind if it is incompatible |
|---|---|---|---|
| property added | open | | PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL, unless its schema takes everything |
| property added | closed | | compatible (REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL if required, no default) |
| property added | partially open | | PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL, unless covered |
| property removed | | open | compatible |
| property removed | | closed | PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL, unless its schema is `false` |
| property removed | | partially open | PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL, unless covered |
| pattern added or narrowed | | | PATTERN_PROPERTY_NARROWED |
| `additionalProperties` false; narrower | | | ADDITIONAL_PROPERTIES_REMOVED; ADDITIONAL_PROPERTIES_NARROWED |
| property changed | | | the kinds of its schema |

Items by position follow the same rules, with ITEM for PROPERTY and ADDITIONAL_ITEMS for ADDITIONAL_PROPERTIES.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import jsonschema_rs

from klamm.registry.schemas.comparison import Incompatibility
from klamm.registry.schemas.json_schema.documents import JsonNode
from klamm.registry.schemas.json_schema.facts import ArrayModel, Facts, ObjectModel

if TYPE_CHECKING:
    from klamm.registry.schemas.json_schema.rules import JsonComparison

_BACKTRACK_MAX = 10_000


@lru_cache(maxsize=1024)
def _compile_pattern(pattern: str) -> jsonschema_rs.Validator | None:
    # Not `re`: its backtracking has no limit, and its syntax is not that of the drafts.
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_MAX)
    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=options)
    except ValueError:
        return None


def _matches(pattern: str, name: str) -> bool:
    validator = _compile_pattern(pattern)
    return validator is not None and bool(validator.is_valid(name))


def _matching(model: ObjectModel, name: str) -> list[JsonNode]:
    return [node for pattern, node in model.patterns.items() if _matches(pattern, name)]


def _list_written(model: ObjectModel, name: str) -> list[JsonNode]:
    """Return what a model says of a property, as schemas that hold at once."""
    declared = [model.properties[name]] if name in model.properties else []
    return declared + _matching(model, name) or [model.written_rest]


def compare_objects(comparison: JsonComparison, demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
    """Compare properties, patterns, the rest, and what is required."""
    incompatibilities = _compare_required(comparison, demands, given, path)
    for model in demands.objects:
        comparison.spend(len(model.properties) * (1 + len(given.objects)) // 8)
        for name, node in model.properties.items():
            incompatibilities += _compare_property(comparison, name, node, given, f"{path}/properties/{name}")
        incompatibilities += _compare_removed(comparison, model, given, path)
        incompatibilities += _compare_patterns(comparison, model, given, path)
        incompatibilities += _compare_rest(comparison, model, given, path)
    for names in demands.property_names:
        incompatibilities += comparison.covers(names, given.property_names, f"{path}/propertyNames")
    return incompatibilities


def _compare_required(comparison: JsonComparison, demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
    incompatibilities = []
    for name in sorted(demands.required - given.required):
        nodes = [model.properties[name] for model in demands.objects if name in model.properties]
        if any(comparison.has_default(node) for node in nodes):
            continue
        declared = any(name in model.properties for model in given.objects)
        unopen = any(not comparison.is_any(model.written_rest) or model.patterns for model in given.objects)
        kind = (
            "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"
            if nodes and unopen and not declared
            else "REQUIRED_ATTRIBUTE_ADDED"
        )
        message = f"The property {name} at path '{path}' is required and has no default"
        incompatibilities.append(Incompatibility(kind, f"{path}/required/{name}", message))
    return incompatibilities


def _compare_property(
    comparison: JsonComparison, name: str, node: JsonNode, given: Facts, path: str
) -> list[Incompatibility]:
    declared = [model.properties[name] for model in given.objects if name in model.properties]
    if declared:
        return comparison.covers(node, declared, path)
    allowed = [part for model in given.objects for part in _list_written(model, name)]
    if any(comparison.is_nothing(part) for part in allowed) or comparison.is_any(node):
        return []
    if all(comparison.is_any(part) for part in allowed):
        kind = "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
        message = f"The property at path '{path}' is added, old objects may have any value there"
        return [] if comparison.allows(kind) else [Incompatibility(kind, path, message)]
    if not comparison.covers(node, allowed, path):
        return []
    message = f"The property at path '{path}' is added, old objects may have other values there"
    return [Incompatibility("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, message)]


def _compare_removed(comparison: JsonComparison, model: ObjectModel, given: Facts, path: str) -> list[Incompatibility]:
    """Compare the properties of the old model with the patterns and the rest of the new one."""
    incompatibilities = []
    old_names = {name: None for old in given.objects for name in old.properties}
    for name in old_names:
        written = [part for old in given.objects for part in _list_written(old, name)]
        if any(comparison.is_nothing(part) for part in written):
            continue
        place = f"{path}/properties/{name}"
        matching = _matching(model, name)
        if name not in model.properties and not matching:
            matching = [model.rest]
        for node in matching:
            if not comparison.covers(node, written, place):
                continue
            if comparison.is_nothing(node):
                kind = "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
                message = f"The property at path '{place}' is removed, other properties are not allowed"
            else:
                kind = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
                message = f"The property at path '{place}' is removed, and its values are not allowed any more"
            if not comparison.allows(kind):
                incompatibilities.append(Incompatibility(kind, place, message))
    return incompatibilities


def _compare_patterns(comparison: JsonComparison, model: ObjectModel, given: Facts, path: str) -> list[Incompatibility]:
    incompatibilities = []
    for pattern, node in model.patterns.items():
        place = f"{path}/patternProperties/{pattern}"
        if comparison.is_any(node):
            continue
        if not any(_covers_pattern(comparison, pattern, node, old, place) for old in given.objects):
            message = f"Old properties that match the pattern at path '{place}' may have other values"
            incompatibilities.append(Incompatibility("PATTERN_PROPERTY_NARROWED", place, message))
    return incompatibilities


def _covers_pattern(comparison: JsonComparison, pattern: str, node: JsonNode, old: ObjectModel, place: str) -> bool:
    if pattern in old.patterns:
        return not comparison.compare(node, old.patterns[pattern], place)
    # A name that matches may match other patterns of the old model, or none.
    parts = [*old.patterns.values(), old.written_rest]
    return all(not comparison.compare(node, part, place) for part in parts)


def _compare_rest(comparison: JsonComparison, model: ObjectModel, given: Facts, path: str) -> list[Incompatibility]:
    place = f"{path}/additionalProperties"
    if comparison.is_any(model.rest) or any(_covers_rest(comparison, model, old, place) for old in given.objects):
        return []
    closed = comparison.is_nothing(model.rest)
    kind = "ADDITIONAL_PROPERTIES_REMOVED" if closed else "ADDITIONAL_PROPERTIES_NARROWED"
    message = f"Additional properties at path '{place}' are {'not allowed' if closed else 'narrowed'}"
    return [] if comparison.allows(kind) else [Incompatibility(kind, place, message)]


def _covers_rest(comparison: JsonComparison, model: ObjectModel, old: ObjectModel, place: str) -> bool:
    if comparison.compare(model.rest, old.written_rest, place):
        return False
    others = [node for pattern, node in old.patterns.items() if pattern not in model.patterns]
    return all(not comparison.compare(model.rest, node, place) for node in others)


def compare_arrays(comparison: JsonComparison, demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
    """Compare items by position, the rest, and uniqueness."""
    incompatibilities = []
    if demands.unique_items and not given.unique_items and given.lengths.get("maxItems", 2) > 1:
        message = f"Items at path '{path}' have to be unique"
        incompatibilities.append(Incompatibility("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", message))
    # Positions from here on do not exist in old arrays.
    end = given.lengths.get("maxItems")
    longest = max((len(old.positions) for old in given.arrays), default=0)
    for model in demands.arrays:
        count = max(len(model.positions), longest)
        comparison.spend(count // 8)
        for index in range(count if end is None else min(count, end)):
            incompatibilities += _compare_position(comparison, index, model, given, f"{path}/items/{index}")
        if end is None or end > count:
            incompatibilities += _compare_other_items(comparison, model, given, path)
    return incompatibilities


def _compare_position(
    comparison: JsonComparison, index: int, model: ArrayModel, given: Facts, path: str
) -> list[Incompatibility]:
    is_added = all(index >= len(old.positions) for old in given.arrays)
    is_removed = index >= len(model.positions)
    node = model.rest if is_removed else model.positions[index]
    written = [_item(old, index) for old in given.arrays]
    incompatibilities = comparison.covers(node, written, path)
    if not incompatibilities or any(comparison.is_nothing(part) for part in written):
        return []
    if is_removed and not is_added:
        if comparison.is_nothing(node):
            message = f"The item at path '{path}' is removed, other items are not allowed"
            return [Incompatibility("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, message)]
        message = f"The item at path '{path}' is removed, and its values are not allowed any more"
        return [Incompatibility("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, message)]
    if is_added and not is_removed:
        if all(comparison.is_any(part) for part in written):
            message = f"The item at path '{path}' is added, old arrays may have any value there"
            return [Incompatibility("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path, message)]
        message = f"The item at path '{path}' is added, old arrays may have other values there"
        return [Incompatibility("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path, message)]
    return incompatibilities


def _item(model: ArrayModel, index: int) -> JsonNode:
    return model.positions[index] if index < len(model.positions) else model.written_rest


def _compare_other_items(
    comparison: JsonComparison, model: ArrayModel, given: Facts, path: str
) -> list[Incompatibility]:
    place = f"{path}/items"
    incompatibilities = comparison.covers(model.rest, [old.written_rest for old in given.arrays], place)
    if not incompatibilities:
        return []
    if not model.positions and all(not old.positions for old in given.arrays):
        return incompatibilities
    closed = comparison.is_nothing(model.rest)
    message = f"Additional items at path '{place}' are {'not allowed' if closed else 'narrowed'}"
    return [Incompatibility("ADDITIONAL_ITEMS_REMOVED" if closed else "ADDITIONAL_ITEMS_NARROWED", place, message)]
