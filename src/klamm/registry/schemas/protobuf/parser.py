"""The .proto text as a FileDescriptorProto: what is written, before names are resolved and options interpreted.

The grammars of proto2, proto3 and the editions 2023 and 2024 are one with small differences:

| | proto2 | proto3 | editions |
|---|---|---|---|
| label of a field | required | `optional` or none | `repeated` or none |
| groups | yes | no | no |
| reserved names | strings | strings | identifiers |

protoc of grpcio-tools parses the same text, but only from files and in 30 ms; it is the oracle of the tests instead.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2

from klamm.registry.schemas.protobuf.lexer import TokenStream
from klamm.registry.schemas.protobuf.literals import (
    camel_case,
    escape_bytes,
    format_float,
    format_single,
    read_float,
)
from klamm.registry.schemas.protobuf.options import DEPTH_MAX, parse_dotted, parse_option

DescriptorProto = descriptor_pb2.DescriptorProto
EnumDescriptorProto = descriptor_pb2.EnumDescriptorProto
FieldDescriptorProto = descriptor_pb2.FieldDescriptorProto
FileDescriptorProto = descriptor_pb2.FileDescriptorProto

FIELD_NUMBER_MAX = (1 << 29) - 1
_INT32_MAX = (1 << 31) - 1
SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
_LABELS = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
_EDITIONS = {"2023": descriptor_pb2.EDITION_2023, "2024": descriptor_pb2.EDITION_2024}
_BYTES = FieldDescriptorProto.TYPE_BYTES


def parse_proto(text: str) -> Any:
    """Return the file that a text declares; raise InvalidSchemaError if it has no valid syntax."""
    return _ProtoParser(text).parse_file()


class _ProtoParser:
    def __init__(self, text: str) -> None:
        self._tokens = TokenStream(text)
        self._file = FileDescriptorProto()
        self._syntax = "proto2"

    def parse_file(self) -> Any:
        tokens = self._tokens
        if tokens.at("syntax") or tokens.at("edition"):
            self._parse_syntax()
        while tokens.current.kind != "end":
            if tokens.accept(";"):
                continue
            match tokens.current.text:
                case "import":
                    self._parse_import()
                case "package":
                    self._parse_package()
                case "option":
                    self._parse_option_statement(self._file.options)
                case "service":
                    self._parse_service()
                case "extend":
                    self._parse_extend(self._file.extension, self._file.message_type, 0)
                case _:
                    self._parse_type(self._file.message_type, self._file.enum_type, 0)
        return self._file

    def _parse_syntax(self) -> None:
        tokens = self._tokens
        keyword = tokens.advance().text
        tokens.expect("=")
        if tokens.current.text.strip("\"'") not in (_EDITIONS if keyword == "edition" else ("proto2", "proto3")):
            tokens.refuse(f"expected a known {keyword}")
        value = tokens.text_string(keyword)
        tokens.expect(";")
        if keyword == "edition":
            self._syntax = self._file.syntax = "editions"
            self._file.edition = _EDITIONS[value]
        else:
            self._syntax = value
            if value == "proto3":  # proto2 is not written into descriptors
                self._file.syntax = value

    def _parse_import(self) -> None:
        tokens = self._tokens
        tokens.expect("import")
        modifier = tokens.advance().text if tokens.current.text in ("public", "weak", "option") else ""
        path = tokens.text_string("a path")
        tokens.expect(";")
        if path in self._file.dependency or path in self._file.option_dependency:
            tokens.refuse(f"{path} is imported twice")
        if modifier == "option":
            self._file.option_dependency.append(path)
            return
        if modifier == "public":
            self._file.public_dependency.append(len(self._file.dependency))
        elif modifier == "weak":
            self._file.weak_dependency.append(len(self._file.dependency))
        self._file.dependency.append(path)

    def _parse_package(self) -> None:
        if self._file.package:
            self._tokens.refuse("a file has one package")
        self._tokens.expect("package")
        self._file.package = parse_dotted(self._tokens, "a package")
        self._tokens.expect(";")

    def _parse_type(self, messages: Any, enums: Any, depth: int) -> bool:
        """Parse a message or an enum; return whether there was one (only inside of messages may there be none)."""
        tokens = self._tokens
        visibility = 0
        if tokens.current.text in ("export", "local") and tokens.peek().text in ("message", "enum"):
            if self._file.edition < descriptor_pb2.EDITION_2024:
                tokens.refuse("visibility needs edition 2024, expected message or enum")
            visibility = {"local": 1, "export": 2}[tokens.advance().text]
        # `message` may also be the type of a field: then no name follows it that is followed by a brace.
        if tokens.at("message") and tokens.peek().kind == "name":
            message = messages.add()
            self._parse_message(message, depth)
            if visibility:
                message.visibility = visibility
        elif tokens.at("enum") and tokens.peek().kind == "name":
            enum = enums.add()
            self._parse_enum(enum)
            if visibility:
                enum.visibility = visibility
        elif depth == 0:
            tokens.refuse("expected a statement")
        else:
            return False
        return True

    def _parse_message(self, message: Any, depth: int) -> None:
        self._tokens.expect("message")
        message.name = self._tokens.name("the name of a message")
        self._parse_body(message, depth + 1)

    def _parse_body(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        if depth > DEPTH_MAX:
            tokens.refuse(f"messages are nested deeper than {DEPTH_MAX} levels, expected no other one")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            following = tokens.peek()
            match tokens.current.text:
                case "option" if following.kind == "name" or following.text == "(":
                    self._parse_option_statement(message.options)
                case "extensions" if following.kind == "integer":
                    self._parse_extensions(message)
                case "reserved" if following.kind in ("integer", "string") or self._is_reserved_name():
                    self._parse_reserved(message, FIELD_NUMBER_MAX, exclusive=1)
                case "extend" if following.kind == "name" or following.text == ".":
                    self._parse_extend(message.extension, message.nested_type, depth)
                case "oneof" if following.kind == "name":
                    self._parse_oneof(message, depth)
                case _:
                    if not self._parse_type(message.nested_type, message.enum_type, depth):
                        self._parse_field(message.field.add(), message.nested_type, depth)
        self._add_synthetic_oneofs(message)
        if _is_message_set(message):
            for extension_range in message.extension_range:
                if extension_range.end > FIELD_NUMBER_MAX:
                    extension_range.end = _INT32_MAX

    def _is_reserved_name(self) -> bool:
        return self._syntax == "editions" and self._tokens.peek().kind == "name"

    def _add_synthetic_oneofs(self, message: Any) -> None:
        """Give each `optional` field of proto3 a oneof of its own, after the written ones, as protoc does."""
        names = {field.name for field in message.field} | {oneof.name for oneof in message.oneof_decl}
        for field in message.field:
            if field.proto3_optional:
                name = f"_{field.name}" if not field.name.startswith("_") else field.name
                while name in names:
                    name = f"X{name}"
                names.add(name)
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add().name = name

    def _parse_label(self, field: Any) -> bool:
        tokens = self._tokens
        label = tokens.current.text
        # A type may have the name of a label: then `=` or a dot follows its field's name or itself.
        if label not in _LABELS or tokens.peek().text == "=":
            return False
        if self._syntax == "editions" and label != "repeated":
            tokens.refuse("labels are features in editions, expected a type")
        if self._syntax == "proto3" and label == "required":
            tokens.refuse("proto3 has no required fields, expected a type")
        tokens.advance()
        field.label = _LABELS[label]
        return True

    def _parse_field(
        self, field: Any, nested: Any, depth: int, *, in_oneof: bool = False, in_extend: bool = False
    ) -> None:
        tokens = self._tokens
        labelled = False if in_oneof else self._parse_label(field)
        if not labelled:
            field.label = FieldDescriptorProto.LABEL_OPTIONAL
        elif self._syntax == "proto3" and field.label == FieldDescriptorProto.LABEL_OPTIONAL:
            field.proto3_optional = True
        if tokens.at("map") and tokens.peek().text == "<":
            if labelled or in_oneof or in_extend:
                tokens.refuse("a map has no label and is no member of a oneof or extension, expected another type")
            self._parse_map(field, nested)
            return
        if not labelled and not in_oneof and self._syntax == "proto2":
            tokens.refuse("expected required, optional or repeated")
        if tokens.at("group") and tokens.peek().kind == "name" and self._syntax == "proto2":
            self._parse_group(field, nested, depth)
            return
        self._parse_type_name(field)
        field.name = tokens.name("the name of a field")
        self._parse_field_end(field)
        tokens.expect(";")

    def _parse_type_name(self, field: Any) -> None:
        tokens = self._tokens
        if tokens.current.text in SCALARS and tokens.peek().text != ".":
            field.type = SCALARS[tokens.advance().text]
            return
        prefix = "." if tokens.accept(".") else ""
        field.type_name = prefix + parse_dotted(self._tokens, "a type")

    def _parse_field_end(self, field: Any) -> None:
        self._tokens.expect("=")
        field.number = self._parse_field_number()
        if self._tokens.at("["):
            self._parse_field_options(field)

    def _parse_field_number(self) -> int:
        number = self._tokens.integer("a field number")
        if not 0 < number <= FIELD_NUMBER_MAX:
            self._tokens.refuse(f"field number {number} is not in 1 to {FIELD_NUMBER_MAX}, expected another one")
        return number

    def _parse_group(self, field: Any, nested: Any, depth: int) -> None:
        tokens = self._tokens
        tokens.expect("group")
        group = nested.add()
        group.name = tokens.name("the name of a group")
        if not group.name[0].isupper():
            tokens.refuse("the name of a group begins with a capital letter, expected another name")
        field.name = group.name.lower()
        field.type = FieldDescriptorProto.TYPE_GROUP
        field.type_name = group.name
        self._parse_field_end(field)
        self._parse_body(group, depth + 1)

    def _parse_map(self, field: Any, nested: Any) -> None:
        tokens = self._tokens
        tokens.expect("map")
        tokens.expect("<")
        entry = DescriptorProto()
        entry.options.map_entry = True
        for number, name in ((1, "key"), (2, "value")):
            part = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            self._parse_type_name(part)
            tokens.expect("," if number == 1 else ">")
        field.label = FieldDescriptorProto.LABEL_REPEATED
        field.name = tokens.name("the name of a field")
        self._parse_field_end(field)
        tokens.expect(";")
        entry.name = f"{camel_case(field.name)}Entry"
        field.type_name = entry.name
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        nested.add().CopyFrom(entry)

    def _parse_oneof(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        tokens.expect("oneof")
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add()
        oneof.name = tokens.name("the name of a oneof")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            if tokens.at("option") and (tokens.peek().kind == "name" or tokens.peek().text == "("):
                self._parse_option_statement(oneof.options)
                continue
            if tokens.current.text in _LABELS and tokens.peek().text != "=":
                tokens.refuse("members of a oneof have no label, expected a type")
            field = message.field.add()
            field.oneof_index = index
            self._parse_field(field, message.nested_type, depth, in_oneof=True)

    def _parse_extend(self, extensions: Any, messages: Any, depth: int) -> None:
        tokens = self._tokens
        tokens.expect("extend")
        extendee = ("." if tokens.accept(".") else "") + parse_dotted(self._tokens, "a type")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            extension = extensions.add()
            extension.extendee = extendee
            self._parse_field(extension, messages, depth, in_extend=True)

    def _parse_extensions(self, message: Any) -> None:
        tokens = self._tokens
        tokens.expect("extensions")
        first = len(message.extension_range)
        while True:
            start, end = self._parse_range(FIELD_NUMBER_MAX)
            message.extension_range.add(start=start, end=end + 1)
            if not tokens.accept(","):
                break
        if tokens.at("["):
            options = descriptor_pb2.ExtensionRangeOptions()
            self._parse_options(options)
            for extension_range in message.extension_range[first:]:
                extension_range.options.CopyFrom(options)
        tokens.expect(";")

    def _parse_range(self, largest: int, *, signed: bool = False) -> tuple[int, int]:
        start = end = self._parse_signed() if signed else self._parse_field_number()
        if self._tokens.accept("to"):
            if self._tokens.accept("max"):
                end = largest
            else:
                end = self._parse_signed() if signed else self._parse_field_number()
        if end < start:
            self._tokens.refuse(f"the range {start} to {end} is empty, expected another one")
        return start, end

    def _parse_signed(self) -> int:
        sign = -1 if self._tokens.accept("-") else 1
        number = sign * self._tokens.integer("a number")
        if not -_INT32_MAX - 1 <= number <= _INT32_MAX:
            self._tokens.refuse(f"{number} is no 32-bit number, expected another one")
        return number

    def _parse_reserved(self, declared: Any, largest: int, *, exclusive: int, signed: bool = False) -> None:
        tokens = self._tokens
        tokens.expect("reserved")
        while True:
            if tokens.current.kind == "string" and self._syntax != "editions":
                declared.reserved_name.append(tokens.text_string("a name"))
            elif tokens.current.kind == "name" and self._syntax == "editions":
                declared.reserved_name.append(tokens.advance().text)
            else:
                start, end = self._parse_range(largest, signed=signed)
                declared.reserved_range.add(start=start, end=end + exclusive)
            if not tokens.accept(","):
                break
        tokens.expect(";")

    def _parse_enum(self, enum: Any) -> None:
        tokens = self._tokens
        tokens.expect("enum")
        enum.name = tokens.name("the name of an enum")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            following = tokens.peek()
            if tokens.at("option") and following.text != "=":
                self._parse_option_statement(enum.options)
            elif tokens.at("reserved") and following.text != "=":
                self._parse_reserved(enum, _INT32_MAX, exclusive=0, signed=True)
            else:
                value = enum.value.add()
                value.name = tokens.name("the name of a constant")
                tokens.expect("=")
                value.number = self._parse_signed()
                if tokens.at("["):
                    self._parse_options(value.options)
                tokens.expect(";")

    def _parse_service(self) -> None:
        tokens = self._tokens
        tokens.expect("service")
        service = self._file.service.add()
        service.name = tokens.name("the name of a service")
        tokens.expect("{")
        while not tokens.accept("}"):
            if tokens.accept(";"):
                continue
            if tokens.at("option"):
                self._parse_option_statement(service.options)
            else:
                self._parse_method(service.method.add())

    def _parse_method(self, method: Any) -> None:
        tokens = self._tokens
        tokens.expect("rpc")
        method.name = tokens.name("the name of a method")
        streams, method.input_type = self._parse_method_type()
        if streams:
            method.client_streaming = True
        tokens.expect("returns")
        streams, method.output_type = self._parse_method_type()
        if streams:
            method.server_streaming = True
        if tokens.accept(";"):
            return
        tokens.expect("{")
        while not tokens.accept("}"):
            if not tokens.accept(";"):
                self._parse_option_statement(method.options)
        # An empty body is a set of options, too: descriptors have it.
        method.options.SetInParent()

    def _parse_method_type(self) -> tuple[bool, str]:
        tokens = self._tokens
        tokens.expect("(")
        streams = tokens.at("stream") and (tokens.peek().kind == "name" or tokens.peek().text == ".")
        if streams:
            tokens.advance()
        prefix = "." if tokens.accept(".") else ""
        name = prefix + parse_dotted(self._tokens, "a type")
        tokens.expect(")")
        return streams, name

    def _parse_option_statement(self, options: Any) -> None:
        self._tokens.expect("option")
        parse_option(self._tokens, options.uninterpreted_option.add())
        self._tokens.expect(";")

    def _parse_options(self, options: Any) -> None:
        self._tokens.expect("[")
        while True:
            parse_option(self._tokens, options.uninterpreted_option.add())
            if not self._tokens.accept(","):
                break
        self._tokens.expect("]")

    def _parse_field_options(self, field: Any) -> None:
        tokens = self._tokens
        tokens.expect("[")
        while True:
            if tokens.at("default") and tokens.peek().text == "=":
                tokens.advance()
                tokens.expect("=")
                if self._syntax == "proto3" or field.HasField("default_value"):
                    tokens.refuse("no default, or only one, is allowed here, expected another option")
                field.default_value = self._parse_default(field)
            elif tokens.at("json_name") and tokens.peek().text == "=":
                tokens.advance()
                tokens.expect("=")
                field.json_name = tokens.text_string("a JSON name")
            else:
                parse_option(self._tokens, field.options.uninterpreted_option.add())
            if not tokens.accept(","):
                break
        tokens.expect("]")

    def _parse_default(self, field: Any) -> str:
        tokens = self._tokens
        if tokens.current.kind == "string":
            content = tokens.string("a default")
            return escape_bytes(content) if field.type == _BYTES else content.decode(errors="replace")
        sign = "-" if tokens.accept("-") else ""
        floating = field.type in (FieldDescriptorProto.TYPE_FLOAT, FieldDescriptorProto.TYPE_DOUBLE)
        if tokens.current.kind == "integer" and not floating:
            return f"{sign}{tokens.integer('a default')}"
        if tokens.current.kind in ("integer", "float"):
            value = read_float(tokens.advance().text)
            return sign + (
                format_single(value) if field.type == FieldDescriptorProto.TYPE_FLOAT else format_float(value)
            )
        return sign + tokens.name("a default")


def _is_message_set(message: Any) -> bool:
    return any(
        option.name[0].name_part == "message_set_wire_format" and option.identifier_value == "true"
        for option in message.options.uninterpreted_option
    )
