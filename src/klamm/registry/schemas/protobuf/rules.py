"""Protobuf's compatibility rules: can messages of the writer's schema be parsed with the reader's schema?

Fields are compared by number, messages by full name. "new" is the reader, "old" the writer.

| change | |
|---|---|
| package changed | PACKAGE_CHANGED |
| message added; moved to an import or back | compatible |
| message removed | MESSAGE_REMOVED |
| enum added, removed; constants added, renamed, removed | compatible |
| field added, removed, renamed | compatible |
| required field added, or a field became required | REQUIRED_FIELD_ADDED |
| required field removed | REQUIRED_FIELD_REMOVED |
| scalar type changed within {int32, int64, uint32, uint64, bool, enum}, {sint32, sint64}, {string, bytes}, \
{fixed32, sfixed32}, {fixed64, sfixed64} | compatible |
| scalar type changed otherwise | FIELD_SCALAR_KIND_CHANGED |
| scalar, message, group or map became another of these | FIELD_KIND_CHANGED |
| message type changed to one of another name | FIELD_NAMED_TYPE_CHANGED |
| message type of the same name, also of an import, changed | the kinds of its fields |
| numeric field: optional became repeated or back | FIELD_NUMERIC_LABEL_CHANGED |
| numeric field of proto3 without a label became repeated or back | compatible (no label, no change of it) |
| string, bytes or message field: label changed | compatible |
| oneof added with new fields, or with one old field; oneof removed as a whole | compatible |
| several old fields moved into a new oneof | MULTIPLE_FIELDS_MOVED_TO_ONEOF |
| old field moved into a oneof that exists | FIELD_MOVED_TO_EXISTING_ONEOF |
| field added to a oneof; member moved out of it | compatible |
| member removed while its oneof stays | ONEOF_FIELD_REMOVED |

Services, options, extensions and reserved numbers do not matter. A oneof that only changed its name is the same.
"""

from __future__ import annotations

from klamm.registry.schemas.comparison import Incompatibility, PairComparison
from klamm.registry.schemas.protobuf.messages import ProtoField, ProtoMessage, ProtoTypes

_NUMERIC_LABELS = {"optional", "required", "repeated"}


def check_protobuf(reader: ProtoTypes, writer: ProtoTypes) -> list[Incompatibility]:
    """Return why the reader's schema cannot parse messages of the writer's schema."""
    if reader.package != writer.package:
        message = f"The package is {reader.package!r}, the old one is {writer.package!r}"
        return [Incompatibility("PACKAGE_CHANGED", "#/", message)]
    comparison = _ProtoComparison()
    incompatibilities: list[Incompatibility] = []
    for old in writer.declared:
        path = f"#/{old.full_name.removeprefix(f'{writer.package}.')}"
        new = reader.messages.get(old.full_name)
        if new is None:
            incompatibilities.append(
                Incompatibility("MESSAGE_REMOVED", path, f"The message {old.full_name} is removed")
            )
        else:
            incompatibilities += comparison.run(new, old, path)
    return list(dict.fromkeys(incompatibilities))


class _ProtoComparison(PairComparison[ProtoMessage]):
    def compare_nodes(self, reader: ProtoMessage, writer: ProtoMessage, path: str) -> list[Incompatibility]:
        self.spend(len(reader.fields) // 8)
        incompatibilities = []
        for number in sorted(reader.fields.keys() | writer.fields.keys()):
            new, old = reader.fields.get(number), writer.fields.get(number)
            place = f"{path}/{number}"
            if new is not None and old is not None:
                incompatibilities += self._compare_field(new, old, place)
            elif new is not None and new.label == "required":
                incompatibilities.append(_describe_required("REQUIRED_FIELD_ADDED", new, place, "added"))
            elif old is not None and old.label == "required":
                incompatibilities.append(_describe_required("REQUIRED_FIELD_REMOVED", old, place, "removed"))
        return incompatibilities + _compare_oneofs(reader, writer, path)

    def _compare_field(self, new: ProtoField, old: ProtoField, place: str) -> list[Incompatibility]:
        incompatibilities = []
        if new.label == "required" and old.label != "required":
            incompatibilities.append(_describe_required("REQUIRED_FIELD_ADDED", new, place, "became required"))
        if new.type_kind != old.type_kind:
            message = f"The field {new.name} at path '{place}' is a {new.type_kind}, the old one is a {old.type_kind}"
            return [*incompatibilities, Incompatibility("FIELD_KIND_CHANGED", place, message)]
        if new.is_map and new.message is not None and old.message is not None:
            # Key and value are the fields of an entry, whose name follows the field's name.
            return incompatibilities + self.compare(new.message, old.message, place)
        if new.message is not None and old.message is not None:
            if new.message.full_name == old.message.full_name:
                return incompatibilities + self.compare(new.message, old.message, place)
            message = (
                f"The field {new.name} at path '{place}' is of type {new.message.full_name}, "
                f"the old one of type {old.message.full_name}"
            )
            return [*incompatibilities, Incompatibility("FIELD_NAMED_TYPE_CHANGED", place, message)]
        return incompatibilities + _compare_scalars(new, old, place)


def _compare_scalars(new: ProtoField, old: ProtoField, place: str) -> list[Incompatibility]:
    if new.scalar_kind != old.scalar_kind:
        message = f"The field {new.name} at path '{place}' is a {new.scalar_kind}, the old one is a {old.scalar_kind}"
        return [Incompatibility("FIELD_SCALAR_KIND_CHANGED", place, message)]
    both_labelled = new.label in _NUMERIC_LABELS and old.label in _NUMERIC_LABELS
    if new.scalar_kind != "text" and both_labelled and (new.label == "repeated") != (old.label == "repeated"):
        message = f"The numeric field {new.name} at path '{place}' is {new.label}, the old one is {old.label}"
        return [Incompatibility("FIELD_NUMERIC_LABEL_CHANGED", place, message)]
    return []


def _compare_oneofs(reader: ProtoMessage, writer: ProtoMessage, path: str) -> list[Incompatibility]:
    incompatibilities = []
    old_oneofs = writer.oneofs
    for name, members in reader.oneofs.items():
        old_members = old_oneofs.get(name)
        place = f"{path}/{name}"
        if old_members is None:
            moved = members & writer.fields.keys()
            renamed = any(moved <= others for others in old_oneofs.values())
            if len(moved) > 1 and not renamed:
                message = f"Several fields moved into the oneof {name} at path '{path}'"
                incompatibilities.append(Incompatibility("MULTIPLE_FIELDS_MOVED_TO_ONEOF", place, message))
            continue
        for number in sorted((members - old_members) & writer.fields.keys()):
            message = f"The field {number} at path '{path}' moved into the oneof {name}, which exists already"
            incompatibilities.append(Incompatibility("FIELD_MOVED_TO_EXISTING_ONEOF", f"{place}/{number}", message))
        for number in sorted(old_members - reader.fields.keys()):
            message = f"The member {number} of the oneof {name} at path '{path}' is removed"
            incompatibilities.append(Incompatibility("ONEOF_FIELD_REMOVED", f"{place}/{number}", message))
    return incompatibilities


def _describe_required(kind: str, item: ProtoField, place: str, change: str) -> Incompatibility:
    return Incompatibility(kind, place, f"The required field {item.name} at path '{place}' is {change}")
