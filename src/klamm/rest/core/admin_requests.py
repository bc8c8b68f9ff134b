"""Bodies and queries of v3 that change topics, settings and access rules."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from klamm.client.admin.acl_types import AclBinding, AclFilter
from klamm.client.admin.config_types import AlterOp
from klamm.client.types import NewTopic
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.rest.core.fields import INT32_MAX, flag_of, number_of, objects_of, text_of
from klamm.rest.core.refusals import bad_request, invalid_field

_CONFIGS_MAX: Final = 1000
_RULES_MAX: Final = 1000
_PARTITIONS_MAX: Final = 10_000

E = TypeVar("E", bound=IntEnum)


def parse_new_topic(body: Mapping[str, Any]) -> tuple[NewTopic, bool]:
    """Return the topic to create, and whether it is only validated."""
    assignment = body.get("replicas_assignments")
    replicas = None if assignment is None else _parse_assignment(assignment)
    configs = {}
    if body.get("configs") is not None:
        for entry in objects_of(body, "configs", most=_CONFIGS_MAX):
            value = entry.get("value")
            configs[text_of(entry, "name")] = None if value is None else _config_value(value)
    topic = NewTopic(
        text_of(body, "topic_name"),
        -1 if replicas is not None else number_of(body, "partitions_count", -1, least=-1),
        -1 if replicas is not None else number_of(body, "replication_factor", -1, least=-1, most=32767),
        configs,
        replicas,
    )
    return topic, flag_of(body, "validate_only", default=False)


def _parse_assignment(assignment: Any) -> dict[int, list[int]]:
    if not isinstance(assignment, dict) or len(assignment) > _PARTITIONS_MAX:
        raise invalid_field("replicas_assignments is not an object of partitions and their brokers")
    replicas = {}
    for partition, brokers in assignment.items():
        numbers = isinstance(brokers, list) and all(
            isinstance(broker, int) and not isinstance(broker, bool) and 0 <= broker <= INT32_MAX for broker in brokers
        )
        if not (partition.isascii() and partition.isdecimal() and len(partition) < 10 and numbers):
            raise invalid_field("replicas_assignments is not an object of partitions and their brokers")
        replicas[int(partition)] = brokers
    return replicas


def _config_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise invalid_field("value is not a string")
    return str(value)


def parse_config_value(body: Mapping[str, Any]) -> str | None:
    """Return the new value of a setting; None, which deletes it, of null."""
    if "value" not in body:
        raise invalid_field("value may not be null")
    value = body["value"]
    return None if value is None else _config_value(value)


def parse_alterations(body: Mapping[str, Any]) -> tuple[dict[str, tuple[AlterOp, str | None]], bool]:
    """Return the changes of settings by name, and whether they are only validated."""
    changes: dict[str, tuple[AlterOp, str | None]] = {}
    for entry in objects_of(body, "data", most=_CONFIGS_MAX):
        name = text_of(entry, "name")
        operation = str(entry.get("operation") or "SET").upper()
        if operation not in ("SET", "DELETE"):
            raise bad_request(f"operation={operation[:80]} is not SET or DELETE")
        if name in changes:
            raise bad_request(f"{name} is changed twice")
        if operation == "DELETE":
            changes[name] = (AlterOp.DELETE, None)
        else:
            value = entry.get("value")
            changes[name] = (AlterOp.DELETE, None) if value is None else (AlterOp.SET, _config_value(value))
    return changes, flag_of(body, "validate_only", default=False)


def parse_rule(body: Mapping[str, Any]) -> AclBinding:
    """Return an access rule, all of whose fields are needed."""
    return AclBinding(
        _word(AclResourceType, body, "resource_type", wild=False),
        text_of(body, "resource_name"),
        text_of(body, "principal"),
        _word(AclOperation, body, "operation", wild=False),
        _word(AclPermission, body, "permission", wild=False),
        text_of(body, "host"),
        _word(PatternType, body, "pattern_type", wild=False),
    )


def parse_rules(body: Mapping[str, Any]) -> list[AclBinding]:
    """Return access rules of `{"data": [...]}`."""
    return [parse_rule(entry) for entry in objects_of(body, "data", most=_RULES_MAX)]


def parse_rule_filter(query: Mapping[str, list[str]], *, for_deletion: bool) -> AclFilter:
    """Return which access rules a query names; a deletion must say type, pattern and operation."""
    fields = {name: values[0] for name, values in query.items() if values and values[0]}
    if for_deletion:
        for name in ("resource_type", "pattern_type", "operation"):
            if name not in fields:
                raise bad_request(f"{name} cannot be unspecified or UNKNOWN")
    return AclFilter(
        _word(AclResourceType, fields, "resource_type", default=AclResourceType.ANY),
        fields.get("resource_name"),
        fields.get("principal"),
        _word(AclOperation, fields, "operation", default=AclOperation.ANY),
        _word(AclPermission, fields, "permission", default=AclPermission.ANY),
        fields.get("host"),
        _word(PatternType, fields, "pattern_type", default=PatternType.ANY),
    )


def _word(words: type[E], fields: Mapping[str, Any], name: str, *, default: E | None = None, wild: bool = True) -> E:
    given = fields.get(name)
    if given is None and default is not None:
        return default
    word = str(given or "UNKNOWN").upper()
    if word not in words.__members__:
        raise bad_request(f"{name}={word[:80]} is not one of {', '.join(list(words.__members__)[1:])}")
    if word == "UNKNOWN" or (not wild and word in ("ANY", "MATCH")):
        raise bad_request(f"{name} cannot be unspecified or {word}")
    return words[word]
