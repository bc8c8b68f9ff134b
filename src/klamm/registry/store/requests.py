"""Bodies of requests, checked; unknown fields are ignored, as clients of newer registries send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from klamm.registry.schemas.parsed import TagChanges
from klamm.registry.store.contracts import parse_metadata, parse_rule_set
from klamm.registry.store.log_records import INT_MAX, parse_int, parse_references
from klamm.registry.store.refusals import VERSION_MAX, RegistryRefusal, invalid_schema, invalid_version
from klamm.registry.store.registration import SchemaRequest

LATEST: Final = -1
_ID_DIGITS_MAX: Final = 20


def parse_schema_request(body: Mapping[str, Any]) -> SchemaRequest:
    """Parse the schema of a register, look-up or compatibility request."""
    text = body.get("schema")
    if text is not None and not isinstance(text, str):
        raise invalid_schema("schema is not a text")
    try:
        references = parse_references(body.get("references"))
    except ValueError as error:
        raise invalid_schema(str(error)) from None
    return SchemaRequest(
        text=text if text and not text.isspace() else "",
        schema_type=str(body.get("schemaType") or "AVRO").upper(),
        references=references,
        metadata=parse_metadata(body.get("metadata")),
        rule_set=parse_rule_set(body.get("ruleSet")),
        schema_id=_parse_number(body.get("id"), "id"),
        version=_parse_number(body.get("version"), "version"),
        tags_to_add=_parse_tags(body.get("schemaTagsToAdd")),
        tags_to_remove=_parse_tags(body.get("schemaTagsToRemove")),
    )


def parse_tag_request(body: Mapping[str, Any]) -> SchemaRequest:
    """Parse a request to change tags, metadata or rules of a version; its schema is that of the version."""
    to_remove = body.get("rulesToRemove")
    return SchemaRequest(
        metadata=parse_metadata(body.get("metadata")),
        rule_set=parse_rule_set(body.get("ruleSet")),
        version=_parse_number(body.get("newVersion"), "newVersion"),
        tags_to_add=_parse_tags(body.get("tagsToAdd")),
        tags_to_remove=_parse_tags(body.get("tagsToRemove")),
        rules_to_merge=parse_rule_set(body.get("rulesToMerge")),
        rules_to_remove=tuple(map(str, to_remove)) if isinstance(to_remove, list) else (),
    )


def parse_version(text: str) -> int:
    """Parse the version in a path: a number, or LATEST for `latest` and -1."""
    if text in ("latest", "-1"):
        return LATEST
    # isdecimal alone accepts digits of other scripts.
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) <= VERSION_MAX:
        raise invalid_version(text)
    return int(text)


def parse_id(text: str) -> int:
    """Parse the id in a path; another text than an int32 is a path that is not served."""
    digits = text.removeprefix("-")
    # Longer texts are not converted: the time of it grows with the square of the digits.
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _ID_DIGITS_MAX) or int(digits) > INT_MAX:
        raise RegistryRefusal(404, "HTTP 404 Not Found")
    return int(text)


def _parse_number(value: Any, name: str) -> int | None:
    """Parse an id or version; clients send 0 or -1 for none."""
    if value is None:
        return None
    try:
        number = parse_int(value)
    except ValueError as error:
        raise RegistryRefusal(422, f"{name}: {error}") from None
    return number if number > 0 else None


def _parse_tags(changes: Any) -> TagChanges:
    if not changes:
        return {}
    try:
        return {str(change["schemaEntity"]["entityPath"]): tuple(map(str, change["tags"])) for change in changes}
    except (TypeError, KeyError):
        raise invalid_schema("tags are changed by {schemaEntity: {entityPath, entityType}, tags: [tag]}") from None
