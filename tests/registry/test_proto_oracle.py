"""protoc and protobuf as oracles: the same descriptors, and what BACKWARD allows, the new schema parses."""

from pathlib import Path

import grpc_tools
import pytest
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2, variant_pb2
from google.protobuf import descriptor_pb2, message_factory
from grpc_tools import protoc
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from klamm.registry.schemas import check_compatibility, parse_schema
from klamm.registry.schemas.protobuf.linker import link, link_well_known
from klamm.registry.schemas.protobuf.parser import parse_proto
from klamm.registry.schemas.protobuf.printer import print_proto
from registry.test_proto_rules import PROTO2_RULES, RULES
from registry.test_proto_text import CANONICAL, EDITION, PROTO2, WRITTEN

INCLUDES = Path(grpc_tools.__file__).parent / "_proto"
KINDS = {kind for _, _, *both in [*RULES, *PROTO2_RULES] for kinds in both for kind in kinds}
TRICKY = """
syntax = "proto2";
package tricky.deep;
import "google/protobuf/descriptor.proto";
message Outer {
  optional .tricky.deep.Outer self = 1 [lazy = true];
  optional deep.Outer.Inner inner = 2;
  repeated group Items = 3 { required sint64 n = 0x10; optional string s = 017 [default = 'it''s'];}
  map<int64, Inner> snake_case_map = 4;
  oneof which { Inner.Kind kind = 5; group InOneof = 6 { optional bool b = 1; } }
  optional float f1 = 7 [default = 9e9]; optional double f2 = 8 [default = .5];
  optional double f3 = 9 [default = nan]; optional float f4 = 10 [default = 0.1];
  optional bytes raw = 11 [default = "\\xfe\\n\\101\\""]; optional uint64 big = 12 [default = 18446744073709551615];
  optional int32 __odd__name__ = 13; optional int32 x_1y = 14;
  message Inner { enum Kind { NONE = -1; ONE = 1; } extensions 10 to 20, 30 to max; reserved 2, 4 to 6; reserved "q"; }
  extend Inner { optional int32 nested_extension = 11; }
}
extend google.protobuf.FieldOptions { repeated string labels = 50000; optional Outer.Inner.Kind level = 50001; }
message Use { optional int32 a = 1 [(labels) = "x", (labels) = "y", (level) = ONE, deprecated = false]; }
service S {
  option deprecated = true;
  rpc A (stream Use) returns (.tricky.deep.Use) { option idempotency_level = IDEMPOTENT; }
  rpc B (Use) returns (Use);
}
"""


def compile_with_protoc(folder, files):
    out = folder / "out.pb"
    arguments = [f"-I{folder}", f"-I{INCLUDES}", "--retain_options", "--include_imports", f"--descriptor_set_out={out}"]
    assert protoc.main(["protoc", *arguments, *files]) == 0
    return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file}


def test_texts_have_the_descriptors_of_protoc(tmp_path):
    texts = {"a.proto": CANONICAL, "b.proto": PROTO2, "c.proto": EDITION, "d.proto": TRICKY}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / f"printed_{name}").write_text(parse_schema("PROTOBUF", text, {}, is_new=True).normalize().canonical)
    compiled = compile_with_protoc(tmp_path, texts)
    for name, text in texts.items():
        assert link(parse_proto(text), name, {}).proto == compiled[name]
    # Normalized texts are files to protoc, too.
    compile_with_protoc(tmp_path, [f"printed_{name}" for name in texts])


def test_the_files_of_protoc_have_its_descriptors(tmp_path):
    paths = sorted(str(path.relative_to(INCLUDES)) for path in INCLUDES.rglob("*.proto"))
    assert len(paths) > 10
    compiled = compile_with_protoc(tmp_path, paths)
    linked = {}

    def link_file(path):
        if path not in linked:
            parsed = parse_proto((INCLUDES / path).read_text())
            linked[path] = link(parsed, path, {name: link_file(name) for name in parsed.dependency})
        return linked[path]

    for path in paths:
        assert link_file(path).proto == compiled[path]
        printed = print_proto(linked[path].proto, linked[path].pool)
        assert link(parse_proto(printed), path, linked[path].imports).proto == compiled[path]


@pytest.mark.parametrize("module", [meta_pb2, decimal_pb2, variant_pb2])
def test_well_known_files_are_those_of_the_clients(module):
    descriptor = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(descriptor)
    proto = descriptor_pb2.FileDescriptorProto()
    proto.CopyFrom(link_well_known(descriptor.name).proto)
    nested = [message for outer in proto.message_type for message in outer.nested_type]
    for field in [*proto.extension, *(field for message in [*proto.message_type, *nested] for field in message.field)]:
        field.ClearField("json_name")
    assert proto == descriptor


def test_the_example_compiles(tmp_path):
    (tmp_path / "written.proto").write_text(WRITTEN)
    compiled = compile_with_protoc(tmp_path, ["written.proto"])["written.proto"]
    assert link(parse_proto(WRITTEN), "written.proto", {}).proto == compiled


TYPES = ("int32", "int64", "uint32", "bool", "sint32", "sint64", "string", "bytes", "fixed32", "sfixed32", "fixed64",
         "float", "double", "Kind", "Part", "map<string, int32>", "map<int32, Part>")  # fmt: skip
NUMBERS = st.integers(1, 6)
LABELS = {
    "proto2": ("optional", "repeated", "required"),
    "proto3": ("", "", "optional", "repeated"),
    "2023": ("", "implicit", "repeated", "required"),
}
"""By syntax or edition, whose labels are features."""
FEATURES = {"implicit": "IMPLICIT", "required": "LEGACY_REQUIRED"}


@st.composite
def files(draw, syntax):
    """A message by field number: (type, label, oneof)."""
    fields = {}
    for number in draw(st.sets(NUMBERS, max_size=5)):
        fields[number] = draw(one_field(syntax))
    return fields, draw(st.sampled_from(["int32", "string", "sint32"]))


def one_field(syntax):
    labels = LABELS[syntax]
    return st.tuples(st.sampled_from(TYPES), st.sampled_from(labels), st.sampled_from(["", "", "", "o", "p"]))


@st.composite
def file_pairs(draw):
    syntax = draw(st.sampled_from(sorted(LABELS)))
    fields, part = draw(files(syntax))
    changed = dict(fields)
    for _ in range(draw(st.integers(0, 2))):
        number = draw(NUMBERS)
        match draw(st.integers(0, 3)):
            case 0:
                changed.pop(number, None)
            case 1:
                changed[number] = draw(one_field(syntax))
            case 2 if number in changed:
                changed[number] = (draw(st.sampled_from(TYPES)), *changed[number][1:])
            case 3 if number in changed:
                changed[number] = (*changed[number][:2], draw(st.sampled_from(["", "o"])))
    new_part = draw(st.sampled_from([part, part, part, "int64", "bytes"]))
    return render(syntax, fields, part), render(syntax, changed, new_part)


def render(syntax, fields, part):
    lines, oneofs = [], {}
    for number, (kind, label, oneof) in sorted(fields.items()):
        if kind.startswith("map"):
            lines.append(f"{kind} f{number} = {number};")
        elif oneof:
            oneofs.setdefault(oneof, []).append(f"{kind} f{number} = {number};")
        elif syntax == "2023" and label in FEATURES:
            # Presence of messages is always explicit.
            is_explicit = kind == "Part" and label == "implicit"
            option = "" if is_explicit else f" [features.field_presence = {FEATURES[label]}]"
            lines.append(f"{kind} f{number} = {number}{option};")
        else:
            lines.append(f"{label} {kind} f{number} = {number};")
    lines += [f"oneof {name} {{ {' '.join(members)} }}" for name, members in oneofs.items()]
    label = "optional" if syntax == "proto2" else ""
    header = f'edition = "{syntax}";' if syntax == "2023" else f'syntax = "{syntax}";'
    return f"""{header} message M {{ {" ".join(lines)} }}
    message Part {{ {label} {part} x = 1; }} enum Kind {{ ZERO = 0; ONE = 1; TWO = 2; }}"""


def draw_scalar(data, field):
    if field.cpp_type == field.CPPTYPE_STRING:
        text = data.draw(st.text("abc", min_size=1, max_size=3))
        return text if field.type == field.TYPE_STRING else text.encode()
    if field.type == field.TYPE_BOOL:
        return True
    if field.enum_type is not None:
        return data.draw(st.integers(1, 2))
    return float(data.draw(st.integers(1, 100))) if field.cpp_type in (5, 6) else data.draw(st.integers(1, 100))


def fill(data, message):
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and data.draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            if value.message_type is None:
                getattr(message, field.name)[draw_scalar(data, key)] = draw_scalar(data, value)
            else:
                fill(data, getattr(message, field.name)[draw_scalar(data, key)])
        elif field.is_repeated:
            if field.message_type is not None:
                fill(data, getattr(message, field.name).add())
            else:
                getattr(message, field.name).append(draw_scalar(data, field))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(data, getattr(message, field.name))
        else:
            setattr(message, field.name, draw_scalar(data, field))
    return message


def message_class(parsed, name="M"):
    return message_factory.GetMessageClass(parsed.linked.pool.FindMessageTypeByName(name))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(file_pairs(), st.data())
def test_what_backward_allows_parses(pair, data):
    old, new = (parse_schema("PROTOBUF", text, {}, is_new=True) for text in pair)
    incompatibilities = check_compatibility(new, old, "BACKWARD")
    event("incompatible" if incompatibilities else "equal" if pair[0] == pair[1] else "compatible")
    assert {entry.kind for entry in incompatibilities} <= KINDS
    assert check_compatibility(new, new, "FULL") == []
    if incompatibilities:
        return
    written = fill(data, message_class(old)())
    read = message_class(new).FromString(written.SerializeToString())
    assert read.IsInitialized()
    readable = {field.number: field for field in read.DESCRIPTOR.fields}
    for field, value in written.ListFields():
        match = readable.get(field.number)
        # A number that became repeated without a label before or after is not read back (the rule has no label to see).
        if match is None or match.is_repeated != field.is_repeated:
            continue
        # Nor is a number that is no constant of an enum of proto2.
        if match.enum_type is not None and field.enum_type is None:
            continue
        assert bool(getattr(read, match.name)) or match.message_type is not None, (field.name, value)
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES) and not field.is_repeated:
            contents = [item.encode() if isinstance(item, str) else item for item in (value, getattr(read, match.name))]
            assert contents[0] == contents[1]
