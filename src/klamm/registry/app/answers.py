"""JSON of schemas and versions; empty fields are left out, as clients expect no nulls."""

from __future__ import annotations

from typing import Any

from klamm.registry.app.requests import RegistryRequest
from klamm.registry.store.content import SchemaContent
from klamm.registry.store.parsing import SchemaParser
from klamm.registry.store.registration import SchemaRequest
from klamm.registry.store.state import SchemaVersion
from klamm.registry.store.subjects import parse_subject


def content_fields(
    content: SchemaContent, context: str, parser: SchemaParser, request: RegistryRequest | None = None
) -> dict[str, Any]:
    """Return the fields of a schema without subject, version and id, in the form that the request asks for."""
    fields: dict[str, Any] = {"guid": content.guid_text, "schemaType": content.schema_type}
    qualified = request is not None and request.text("referenceFormat") == "qualified"
    if content.references:
        fields["references"] = [
            reference.to_json() | ({"subject": str(parse_subject(reference.subject, context))} if qualified else {})
            for reference in content.references
        ]
    if content.metadata is not None:
        fields["metadata"] = content.metadata
    if content.rule_set is not None:
        fields["ruleSet"] = content.rule_set
    fields["schema"] = schema_text(content, context, parser, request)
    if request is not None and request.flag("findTags"):
        fields["schemaTags"] = [
            {
                "schemaEntity": {"entityPath": entity.entity_path, "entityType": entity.entity_type},
                "tags": sorted(tags),
            }
            for entity, tags in parser.parse(content, context).tags().items()
            if tags
        ]
    return fields


def schema_text(content: SchemaContent, context: str, parser: SchemaParser, request: RegistryRequest | None) -> str:
    """Return the text of a schema, in the form of ?format."""
    name = "" if request is None else request.text("format")
    return content.text if not name else parser.parse(content, context).format(name)


def version_fields(
    version: SchemaVersion, parser: SchemaParser, request: RegistryRequest | None = None
) -> dict[str, Any]:
    """Return all fields of a version."""
    fields: dict[str, Any] = {"subject": str(version.subject), "version": version.version, "id": version.schema_id}
    fields |= content_fields(version.content, version.subject.context, parser, request)
    if version.timestamp_ms is not None:
        fields["ts"] = version.timestamp_ms
    if version.deleted:
        fields["deleted"] = True
    return fields


def registration_fields(
    version: SchemaVersion, sent: SchemaRequest, parser: SchemaParser, request: RegistryRequest
) -> dict[str, Any]:
    """Return the answer of a registration: with the schema only where the registry added something to it, or if asked.

    Clients remember the schema of an answer in place of the one they sent. confluent-kafka's for Protobuf remembers
    descriptors in base64, and would find a text.
    """
    content = version.content
    changed = (
        not sent.text
        or bool(sent.tags_to_add or sent.tags_to_remove)
        or (content.metadata, content.rule_set) != (sent.metadata, sent.rule_set)
    )
    if changed or request.text("format"):
        fields = version_fields(version, parser, request)
        del fields["subject"]
        return fields
    fields = {"id": version.schema_id, "version": version.version, "guid": content.guid_text}
    if version.timestamp_ms is not None:
        fields["ts"] = version.timestamp_ms
    return fields
