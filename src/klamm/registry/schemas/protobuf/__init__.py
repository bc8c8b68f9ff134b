"""Protobuf: `lexer`, `parser` and `linker` read .proto text, `printer` writes it, `rules` compares."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from google.protobuf import descriptor_pb2, message_factory

from klamm.registry.schemas.comparison import CompatibilityPolicy, Incompatibility
from klamm.registry.schemas.parsed import (
    InvalidSchemaError,
    ParsedSchema,
    SchemaEntity,
    TagChanges,
    change_tags,
    check_paths,
)
from klamm.registry.schemas.protobuf.files import MAIN_NAME, decode_descriptor
from klamm.registry.schemas.protobuf.linker import LinkedFile, link
from klamm.registry.schemas.protobuf.messages import ProtoTypes, read_types
from klamm.registry.schemas.protobuf.parser import parse_proto
from klamm.registry.schemas.protobuf.printer import print_proto
from klamm.registry.schemas.protobuf.rules import check_protobuf
from klamm.registry.schemas.protobuf.symbols import join

_META = "confluent/meta.proto"


class ProtobufSchema(ParsedSchema):
    """A .proto file; references are the files that it imports, by path."""

    schema_type: ClassVar[str] = "PROTOBUF"

    def __init__(self, linked: LinkedFile, references: Mapping[str, ParsedSchema], canonical: str) -> None:
        super().__init__(canonical, references)
        self.linked = linked
        self._types: ProtoTypes | None = None
        self._linked_text: str | None = None

    @classmethod
    def parse(cls, text: str, references: Mapping[str, ParsedSchema], *, is_new: bool) -> ProtobufSchema:
        """Parse .proto text, or a FileDescriptorProto in base64, which is stored as text."""
        del is_new  # what protoc refuses cannot be compared either
        available = _available_files(references)
        descriptor = decode_descriptor(text)
        if descriptor is not None:
            linked = link(descriptor, MAIN_NAME, available)
            return cls(linked, references, print_proto(linked.proto, linked.pool))
        parsed = parse_proto(text)
        return cls(link(parsed, MAIN_NAME, available), references, print_proto(parsed))

    @property
    def full_name(self) -> str:
        """The name of the first message."""
        proto = self.linked.proto
        return join(proto.package, proto.message_type[0].name) if proto.message_type else ""

    def normalize(self) -> ProtobufSchema:
        """Return the schema with full names and in one order."""
        text = print_proto(self.linked.proto, self.linked.pool, normalized=True)
        return ProtobufSchema(self.linked, self.references, text)

    def format(self, name: str) -> str:
        """`serialized`: a FileDescriptorProto in base64. `ignore_extensions`: text without extensions."""
        if name == "serialized":
            return base64.b64encode(self.linked.proto.SerializeToString(deterministic=True)).decode()
        if name == "ignore_extensions":
            return print_proto(self.linked.proto, self.linked.pool, with_extensions=False)
        return self.canonical

    def tags(self) -> dict[SchemaEntity, frozenset[str]]:
        """Return the tags of `(confluent.message_meta)` and `(confluent.field_meta)` by full name."""
        tags = {}
        for entity, declared in _entities(self.linked.proto):
            meta = _read_meta(self.linked, declared)
            if meta is not None and meta[1].tags:
                tags[entity] = frozenset(meta[1].tags)
        return tags

    def with_tags(self, add: TagChanges, remove: TagChanges) -> ProtobufSchema:
        """Return a schema with changed tags; it imports `confluent/meta.proto` if it did not."""
        add, remove = _strip_dots(add), _strip_dots(remove)
        proto = descriptor_pb2.FileDescriptorProto()
        proto.CopyFrom(self.linked.proto)
        if _META not in proto.dependency:
            proto.dependency.append(_META)
        linked = link(proto, MAIN_NAME, _available_files(self.references))
        entities = list(_entities(linked.proto))
        check_paths({**add, **remove}, (entity.entity_path for entity, _ in entities))
        for entity, declared in entities:
            if entity.entity_path in add or entity.entity_path in remove:
                options, meta = _read_meta(linked, declared, create=True)
                tags = change_tags(meta.tags, entity.entity_path, add, remove)
                del meta.tags[:]
                meta.tags.extend(tags)
                declared.options.ParseFromString(options.SerializeToString(deterministic=True))
        return ProtobufSchema.parse(print_proto(linked.proto, linked.pool), self.references, is_new=False)

    def check_reads(self, writer: ProtobufSchema, policy: CompatibilityPolicy) -> list[Incompatibility]:
        """Return why it cannot parse messages of the writer's schema; the policy does not matter for Protobuf."""
        del policy
        return check_protobuf(self._read_types(), writer._read_types())

    def _read_types(self) -> ProtoTypes:
        if self._types is None:
            self._types = read_types(self.linked)
        return self._types

    @property
    def meaning(self) -> str:
        """The normalized text, and that of the files that it imports."""
        files = self.linked.all_files()
        return "\n".join(print_proto(file, self.linked.pool, normalized=True) for file in files)

    @property
    def linked_text(self) -> str:
        """The text of the descriptor: clients of Python send descriptors, others the text that they are made of."""
        if self._linked_text is None:
            self._linked_text = print_proto(self.linked.proto, self.linked.pool)
        return self._linked_text

    def field_names(self) -> Iterable[str]:
        """Return the fields of all top-level messages."""
        return [field.name for message in self.linked.proto.message_type for field in message.field]


def _available_files(references: Mapping[str, ParsedSchema]) -> dict[str, LinkedFile]:
    files = {}
    for path, reference in references.items():
        if not isinstance(reference, ProtobufSchema):
            raise InvalidSchemaError(f"a Protobuf schema cannot refer to a schema of type {reference.schema_type}")
        files[path] = reference.linked.rename(path)
    return files


def _entities(proto: Any) -> Iterator[tuple[SchemaEntity, Any]]:
    pending = [(proto.package, message) for message in proto.message_type]
    while pending:
        scope, message = pending.pop(0)
        if message.options.map_entry:
            continue
        full_name = join(scope, message.name)
        yield SchemaEntity("sr_record", full_name), message
        for field in message.field:
            yield SchemaEntity("sr_field", f"{full_name}.{field.name}"), field
        pending += [(full_name, nested) for nested in message.nested_type]


def _read_meta(linked: LinkedFile, declared: Any, *, create: bool = False) -> Any:
    """Return the options with their extension of `confluent/meta.proto`, as messages of the schema's pool."""
    kind = "message_meta" if isinstance(declared, descriptor_pb2.DescriptorProto) else "field_meta"
    try:
        extension = linked.pool.FindExtensionByName(f"confluent.{kind}")
    except KeyError:
        return None
    options = message_factory.GetMessageClass(extension.containing_type)()
    options.MergeFromString(declared.options.SerializeToString())
    if not create and not options.HasExtension(extension):
        return None
    return options, options.Extensions[extension]


def _strip_dots(changes: TagChanges) -> TagChanges:
    return {path.removeprefix("."): tags for path, tags in changes.items()}
