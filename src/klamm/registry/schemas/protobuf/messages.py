"""The messages of a file and of its imports as the rules compare them: fields by number, and their kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from klamm.registry.schemas.protobuf.linker import LinkedFile

_F = FieldDescriptor
# Types that write the same bytes for values that both have.
_SCALAR_KINDS = {
    _F.TYPE_INT32: "varint",
    _F.TYPE_INT64: "varint",
    _F.TYPE_UINT32: "varint",
    _F.TYPE_UINT64: "varint",
    _F.TYPE_BOOL: "varint",
    _F.TYPE_ENUM: "varint",
    _F.TYPE_SINT32: "zigzag varint",
    _F.TYPE_SINT64: "zigzag varint",
    _F.TYPE_STRING: "text",
    _F.TYPE_BYTES: "text",
    _F.TYPE_FIXED32: "fixed32",
    _F.TYPE_SFIXED32: "fixed32",
    _F.TYPE_FIXED64: "fixed64",
    _F.TYPE_SFIXED64: "fixed64",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
}


@dataclass(slots=True, eq=False)
class ProtoField:
    """A field of a message, or the key or value of a map."""

    number: int
    name: str
    label: str
    """`required`, `optional` or `repeated`; empty where nothing is written (proto3) and in oneofs."""
    scalar_kind: str
    """Empty for messages."""
    message: ProtoMessage | None
    is_group: bool
    is_map: bool
    oneof: str
    """The name of the oneof, empty if it is in none."""

    @property
    def type_kind(self) -> str:
        """Scalar, message, group or map: another one has other bytes."""
        if self.is_map:
            return "map"
        if self.message is None:
            return "scalar"
        return "group" if self.is_group else "message"


@dataclass(slots=True, eq=False)
class ProtoMessage:
    """A message; one object for one full name."""

    full_name: str
    fields: dict[int, ProtoField] = field(default_factory=dict)

    @property
    def oneofs(self) -> dict[str, set[int]]:
        """The numbers of the members by oneof."""
        oneofs: dict[str, set[int]] = {}
        for item in self.fields.values():
            if item.oneof:
                oneofs.setdefault(item.oneof, set()).add(item.number)
        return oneofs


@dataclass(slots=True, eq=False)
class ProtoTypes:
    """What a file declares, and all messages that it can see."""

    package: str
    declared: list[ProtoMessage]
    """Messages of the file itself, nested ones too, without entries of maps."""
    messages: dict[str, ProtoMessage]


def read_types(linked: LinkedFile) -> ProtoTypes:
    """Return the messages of a file from the descriptors, in which features of editions are resolved."""
    reader = _TypeReader()
    for file in linked.all_files():
        reader.read_file(linked.pool.FindFileByName(file.name))
    own = linked.pool.FindFileByName(linked.proto.name)
    declared = [reader.messages[name] for name in _declared_names(own.message_types_by_name.values())]
    return ProtoTypes(linked.proto.package, declared, reader.messages)


def _declared_names(descriptors: Any) -> list[str]:
    names = []
    for descriptor in descriptors:
        if not descriptor.GetOptions().map_entry:
            names += [descriptor.full_name, *_declared_names(descriptor.nested_types)]
    return names


class _TypeReader:
    def __init__(self) -> None:
        self.messages: dict[str, ProtoMessage] = {}

    def read_file(self, file: Any) -> None:
        pending = list(file.message_types_by_name.values())
        descriptors = []
        while pending:
            descriptor = pending.pop()
            descriptors.append(descriptor)
            pending += descriptor.nested_types
        for descriptor in descriptors:
            message = self._message(descriptor.full_name)
            message.fields = {item.number: self._read_field(item) for item in descriptor.fields}

    def _message(self, full_name: str) -> ProtoMessage:
        # Made before it is read: fields refer to messages that come later, and to their own.
        return self.messages.setdefault(full_name, ProtoMessage(full_name))

    def _read_field(self, descriptor: Any) -> ProtoField:
        message = descriptor.message_type
        oneof = descriptor.containing_oneof
        # `optional` in proto3 is a oneof of its own in descriptors.
        synthetic = oneof is not None and len(oneof.fields) == 1 and oneof.name.lstrip("X") == f"_{descriptor.name}"
        return ProtoField(
            descriptor.number,
            descriptor.name,
            _read_label(descriptor, in_oneof=oneof is not None and not synthetic),
            _SCALAR_KINDS.get(descriptor.type, ""),
            None if message is None else self._message(message.full_name),
            descriptor.type == _F.TYPE_GROUP,
            message is not None and message.GetOptions().map_entry,
            "" if oneof is None or synthetic else oneof.name,
        )


def _read_label(descriptor: Any, *, in_oneof: bool) -> str:
    if descriptor.is_repeated:
        return "repeated"
    if descriptor.is_required:
        return "required"
    if in_oneof or not descriptor.has_presence:
        return ""
    # A message always has presence, whether `optional` is written or not.
    return "optional"
