"""What a schema id stands for: text, type, references, metadata and rules; equal content has an equal GUID."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

JsonObject = Mapping[str, Any]

VERSION_PROPERTY: Final = "confluent:version"
"""The metadata property in which the registry keeps a version that the client has chosen."""


class SchemaReference(NamedTuple):
    """A reference from one schema to a version of another subject."""

    name: str
    subject: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return it as records and answers have it."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


class SchemaContent:
    """A schema without subject, version and id. Immutable; versions of the same content share one object."""

    __slots__ = ("guid", "linked_guid", "metadata", "references", "rule_set", "schema_type", "text")

    def __init__(
        self,
        schema_type: str,
        text: str,
        references: Iterable[SchemaReference] = (),
        metadata: JsonObject | None = None,
        rule_set: JsonObject | None = None,
    ) -> None:
        self.schema_type = schema_type
        self.text = text
        self.references = tuple(references)
        self.metadata = metadata
        self.rule_set = rule_set
        self.guid = _digest(text, self.references, metadata, rule_set)
        self.linked_guid: bytes | None = None
        """The GUID of the content with its linked text; None until a look-up has needed it.

        Without references only: what they stand for may change.
        """

    @property
    def identity(self) -> tuple[str, bytes]:
        """Equal for equal content."""
        # The GUID alone has no type: one JSON text may be an Avro schema and a JSON Schema, which must not share an id.
        return self.schema_type, self.guid

    @property
    def guid_text(self) -> str:
        """The GUID as it is in answers and, as bytes, in the headers of records."""
        return str(uuid.UUID(bytes=self.guid))

    def replace(self, *, metadata: JsonObject | None, rule_set: JsonObject | None) -> SchemaContent:
        """Return the same schema with other metadata and rules."""
        return SchemaContent(self.schema_type, self.text, self.references, metadata, rule_set)


def _digest(
    text: str, references: Iterable[SchemaReference], metadata: JsonObject | None, rule_set: JsonObject | None
) -> bytes:
    """Return the MD5 over everything in the order that Confluent's registry has: serializers compare it."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False)
    for reference in references:
        digest.update(reference.name.encode() + reference.subject.encode())
        digest.update(reference.version.to_bytes(4, "big", signed=True))
    if metadata is not None:
        digest.update(b"\x01" + "".join(_metadata_texts(metadata)).encode())
    if rule_set is not None:
        digest.update(b"\x01")
        for kind in ("migrationRules", "domainRules", "encodingRules"):
            for rule in rule_set.get(kind) or ():
                digest.update("".join(_rule_texts(rule)).encode())
                if rule.get("disabled"):
                    digest.update(b"\x01")
        digest.update((rule_set.get("enableAt") or "").encode())
    return digest.digest()


def _metadata_texts(metadata: JsonObject) -> Iterable[str]:
    for path, tags in sorted((metadata.get("tags") or {}).items()):
        yield path
        yield from sorted(tags)
    for name, value in sorted((metadata.get("properties") or {}).items()):
        yield name
        yield value
    yield from sorted(metadata.get("sensitive") or ())


def _rule_texts(rule: JsonObject) -> Iterable[str]:
    for name in ("name", "doc", "kind", "mode", "type"):
        yield rule.get(name) or ""
    yield from sorted(rule.get("tags") or ())
    for name, value in sorted((rule.get("params") or {}).items()):
        yield name
        yield value
    for name in ("expr", "onSuccess", "onFailure"):
        yield rule.get(name) or ""
