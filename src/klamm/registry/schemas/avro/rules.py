"""Avro's schema resolution as compatibility rules: can data of the writer's schema be read with the reader's schema?

| reader | writer | compatible if, else kind |
|---|---|---|
| primitive | the same | always |
| long | int | always |
| float | int, long | always |
| double | int, long, float | always |
| string, bytes | bytes, string | always |
| array, map | the same | items (values) are |
| fixed | fixed | names match, else NAME_MISMATCH; sizes are equal, else FIXED_SIZE_MISMATCH |
| enum | enum | names match, else NAME_MISMATCH; the reader has all symbols or a default, else MISSING_ENUM_SYMBOLS |
| record | record | names match, else NAME_MISMATCH; fields of the same name are compatible |
| | | a field that the writer does not have has a default, else READER_FIELD_MISSING_DEFAULT_VALUE |
| any | union | every branch of the writer is read, else MISSING_UNION_BRANCH (reader is a union) or the branch's kind |
| union | no union | a branch of the reader reads it, else MISSING_UNION_BRANCH |
| other pairs | | TYPE_MISMATCH |

Names match if the parts after the last dot are equal (the specification compares unqualified names), or if the
writer's name is an alias of the reader's type. Fields match by name, or by an alias of the reader's field that is not
the name of another of its fields. Logical types, docs, orders and properties do not matter.
"""

from __future__ import annotations

from klamm.registry.schemas.avro.nodes import AvroField, AvroType
from klamm.registry.schemas.comparison import Incompatibility, PairComparison, join_names

_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}


def check_avro(reader: AvroType, writer: AvroType) -> list[Incompatibility]:
    """Return why the reader's schema cannot read the writer's data."""
    return _AvroComparison().run(reader, writer, "")


class _AvroComparison(PairComparison[AvroType]):
    def compare_nodes(self, reader: AvroType, writer: AvroType, path: str) -> list[Incompatibility]:
        if writer.kind == "union":
            return self._compare_branches(reader, writer, path)
        if reader.kind == "union":
            self.spend(len(reader.branches))
            # Most unions have the very type: the others need not be tried.
            if any(branch is writer for branch in reader.branches) and not writer.name:
                return []
            if any(not self.compare(branch, writer, path) for branch in reader.branches):
                return []
            return [_missing_branch(writer, path)]
        kind = _kind(reader)
        if kind != _kind(writer):
            if writer.kind in _PROMOTIONS.get(kind, ()):
                return []
            message = f"The reader's type {reader.kind} at path {_place(path)} does not read the type {writer.kind}"
            return [Incompatibility("TYPE_MISMATCH", path or "/", message)]
        match kind:
            case "record":
                return _compare_names(reader, writer, path) or self._compare_fields(reader, writer, path)
            case "enum":
                return _compare_names(reader, writer, path) or _compare_symbols(reader, writer, path)
            case "fixed":
                return _compare_names(reader, writer, path) or _compare_sizes(reader, writer, path)
        if reader.items is not None and writer.items is not None:
            return self.compare(reader.items, writer.items, f"{path}/{'items' if kind == 'array' else 'values'}")
        return []

    def _compare_branches(self, reader: AvroType, writer: AvroType, path: str) -> list[Incompatibility]:
        incompatibilities = []
        for index, branch in enumerate(writer.branches):
            differences = self.compare(reader, branch, f"{path}/{index}")
            if differences and reader.kind == "union":
                incompatibilities.append(_missing_branch(branch, f"{path}/{index}"))
            else:
                incompatibilities += differences
        return incompatibilities

    def _compare_fields(self, reader: AvroType, writer: AvroType, path: str) -> list[Incompatibility]:
        written = {item.name: item for item in writer.fields}
        incompatibilities = []
        for index, item in enumerate(reader.fields):
            match = written.get(item.name) or (_find_by_alias(item, written, reader) if item.aliases else None)
            if match is not None:
                # Primitive types are one object each.
                if item.type is not match.type or item.type.name:
                    incompatibilities += self.compare(item.type, match.type, f"{path}/fields/{index}/type")
            elif not item.has_default:
                place = f"{path}/fields/{index}"
                message = f"The field {item.name} at path {place} has no default and is missing in the writer's schema"
                incompatibilities.append(Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", place, message))
        return incompatibilities


def _find_by_alias(item: AvroField, written: dict[str, AvroField], reader: AvroType) -> AvroField | None:
    own_names = {own.name for own in reader.fields}
    aliases = (alias for alias in item.aliases if alias in written and alias not in own_names)
    return next((written[alias] for alias in aliases), None)


def _compare_names(reader: AvroType, writer: AvroType, path: str) -> list[Incompatibility]:
    if reader.short_name == writer.short_name or writer.name in reader.aliases:
        return []
    message = f"The name of the type at path {_place(path)} is {reader.name}, the writer's is {writer.name}"
    return [Incompatibility("NAME_MISMATCH", f"{path}/name", message)]


def _compare_symbols(reader: AvroType, writer: AvroType, path: str) -> list[Incompatibility]:
    missing = set(writer.symbols) - set(reader.symbols)
    if not missing or reader.symbol_default is not None:
        return []
    message = f"The enum {reader.name} at path {_place(path)} has no default and misses symbols {join_names(missing)}"
    return [Incompatibility("MISSING_ENUM_SYMBOLS", f"{path}/symbols", message)]


def _compare_sizes(reader: AvroType, writer: AvroType, path: str) -> list[Incompatibility]:
    if reader.size == writer.size:
        return []
    message = f"The size of {reader.name} at path {_place(path)} is {reader.size}, the writer's is {writer.size}"
    return [Incompatibility("FIXED_SIZE_MISMATCH", f"{path}/size", message)]


def _missing_branch(writer: AvroType, path: str) -> Incompatibility:
    message = f"The union at path {_place(path)} has no branch that reads {writer.name or writer.kind}"
    return Incompatibility("MISSING_UNION_BRANCH", path or "/", message)


def _kind(avro_type: AvroType) -> str:
    return "record" if avro_type.kind == "error" else avro_type.kind


def _place(path: str) -> str:
    return f"'{path or '/'}'"
