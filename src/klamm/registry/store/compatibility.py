"""A new schema beside the old versions that the level of its subject names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from klamm.registry.store.content import JsonObject
from klamm.registry.store.parsing import AnyParsedSchema, SchemaParser
from klamm.registry.store.refusals import RegistryRefusal, invalid_schema
from klamm.registry.store.state import SchemaVersion
from klamm.registry.store.steps import Steps

_RESERVED_PROPERTY: Final = "confluent:reserved"
_OWN_PREFIX: Final = "$$"
_GROUP_CHARS: Final = 4096
"""Versions are compared in groups of so many characters: a step for each of a hundred small ones takes longer."""


def find_incompatibilities_steps(
    parser: SchemaParser,
    parsed: AnyParsedSchema,
    metadata: JsonObject | None,
    versions: Sequence[SchemaVersion],
    config: Mapping[str, Any],
) -> Steps[list[str]]:
    """Return why a schema must not follow these live versions, given in ascending order; empty if it may.

    The newest version is compared, or all with a transitive level, the newest first; the first that forbids the change
    is reported.
    """
    level: str = config["compatibilityLevel"]
    if level == "NONE":
        return []
    compared = [version for version in reversed(versions) if _same_group(version, metadata, config)]
    if not level.endswith("_TRANSITIVE"):
        compared = compared[:1]
    group: list[SchemaVersion] = []
    chars = 0
    for version in compared:
        group.append(version)
        chars += len(version.content.text) + len(parsed.canonical)
        if chars >= _GROUP_CHARS:
            if messages := (yield from compare_steps(parser, parsed, group, config)):
                return messages
            group, chars = [], 0
    return (yield from compare_steps(parser, parsed, group, config))


def compare_steps(
    parser: SchemaParser, parsed: AnyParsedSchema, versions: Sequence[SchemaVersion], config: Mapping[str, Any]
) -> Steps[list[str]]:
    """Return why a schema must not follow the first of these versions that forbids it."""
    level: str = config["compatibilityLevel"]
    policy = config.get("compatibilityPolicy", "STRICT")
    olds: list[AnyParsedSchema] = []
    refusal = None
    for version in versions:
        try:
            olds.append((yield from parser.parse_steps(version.content, version.subject.context)))
        except RegistryRefusal as problem:
            # A stored schema may refer to a missing one, when its topic was written by hand or restored in part.
            refusal = problem
            break
    differences = yield from parser.compare_steps(parsed, olds, level, policy)
    if differences:
        version = versions[len(differences) - 1]
        return _describe(version, [difference.describe() for difference in differences[-1]], config)
    if refusal is not None:
        version = versions[len(olds)]
        message = f"{{description:'version {version.version} cannot be parsed: {refusal.message}'}}"
        return _describe(version, [message], config)
    return []


def _describe(version: SchemaVersion, messages: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    level: str = config["compatibilityLevel"]
    validates = str(bool(config.get("validateFields"))).lower()
    return [
        *messages,
        f"{{oldSchemaVersion: {version.version}}}",
        f"{{oldSchema: '{version.content.text}'}}",
        f"{{validateFields: '{validates}', compatibility: '{level}'}}",
    ]


def require_valid_names(parsed: AnyParsedSchema, config: Mapping[str, Any]) -> None:
    """Refuse fields with names of the registry's own, if the config asks for the check."""
    if not config.get("validateFields"):
        return
    names = [name for name in parsed.field_names() if name.startswith(_OWN_PREFIX)]
    if names:
        raise invalid_schema(f"field names must not start with {_OWN_PREFIX}: {', '.join(names)}")


def find_reserved_fields(
    parsed: AnyParsedSchema, metadata: JsonObject | None, previous: SchemaVersion | None, config: Mapping[str, Any]
) -> list[str]:
    """Return what breaks the list of reserved names, if the config asks for the check.

    Only fields at the top count, as in Confluent's registry; a name stays reserved in all later versions.
    """
    if not config.get("validateFields"):
        return []
    reserved = _reserved_names(metadata)
    before = set() if previous is None else _reserved_names(previous.content.metadata)
    removed = [
        f"{{errorType:'RESERVED_FIELD_REMOVED', description:'The metadata has the reserved field {name} removed'}}"
        for name in sorted(before - reserved)
    ]
    used = [
        f"{{errorType:'RESERVED_FIELD_USED', description:'The schema has a field of the name of the reserved field"
        f" {name}'}}"
        for name in parsed.field_names()
        if name in reserved
    ]
    return [*removed, *used]


def _reserved_names(metadata: JsonObject | None) -> set[str]:
    names = ((metadata or {}).get("properties") or {}).get(_RESERVED_PROPERTY, "").split(",")
    return {name.strip() for name in names} - {""}


def _same_group(version: SchemaVersion, metadata: JsonObject | None, config: Mapping[str, Any]) -> bool:
    """Whether both have the same value of the property that compatibilityGroup names."""
    name = config.get("compatibilityGroup")
    if not name:
        return True
    values = [((either or {}).get("properties") or {}).get(name) for either in (version.content.metadata, metadata)]
    return values[0] == values[1]
