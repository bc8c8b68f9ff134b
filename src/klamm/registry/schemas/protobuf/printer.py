"""A FileDescriptorProto as .proto text, in one layout; comments are gone.

    syntax, package         then imports, options, messages, enums, extensions, services, with a line between
    message                 options, reserved and extension ranges, fields and oneofs, messages, enums, extensions

Normalized text has fields by number, constants by value (the first one stays, it is the default), imports and options
sorted, adjacent ranges merged. Messages keep their order, which is part of the wire format (message indexes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.message import DecodeError

from klamm.registry.schemas.parsed import InvalidSchemaError
from klamm.registry.schemas.protobuf.lexer import split_tokens
from klamm.registry.schemas.protobuf.linker import name_option, write_option_value
from klamm.registry.schemas.protobuf.literals import escape_text, format_float, json_name
from klamm.registry.schemas.protobuf.parser import FIELD_NUMBER_MAX, SCALARS, FieldDescriptorProto

_TYPE_NAMES = {number: name for name, number in SCALARS.items()}
_EDITION_PREFIX = "EDITION_"
_VISIBILITIES = ("", "local ", "export ")
_INT32_MAX = (1 << 31) - 1


def print_proto(file: Any, pool: Any = None, *, normalized: bool = False, with_extensions: bool = True) -> str:
    """Return the text of a file; the pool knows the extensions among interpreted options."""
    return "\n".join([*_ProtoPrinter(file, pool, normalized, with_extensions).file_lines(), ""])


class _ProtoPrinter:
    def __init__(self, file: Any, pool: Any, normalized: bool, with_extensions: bool) -> None:
        self._file = file
        self._pool = pool
        self._normalized = normalized
        self._with_extensions = with_extensions
        self._syntax = file.syntax or "proto2"

    def file_lines(self) -> list[str]:
        file = self._file
        if self._syntax == "editions":
            edition = descriptor_pb2.Edition.Name(file.edition).removeprefix(_EDITION_PREFIX)
            lines = [f'edition = "{edition}";']
        else:
            lines = [f'syntax = "{self._syntax}";']
        if file.package:
            lines.append(f"package {file.package};")
        sections = [self._import_lines(), self._option_lines(file.options, "")]
        groups = {_last(field.type_name) for field in file.extension if _is_group(field)}
        sections += [self._message_lines(message, "") for message in file.message_type if message.name not in groups]
        sections += [self._enum_lines(enum, "") for enum in file.enum_type]
        sections += self._extend_sections(file.extension, file.message_type, "")
        sections += [self._service_lines(service) for service in file.service]
        for section in sections:
            if section:
                lines += ["", *section]
        return lines

    def _import_lines(self) -> list[str]:
        file = self._file
        public, weak = set(file.public_dependency), set(file.weak_dependency)
        imports = []
        for index, path in enumerate(file.dependency):
            modifier = "public " if index in public else "weak " if index in weak else ""
            imports.append((path, f'import {modifier}"{path}";'))
        imports += [(path, f'import option "{path}";') for path in file.option_dependency]
        return [line for _, line in (sorted(imports) if self._normalized else imports)]

    # Options

    def _options(self, options: Any) -> list[tuple[str, str]]:
        """Return names and values, of options that are interpreted and of those that are only parsed."""
        pairs = [
            (name_option(option), _format_aggregate(option.aggregate_value))
            if option.HasField("aggregate_value")
            else (name_option(option), write_option_value(option))
            for option in options.uninterpreted_option
        ]
        for field, value in self._resolve_extensions(options).ListFields():
            if field.name in ("uninterpreted_option", "map_entry") and not field.is_extension:
                continue
            name = f"({field.full_name})" if field.is_extension else field.name
            if name == "features" and not any(feature.is_extension for feature, _ in value.ListFields()):
                # As .proto files have them, one by one.
                pairs += [(f"features.{item.name}", self._value(item, part)) for item, part in value.ListFields()]
                continue
            pairs += [(name, self._value(field, item)) for item in (value if field.is_repeated else [value])]
        if not self._with_extensions:
            pairs = [(name, value) for name, value in pairs if "(" not in name]
        return sorted(pairs, key=_option_name) if self._normalized else pairs

    def _resolve_extensions(self, options: Any) -> Any:
        if self._pool is None:
            return options
        try:
            descriptor = self._pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
        except KeyError:
            return options  # no extensions: the file does not import descriptor.proto
        resolved = message_factory.GetMessageClass(descriptor)()
        try:
            resolved.MergeFromString(options.SerializeToString())
        except DecodeError:
            # Only in descriptors: an extension has bytes that are not of its type.
            raise InvalidSchemaError(f"{options.DESCRIPTOR.name} of the descriptor are damaged") from None
        return resolved

    def _value(self, field: Any, value: Any) -> str:
        if field.message_type is not None:
            text = text_format.MessageToString(value, as_one_line=True, as_utf8=True, descriptor_pool=self._pool)
            return _format_aggregate(text)
        if field.enum_type is not None:
            constant = field.enum_type.values_by_number.get(value)
            return str(value) if constant is None else str(constant.name)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (str, bytes)):
            return f'"{escape_text(value.encode() if isinstance(value, str) else value)}"'
        return format_float(value) if isinstance(value, float) else str(value)

    def _option_lines(self, options: Any, indent: str) -> list[str]:
        return [f"{indent}option {name} = {value};" for name, value in self._options(options)]

    def _inline_options(self, pairs: Iterable[tuple[str, str]]) -> str:
        text = ", ".join(f"{name} = {value}" for name, value in pairs)
        return f" [{text}]" if text else ""

    # Types

    def _message_lines(self, message: Any, indent: str) -> list[str]:
        visibility = _VISIBILITIES[message.visibility]
        return [
            f"{indent}{visibility}message {message.name} {{",
            *self._body_lines(message, indent + "  "),
            f"{indent}}}",
        ]

    def _body_lines(self, message: Any, indent: str) -> list[str]:
        lines = self._option_lines(message.options, indent)
        lines += self._reserved_lines(message, indent, exclusive=1, largest=FIELD_NUMBER_MAX)
        for item in self._ranges(message.extension_range):
            text = _write_range(item.start, item.end - 1, FIELD_NUMBER_MAX)
            lines.append(f"{indent}extensions {text}{self._inline_options(self._options(item.options))};")
        entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
        groups = {_last(field.type_name) for field in [*message.field, *message.extension] if _is_group(field)}
        for block in self._blocks(message):
            oneof = message.oneof_decl[block[0].oneof_index] if _in_oneof(block[0]) else None
            inner = indent if oneof is None else indent + "  "
            field_lines = [line for field in block for line in self._field_lines(field, message, entries, inner)]
            if oneof is not None:
                options = self._option_lines(oneof.options, inner)
                field_lines = [f"{indent}oneof {oneof.name} {{", *options, *field_lines, f"{indent}}}"]
            lines += field_lines
        for nested in message.nested_type:
            if nested.name not in entries and nested.name not in groups:
                lines += self._message_lines(nested, indent)
        for enum in message.enum_type:
            lines += self._enum_lines(enum, indent)
        for section in self._extend_sections(message.extension, message.nested_type, indent):
            lines += section
        return lines

    def _blocks(self, message: Any) -> list[list[Any]]:
        """Return the fields as they are printed: one by one, or those of a oneof together."""
        blocks: dict[str, list[Any]] = {}
        for field in message.field:
            key = f"oneof {field.oneof_index}" if _in_oneof(field) else f"field {field.name}"
            blocks.setdefault(key, []).append(field)
        if not self._normalized:
            return list(blocks.values())
        return sorted((sorted(block, key=_number) for block in blocks.values()), key=_first_number)

    def _field_lines(self, field: Any, message: Any, entries: dict[str, Any], indent: str) -> Iterator[str]:
        entry = entries.get(_last(field.type_name)) if field.type_name else None
        options = self._inline_options(self._field_options(field))
        if entry is not None:
            key, value = (_write_type(part) for part in entry.field)
            yield f"{indent}map<{key}, {value}> {field.name} = {field.number}{options};"
            return
        label = self._label(field)
        if _is_group(field):
            name = _last(field.type_name)
            group = next(nested for nested in message.nested_type if nested.name == name)
            yield f"{indent}{label}group {name} = {field.number}{options} {{"
            yield from self._body_lines(group, indent + "  ")
            yield f"{indent}}}"
            return
        yield f"{indent}{label}{_write_type(field)} {field.name} = {field.number}{options};"

    def _label(self, field: Any) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if field.proto3_optional:
            return "optional "
        if self._syntax != "proto2" or field.HasField("oneof_index"):
            return ""
        return "required " if field.label == FieldDescriptorProto.LABEL_REQUIRED else "optional "

    def _field_options(self, field: Any) -> list[tuple[str, str]]:
        pairs = []
        if field.HasField("default_value"):
            value = field.default_value
            if field.type == FieldDescriptorProto.TYPE_STRING:
                value = f'"{escape_text(value.encode())}"'
            elif field.type == FieldDescriptorProto.TYPE_BYTES:
                value = f'"{value}"'  # stored with its escapes
            pairs.append(("default", value))
        if field.HasField("json_name") and field.json_name != json_name(field.name):
            pairs.append(("json_name", f'"{escape_text(field.json_name.encode())}"'))
        # These two are no options to descriptors and stand first, so that printing a printed text changes nothing.
        return pairs + self._options(field.options)

    def _enum_lines(self, enum: Any, indent: str) -> list[str]:
        inner = indent + "  "
        values = list(enum.value)
        if self._normalized:
            values[1:] = sorted(values[1:], key=_number)
        return [
            f"{indent}{_VISIBILITIES[enum.visibility]}enum {enum.name} {{",
            *self._option_lines(enum.options, inner),
            *self._reserved_lines(enum, inner, exclusive=0, largest=_INT32_MAX),
            *(
                f"{inner}{value.name} = {value.number}{self._inline_options(self._options(value.options))};"
                for value in values
            ),
            f"{indent}}}",
        ]

    def _reserved_lines(self, declared: Any, indent: str, *, exclusive: int, largest: int) -> list[str]:
        lines = []
        ranges = [(item.start, item.end - exclusive) for item in declared.reserved_range]
        if self._normalized:
            ranges = _merge(ranges)
        if ranges:
            numbers = ", ".join(_write_range(start, end, largest) for start, end in ranges)
            lines.append(f"{indent}reserved {numbers};")
        names = sorted(declared.reserved_name) if self._normalized else list(declared.reserved_name)
        if names:
            quote = "" if self._syntax == "editions" else '"'
            lines.append(f"{indent}reserved {', '.join(f'{quote}{name}{quote}' for name in names)};")
        return lines

    def _ranges(self, ranges: Any) -> list[Any]:
        if not self._normalized:
            return list(ranges)
        merged: list[Any] = []
        for item in sorted(ranges, key=_start):
            if merged and merged[-1].end == item.start and merged[-1].options == item.options:
                merged[-1].end = item.end
            else:
                copy = descriptor_pb2.DescriptorProto.ExtensionRange()
                copy.CopyFrom(item)
                merged.append(copy)
        return merged

    def _extend_sections(self, extensions: Any, messages: Any, indent: str) -> list[list[str]]:
        if not self._with_extensions:
            return []
        holder = descriptor_pb2.DescriptorProto(nested_type=messages)
        ordered = sorted(extensions, key=_extension) if self._normalized else extensions
        sections = []
        for extendee, fields in groupby(ordered, key=_extendee):
            lines = [line for field in fields for line in self._field_lines(field, holder, {}, indent + "  ")]
            sections.append([f"{indent}extend {extendee} {{", *lines, f"{indent}}}"])
        return sections

    def _service_lines(self, service: Any) -> list[str]:
        lines = [f"service {service.name} {{", *self._option_lines(service.options, "  ")]
        for method in service.method:
            arguments, results = (
                f"{'stream ' if streams else ''}{name}"
                for streams, name in (
                    (method.client_streaming, method.input_type),
                    (method.server_streaming, method.output_type),
                )
            )
            declaration = f"  rpc {method.name} ({arguments}) returns ({results})"
            options = self._option_lines(method.options, "    ")
            lines += [f"{declaration} {{", *options, "  }"] if options else [f"{declaration};"]
        return [*lines, "}"]


def _format_aggregate(text: str) -> str:
    """Return the value of an option in one spelling, whether it was written or printed from a message."""
    words = [token.text for token in split_tokens(text)[:-1]]
    formatted = "{"
    previous = ""
    for word in words:
        joined = word in ":,;./]" or previous in (".", "/", "[", "-")
        formatted += word if joined else f" {word}"
        previous = word
    return f"{formatted} }}"


def _write_type(field: Any) -> str:
    return str(field.type_name or _TYPE_NAMES[field.type])


def _write_range(start: int, end: int, largest: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end >= largest else end}"


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_group(field: Any) -> bool:
    return bool(field.type == FieldDescriptorProto.TYPE_GROUP)


def _in_oneof(field: Any) -> bool:
    """Whether a field is a member of a written oneof; `optional` of proto3 is a oneof only in descriptors."""
    return field.HasField("oneof_index") and not field.proto3_optional


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _option_name(pair: tuple[str, str]) -> str:
    return pair[0]


def _number(declared: Any) -> int:
    return int(declared.number)


def _first_number(block: list[Any]) -> int:
    return int(block[0].number)


def _start(item: Any) -> int:
    return int(item.start)


def _extendee(field: Any) -> str:
    return str(field.extendee)


def _extension(field: Any) -> tuple[str, int]:
    return field.extendee, field.number
