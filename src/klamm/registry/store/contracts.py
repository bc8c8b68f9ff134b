"""Metadata and rule sets of schemas: what a request may contain, how they merge, and what a version inherits.

The registry stores and checks them; clients run the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from klamm.registry.store.content import VERSION_PROPERTY, JsonObject
from klamm.registry.store.refusals import RegistryRefusal, invalid_schema

_RULE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,255}")
_KINDS: Final = ("CONDITION", "TRANSFORM")
_MIGRATION_MODES: Final = ("UPGRADE", "DOWNGRADE", "UPDOWN")
_DOMAIN_MODES: Final = ("WRITE", "READ", "WRITEREAD")
_PAIRED_MODES: Final = ("UPDOWN", "WRITEREAD")
_MODES: Final = {
    "migrationRules": _MIGRATION_MODES,
    "domainRules": _DOMAIN_MODES,
    "encodingRules": _DOMAIN_MODES,
}
"""The lists of a rule set, and the modes of the rules in each."""
_RULE_TEXTS: Final = ("name", "doc", "kind", "mode", "type", "expr", "onSuccess", "onFailure")


def parse_metadata(given: Any) -> dict[str, Any] | None:
    """Check metadata of a request; unknown fields are dropped, tags and sensitive names are sorted."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise invalid_schema("metadata is not an object")
    metadata: dict[str, Any] = {}
    try:
        if given.get("tags"):
            metadata["tags"] = {str(path): sorted(set(map(str, tags))) for path, tags in given["tags"].items()}
        if given.get("properties"):
            metadata["properties"] = {str(name): _text(value) for name, value in given["properties"].items()}
        if given.get("sensitive"):
            metadata["sensitive"] = sorted(set(map(str, given["sensitive"])))
    except (TypeError, AttributeError, ValueError):
        raise invalid_schema("metadata has tags {path: [tag]}, properties {name: text} and sensitive [name]") from None
    return metadata


def _text(value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        raise ValueError("a property is a text")
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def parse_rule_set(given: Any) -> dict[str, Any] | None:
    """Check the rules of a request; unknown fields are dropped."""
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _invalid_rules("ruleSet is not an object")
    rules: dict[str, Any] = {}
    for kind, modes in _MODES.items():
        items = given.get(kind)
        if not items:
            continue
        if not isinstance(items, list):
            raise _invalid_rules(f"{kind} is not a list")
        rules[kind] = [_parse_rule(rule, modes) for rule in items]
        names = [rule["name"] for rule in rules[kind]]
        if len(set(names)) < len(names):
            raise _invalid_rules(f"two rules of {kind} have the same name")
    if given.get("enableAt"):
        rules["enableAt"] = str(given["enableAt"])
    return rules


def _parse_rule(given: Any, modes: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _invalid_rules("a rule is not an object")
    rule: dict[str, Any] = {}
    for field in _RULE_TEXTS:
        value = given.get(field)
        if value is not None:
            rule[field] = str(value).upper() if field in ("kind", "mode") else str(value)
        # The order of fields is that of Confluent's answers.
        if field == "type":
            if given.get("tags"):
                rule["tags"] = sorted(set(map(str, given["tags"])))
            if isinstance(given.get("params"), dict) and given["params"]:
                rule["params"] = {str(name): str(text) for name, text in given["params"].items()}
    if not _RULE_NAME.fullmatch(rule.get("name", "")):
        raise _invalid_rules(f"the rule name {rule.get('name', '')!r} is not a letter or _ and letters, digits, _ or -")
    if "kind" in rule and rule["kind"] not in _KINDS:
        raise _invalid_rules(f"the kind of rule {rule['name']} is one of {', '.join(_KINDS)}")
    if "mode" in rule and rule["mode"] not in modes:
        raise _invalid_rules(f"the mode of rule {rule['name']} is one of {', '.join(modes)}")
    if not rule.get("type"):
        raise _invalid_rules(f"rule {rule['name']} has no type")
    for field in ("onSuccess", "onFailure"):
        count = rule.get(field, "").count(",") + 1
        if count > (2 if rule.get("mode") in _PAIRED_MODES else 1):
            raise _invalid_rules(f"{field} of rule {rule['name']} has {count} actions")
    if given.get("disabled"):
        rule["disabled"] = True
    return rule


def _invalid_rules(reason: str) -> RegistryRefusal:
    return RegistryRefusal(42210, f"Invalid rule set: {reason}")


# Merging


def merge_metadata(under: JsonObject | None, over: JsonObject | None) -> JsonObject | None:
    """Return both; where both have a path or name, `over` counts."""
    if under is None or over is None:
        return over if under is None else under
    merged: dict[str, Any] = {}
    for field in ("tags", "properties"):
        items = {**(under.get(field) or {}), **(over.get(field) or {})}
        if items:
            merged[field] = items
    sensitive = sorted({*(under.get("sensitive") or ()), *(over.get("sensitive") or ())})
    if sensitive:
        merged["sensitive"] = sensitive
    return merged


def merge_rule_sets(under: JsonObject | None, over: JsonObject | None) -> JsonObject | None:
    """Return both; a rule of `over` replaces the one of the same name."""
    if under is None or over is None:
        return over if under is None else under
    merged: dict[str, Any] = {}
    for kind in _MODES:
        # A replaced rule moves to the end, where `over` has it: rules run in order.
        replaced = {rule["name"] for rule in over.get(kind) or ()}
        rules = [rule for rule in under.get(kind) or () if rule["name"] not in replaced]
        rules += over.get(kind) or ()
        if rules:
            merged[kind] = rules
    enable_at = over.get("enableAt") or under.get("enableAt")
    if enable_at:
        merged["enableAt"] = enable_at
    return merged


def remove_rules(rule_set: JsonObject | None, names: Iterable[str]) -> JsonObject | None:
    """Return the rules without those of these names."""
    if rule_set is None:
        return None
    dropped = set(names)
    kept = dict(rule_set)
    for kind in _MODES:
        if kind in kept:
            kept[kind] = [rule for rule in kept[kind] if rule["name"] not in dropped]
    return kept


def apply_config(
    metadata: JsonObject | None, rule_set: JsonObject | None, config: Mapping[str, Any]
) -> tuple[JsonObject | None, JsonObject | None]:
    """Put a config's defaults under, and its overrides over, the metadata and rules of a schema."""
    metadata = merge_metadata(merge_metadata(config.get("defaultMetadata"), metadata), config.get("overrideMetadata"))
    rule_set = merge_rule_sets(merge_rule_sets(config.get("defaultRuleSet"), rule_set), config.get("overrideRuleSet"))
    return metadata, rule_set


def with_version_property(metadata: JsonObject | None, version: int | None) -> JsonObject | None:
    """Return metadata with the version that the client has chosen; without that property if it has chosen none."""
    properties = dict((metadata or {}).get("properties") or {})
    properties.pop(VERSION_PROPERTY, None)
    if version is not None:
        properties[VERSION_PROPERTY] = str(version)
    elif metadata is None or VERSION_PROPERTY not in (metadata.get("properties") or {}):
        return metadata
    changed = {**(metadata or {}), "properties": properties}
    if not properties:
        del changed["properties"]
    # An empty object would be content of its own, with another id.
    return changed or None


def has_rule_type(rule_set: JsonObject | None, rule_type: str) -> bool:
    """Whether any rule is of a type."""
    return any(rule.get("type") == rule_type for kind in _MODES for rule in (rule_set or {}).get(kind) or ())
