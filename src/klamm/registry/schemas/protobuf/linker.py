"""From what is written to what it means: type names are resolved, options interpreted, the language's rules checked.

The result is a FileDescriptorProto as protoc writes it. The descriptor pool of the protobuf library checks most rules
(numbers, duplicate names, presence); those that it leaves to protoc are checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from klamm.registry.schemas.parsed import InvalidSchemaError
from klamm.registry.schemas.protobuf.literals import escape_text, format_float, json_name
from klamm.registry.schemas.protobuf.parser import FieldDescriptorProto
from klamm.registry.schemas.protobuf.symbols import ENUM, EXTENSION, MESSAGE, SymbolTable, join
from klamm.registry.schemas.protobuf.wellknown import WELL_KNOWN, load_well_known

_FIELD_NUMBERS_OF_PROTOBUF = range(19000, 20000)
_DESCRIPTOR = "google/protobuf/descriptor.proto"


class LinkedFile:
    """A complete file with the files that it imports, and a pool of all of them."""

    def __init__(self, proto: Any, imports: Mapping[str, LinkedFile]) -> None:
        self.proto = proto
        self.imports = imports
        """The direct imports by path."""
        self._pool: Any = None

    @property
    def pool(self) -> Any:
        """The descriptors of all files; raises InvalidSchemaError if they break a rule."""
        if self._pool is None:
            self._pool = _build_pool(self.all_files())
        return self._pool

    def rename(self, path: str) -> LinkedFile:
        """Return the same file under the path by which another one imports it."""
        proto = descriptor_pb2.FileDescriptorProto()
        proto.CopyFrom(self.proto)
        proto.name = path
        return LinkedFile(proto, self.imports)

    def all_files(self) -> list[Any]:
        """Return this file after all that it imports, directly or not."""
        files: dict[str, Any] = {}
        for path, linked in self.imports.items():
            for file in linked.all_files():
                files.setdefault(file.name or path, file)
        return [*files.values(), self.proto]


def link(parsed: Any, name: str, available: Mapping[str, LinkedFile]) -> LinkedFile:
    """Resolve and check a parsed file; imports are well-known files or among the available ones."""
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(parsed)
    file.name = name
    imports = {path: _find_import(path, available) for path in [*file.dependency, *file.option_dependency]}
    linker = _Linker(file, imports)
    linker.resolve_types()
    linker.interpret_options()
    linker.check()
    linked = LinkedFile(file, imports)
    assert linked.pool is not None, "building it checks the file"
    return linked


def _find_import(path: str, available: Mapping[str, LinkedFile]) -> LinkedFile:
    linked = available.get(path)
    if linked is not None:
        return linked
    if path not in WELL_KNOWN:
        raise InvalidSchemaError(f"import {path} is not among the references of the schema")
    return link_well_known(path)


_WELL_KNOWN: dict[str, LinkedFile] = {}


def link_well_known(path: str) -> LinkedFile:
    """Return a file that needs no reference."""
    linked = _WELL_KNOWN.get(path)
    if linked is None:
        linked = _WELL_KNOWN[path] = link(load_well_known(path), path, {})
    return linked


def _build_pool(files: list[Any]) -> Any:
    # A pool per schema: versions of a message have the same name, and the default pool refuses that.
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise InvalidSchemaError(str(error).partition(": ")[2] or str(error)) from None
    return pool


class _Linker:
    def __init__(self, file: Any, imports: Mapping[str, LinkedFile]) -> None:
        self._file = file
        self._imports = imports
        visible = dict(self._visible_files())
        self._symbols = SymbolTable([file, *visible.values()])

    def _visible_files(self) -> Iterator[tuple[str, Any]]:
        pending = list(self._imports.items())
        while pending:
            path, linked = pending.pop()
            yield path, linked.proto
            public = [linked.proto.dependency[index] for index in linked.proto.public_dependency]
            pending += [(name, linked.imports[name]) for name in public]

    def _messages(self) -> Iterator[tuple[str, Any]]:
        """Return all messages of the file with their full names."""
        pending = [(self._file.package, message) for message in self._file.message_type]
        while pending:
            scope, message = pending.pop()
            full_name = join(scope, message.name)
            yield full_name, message
            pending += [(full_name, nested) for nested in message.nested_type]

    def _fields(self) -> Iterator[tuple[str, Any]]:
        for field in self._file.extension:
            yield self._file.package, field
        for full_name, message in self._messages():
            for field in [*message.field, *message.extension]:
                yield full_name, field

    def _enums(self) -> Iterator[tuple[str, Any]]:
        for enum in self._file.enum_type:
            yield self._file.package, enum
        for full_name, message in self._messages():
            for enum in message.enum_type:
                yield full_name, enum

    def resolve_types(self) -> None:
        """Write full names, with a leading dot, and whether they are messages or enums."""
        for scope, field in self._fields():
            if field.extendee:
                field.extendee = self._resolve(field.extendee, scope, (MESSAGE,), field.name)
            if field.type_name:
                symbol = self._symbols.find(field.type_name, scope, (MESSAGE, ENUM))
                if symbol is None:
                    raise InvalidSchemaError(f"{join(scope, field.name)}: the type {field.type_name} is not defined")
                field.type_name = f".{symbol.full_name}"
                if symbol.kind == ENUM:
                    field.type = FieldDescriptorProto.TYPE_ENUM
                elif field.type != FieldDescriptorProto.TYPE_GROUP:
                    field.type = FieldDescriptorProto.TYPE_MESSAGE
            if not field.HasField("json_name"):
                field.json_name = json_name(field.name)
        for service in self._file.service:
            scope = join(self._file.package, service.name)
            for method in service.method:
                method.input_type = self._resolve(method.input_type, scope, (MESSAGE,), method.name)
                method.output_type = self._resolve(method.output_type, scope, (MESSAGE,), method.name)

    def _resolve(self, name: str, scope: str, kinds: tuple[str, ...], user: str) -> str:
        symbol = self._symbols.find(name, scope, kinds)
        if symbol is None:
            raise InvalidSchemaError(f"{join(scope, user)}: the type {name} is not defined")
        return f".{symbol.full_name}"

    def interpret_options(self) -> None:
        """Set the fields of the options' messages that the written options name."""
        pending = []
        for scope, options in list(self._option_places()):
            written = [option for option in options.uninterpreted_option if self._is_defined(scope, option)]
            # Confluent's registry and Karapace accept options that no file defines. They stay as they were written.
            undefined = [option for option in options.uninterpreted_option if not self._is_defined(scope, option)]
            del options.uninterpreted_option[:]
            options.uninterpreted_option.extend(undefined)
            # First those without extensions: a pool that has the extensions is built with the file's features.
            self._interpret(scope, options, [option for option in written if not _has_extension(option)], None)
            pending.append((scope, options, [option for option in written if _has_extension(option)]))
        if any(written for _, _, written in pending):
            pool = self._options_pool()
            for scope, options, written in pending:
                self._interpret(scope, options, written, pool)

    def _option_places(self) -> Iterator[tuple[str, Any]]:
        package = self._file.package
        if self._file.HasField("options"):
            yield package, self._file.options
        for full_name, message in self._messages():
            for part in [message, *message.oneof_decl, *message.extension_range]:
                if part.HasField("options"):
                    yield full_name, part.options
        for scope, field in self._fields():
            if field.HasField("options"):
                yield scope, field.options
        for scope, enum in self._enums():
            for part in [enum, *enum.value]:
                if part.HasField("options"):
                    yield scope, part.options
        for service in self._file.service:
            for part in [service, *service.method]:
                if part.HasField("options"):
                    yield join(package, service.name), part.options

    def _options_pool(self) -> Any:
        """Return a pool that has the extensions of options, also those that this file declares."""
        linked = LinkedFile(self._file, self._imports)
        imported = linked.all_files()[:-1]
        if not any(file.name == _DESCRIPTOR for file in imported):
            return None
        if any(field.extendee for _, field in self._fields()):
            return linked.pool
        return _build_pool(imported)

    def _interpret(self, scope: str, options: Any, written: list[Any], pool: Any) -> None:
        if not written:
            return
        if pool is None:
            target = options
        else:
            descriptor = pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
            target = message_factory.GetMessageClass(descriptor)()
        for option in written:
            text = self._write_text_format(scope, option)
            try:
                text_format.Merge(text, target, descriptor_pool=pool)
            except (text_format.ParseError, TypeError, ValueError) as error:
                raise InvalidSchemaError(f"option {name_option(option)}: {error}") from None
        if target is not options:
            # Extensions are unknown to the class of the options, which keeps their bytes.
            options.MergeFromString(target.SerializeToString(deterministic=True))

    def _is_defined(self, scope: str, option: Any) -> bool:
        return all(
            self._symbols.find(part.name_part, scope, (EXTENSION,)) is not None
            for part in option.name
            if part.is_extension
        )

    def _write_text_format(self, scope: str, option: Any) -> str:
        names = []
        for part in option.name:
            if part.is_extension:
                symbol = self._symbols.find(part.name_part, scope, (EXTENSION,))
                assert symbol is not None, "options that are not defined are left as they are"
                names.append(f"[{symbol.full_name}]")
            else:
                names.append(part.name_part)
        if option.HasField("aggregate_value"):
            value = f"{names[-1]} {{ {option.aggregate_value} }}"
        else:
            value = f"{names[-1]}: {write_option_value(option)}"
        for name in reversed(names[:-1]):
            value = f"{name} {{ {value} }}"
        return value

    def check(self) -> None:
        """Check what the descriptor pool does not."""
        for full_name, message in self._messages():
            _check_message(full_name, message)
        for scope, enum in self._enums():
            _check_enum(join(scope, enum.name), enum)


def _check_message(full_name: str, message: Any) -> None:
    ranges = [("reserved", item.start, item.end) for item in message.reserved_range]
    ranges += [("an extension range", item.start, item.end) for item in message.extension_range]
    ordered = sorted(ranges, key=_range_start)
    for (_, _, end), (_, start, _) in pairwise(ordered):
        if start < end:
            raise InvalidSchemaError(f"{full_name}: ranges overlap at {start}")
    reserved_names = set(message.reserved_name)
    for field in message.field:
        for kind, start, end in ranges:
            if start <= field.number < end:
                raise InvalidSchemaError(f"{full_name}.{field.name}: the number {field.number} is {kind}")
        if field.name in reserved_names:
            raise InvalidSchemaError(f"{full_name}.{field.name}: the name is reserved")
        if field.number in _FIELD_NUMBERS_OF_PROTOBUF:
            raise InvalidSchemaError(f"{full_name}.{field.name}: the numbers 19000 to 19999 belong to Protobuf")


def _range_start(item: tuple[str, int, int]) -> int:
    return item[1]


def _check_enum(full_name: str, enum: Any) -> None:
    numbers: dict[int, str] = {}
    reserved_names = set(enum.reserved_name)
    for value in enum.value:
        if value.number in numbers and not enum.options.allow_alias:
            raise InvalidSchemaError(f"{full_name}: {value.name} and {numbers[value.number]} have the same number")
        numbers[value.number] = value.name
        if any(item.start <= value.number <= item.end for item in enum.reserved_range):
            raise InvalidSchemaError(f"{full_name}: the number {value.number} of {value.name} is reserved")
        if value.name in reserved_names:
            raise InvalidSchemaError(f"{full_name}: the name {value.name} is reserved")


def _has_extension(option: Any) -> bool:
    # A bracket in an aggregate is the name of an extension, or a list.
    return any(part.is_extension for part in option.name) or "[" in option.aggregate_value


def name_option(option: Any) -> str:
    """Return the name of an option as it is written."""
    return ".".join(f"({part.name_part})" if part.is_extension else part.name_part for part in option.name)


def write_option_value(option: Any) -> str:
    """Return a value that is no aggregate; .proto and the text format write it alike."""
    for kind in ("identifier_value", "positive_int_value", "negative_int_value"):
        if option.HasField(kind):
            return str(getattr(option, kind))
    if option.HasField("double_value"):
        return format_float(option.double_value)
    return f'"{escape_text(option.string_value)}"'
