"""Every rule of Protobuf's table, both ways."""

import pytest

from klamm.registry.schemas import check_compatibility, parse_schema


def parse(text, references=None, *, syntax="proto3"):
    header = f'edition = "{syntax}";' if syntax.isdecimal() else f'syntax = "{syntax}";'
    return parse_schema("PROTOBUF", f"{header}\n{text}", references or {}, is_new=True)


def message(body, more=""):
    return f"message M {{ {body} }} {more}"


def kinds(new, old, level="BACKWARD"):
    return [entry.kind for entry in check_compatibility(new, old, level)]


RULES = [
    # new, old, kinds of BACKWARD, kinds of FORWARD
    ("package a; message M {}", "package a; message M {}", [], []),
    ("package a; message M {}", "package b; message M {}", ["PACKAGE_CHANGED"], ["PACKAGE_CHANGED"]),
    ("package a; message M {}", "message M {}", ["PACKAGE_CHANGED"], ["PACKAGE_CHANGED"]),
    ("message M {} message N {}", "message M {}", [], ["MESSAGE_REMOVED"]),
    (message("message I {}"), message(""), [], ["MESSAGE_REMOVED"]),
    ("message N {} message M {}", "message M {} message N {}", [], []),
    (message("", "enum E { A = 0; }"), message(""), [], []),
    (message("", "enum E { A = 0; B = 1; }"), message("", "enum E { A = 0; }"), [], []),
    (message("", "enum E { A = 0; B = 1; }"), message("", "enum E { A = 0; C = 1; }"), [], []),
    (message("", "service S { rpc R (M) returns (M); }"), message(""), [], []),
    # fields
    (message("int32 a = 1;"), message(""), [], []),
    (message("int32 a = 1;"), message("int32 b = 1;"), [], []),
    (message("int32 a = 1;"), message("int32 a = 2;"), [], []),
    # kinds of scalars
    (message("int64 a = 1;"), message("int32 a = 1;"), [], []),
    (message("uint32 a = 1;"), message("int64 a = 1;"), [], []),
    (message("bool a = 1;"), message("uint64 a = 1;"), [], []),
    (message("E a = 1;", "enum E { A = 0; }"), message("int32 a = 1;"), [], []),
    (message("E a = 1;", "enum E { A = 0; }"), message("F a = 1;", "enum F { B = 0; }"), [], []),
    (message("sint32 a = 1;"), message("sint64 a = 1;"), [], []),
    (message("string a = 1;"), message("bytes a = 1;"), [], []),
    (message("fixed32 a = 1;"), message("sfixed32 a = 1;"), [], []),
    (message("fixed64 a = 1;"), message("sfixed64 a = 1;"), [], []),
    *(
        (
            message(f"{new} a = 1;"),
            message(f"{old} a = 1;"),
            ["FIELD_SCALAR_KIND_CHANGED"],
            ["FIELD_SCALAR_KIND_CHANGED"],
        )
        for new, old in [
            ("int32", "sint32"),
            ("int32", "fixed32"),
            ("int64", "string"),
            ("fixed32", "fixed64"),
            ("float", "double"),
            ("float", "fixed32"),
            ("double", "sfixed64"),
            ("bytes", "int32"),
        ]
    ),
    # messages, maps
    (
        message("N a = 1;", "message N {}"),
        message("O a = 1;", "message N {} message O {}"),
        ["FIELD_NAMED_TYPE_CHANGED", "MESSAGE_REMOVED"],
        ["FIELD_NAMED_TYPE_CHANGED"],
    ),
    (
        message("N a = 1;", "message N { int32 b = 1; }"),
        message("N a = 1;", "message N { string b = 1; }"),
        ["FIELD_SCALAR_KIND_CHANGED"],
        ["FIELD_SCALAR_KIND_CHANGED"],
    ),
    (
        message("N a = 1; message N {}"),
        message("bytes a = 1; message N {}"),
        ["FIELD_KIND_CHANGED"],
        ["FIELD_KIND_CHANGED"],
    ),
    (message("map<string, int32> a = 1;"), message("map<string, int64> b = 1;"), [], []),
    (
        message("map<string, int32> a = 1;"),
        message("map<string, string> a = 1;"),
        ["FIELD_SCALAR_KIND_CHANGED"],
        ["FIELD_SCALAR_KIND_CHANGED"],
    ),
    (
        message("map<int32, int32> a = 1;"),
        message("map<string, int32> a = 1;"),
        ["FIELD_SCALAR_KIND_CHANGED"],
        ["FIELD_SCALAR_KIND_CHANGED"],
    ),
    (message("map<string, int32> a = 1;"), message("string a = 1;"), ["FIELD_KIND_CHANGED"], ["FIELD_KIND_CHANGED"]),
    (message("M a = 1;"), message("M a = 1; int32 b = 2;"), [], []),
    # labels
    (message("repeated string a = 1;"), message("optional string a = 1;"), [], []),
    (message("repeated M a = 1;"), message("M a = 1;"), [], []),
    (
        message("repeated int32 a = 1;"),
        message("optional int32 a = 1;"),
        ["FIELD_NUMERIC_LABEL_CHANGED"],
        ["FIELD_NUMERIC_LABEL_CHANGED"],
    ),
    (message("repeated int32 a = 1;"), message("int32 a = 1;"), [], []),
    (message("optional int32 a = 1;"), message("int32 a = 1;"), [], []),
    # oneofs
    (message("oneof o { int32 a = 1; }"), message(""), [], []),
    (message("oneof o { int32 a = 1; }"), message("int32 a = 1;"), [], []),
    (
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; }"),
        [],
        ["ONEOF_FIELD_REMOVED"],
    ),
    (
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("int32 a = 1; int32 b = 2;"),
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
        [],
    ),
    (
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; } int32 b = 2;"),
        ["FIELD_MOVED_TO_EXISTING_ONEOF"],
        [],
    ),
    (message("oneof p { int32 a = 1; int32 b = 2; }"), message("oneof o { int32 a = 1; int32 b = 2; }"), [], []),
    (
        message("oneof p { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; } oneof q { int32 b = 2; }"),
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
        [],
    ),
    # what does not matter
    (message("reserved 5; int32 a = 1 [deprecated = true];"), message("int32 a = 1;"), [], []),
]


@pytest.mark.parametrize(("new", "old", "backward", "forward"), RULES)
def test_rule(new, old, backward, forward):
    parsed_new, parsed_old = parse(new), parse(old)
    assert kinds(parsed_new, parsed_old) == backward
    assert kinds(parsed_new, parsed_old, "FORWARD") == forward
    assert kinds(parsed_new, parsed_new, "FULL") == []
    assert kinds(parsed_new.normalize(), parsed_new, "FULL") == []


PROTO2_RULES = [
    (message("required int32 a = 1;"), message(""), ["REQUIRED_FIELD_ADDED"], ["REQUIRED_FIELD_REMOVED"]),
    (message("required int32 a = 1;"), message("optional int32 a = 1;"), ["REQUIRED_FIELD_ADDED"], []),
    (message("required string a = 1;"), message("optional string a = 1;"), ["REQUIRED_FIELD_ADDED"], []),
    (message("required int32 a = 1;"), message("required int32 a = 1;"), [], []),
    (
        message("repeated int32 a = 1;"),
        message("required int32 a = 1;"),
        ["FIELD_NUMERIC_LABEL_CHANGED"],
        ["REQUIRED_FIELD_ADDED", "FIELD_NUMERIC_LABEL_CHANGED"],
    ),
    (
        message("optional group G = 1 { optional int32 b = 1; }"),
        message("optional G g = 1; message G { optional int32 b = 1; }"),
        ["FIELD_KIND_CHANGED"],
        ["FIELD_KIND_CHANGED"],
    ),
    (message("extensions 100 to 200;"), message(""), [], []),
]


@pytest.mark.parametrize(("new", "old", "backward", "forward"), PROTO2_RULES)
def test_rule_of_proto2(new, old, backward, forward):
    parsed_new, parsed_old = parse(new, syntax="proto2"), parse(old, syntax="proto2")
    assert kinds(parsed_new, parsed_old) == backward
    assert kinds(parsed_new, parsed_old, "FORWARD") == forward


def test_editions_have_features_for_labels():
    required = parse(message("int32 a = 1 [features.field_presence = LEGACY_REQUIRED];"), syntax="2023")
    plain = parse(message("int32 a = 1;"), syntax="2023")
    repeated = parse(message("repeated int32 a = 1;"), syntax="2023")
    assert kinds(required, plain) == ["REQUIRED_FIELD_ADDED"]
    assert kinds(plain, required) == []
    assert kinds(repeated, plain) == ["FIELD_NUMERIC_LABEL_CHANGED"]
    assert kinds(plain, parse(message("optional int32 a = 1;"), syntax="proto2"), "FULL") == []
    assert kinds(required, parse(message("required int32 a = 1;"), syntax="proto2"), "FULL") == []
    delimited = message("M m = 1 [features.message_encoding = DELIMITED];")
    assert kinds(parse(delimited, syntax="2023"), parse(message("M m = 1;"), syntax="2023")) == ["FIELD_KIND_CHANGED"]


def test_an_incompatibility_says_where():
    new, old = (parse(f"package a; message M {{ message N {{ {kind} x = 7; }} }}") for kind in ("int32", "string"))
    (changed,) = check_compatibility(new, old, "BACKWARD")
    assert changed.path == "#/M.N/7"
    assert "x" in changed.message


def test_imported_messages_are_compared():
    def user(body):
        address = parse(f"package a; message Address {{ {body} }}")
        return parse(
            'package a; import "address.proto"; message User { Address home = 1; }', {"address.proto": address}
        )

    assert kinds(user("string street = 1;"), user("string street = 1; string zip = 2;"), "FULL") == []
    assert kinds(user("string street = 1;"), user("int32 street = 1;")) == ["FIELD_SCALAR_KIND_CHANGED"]


def test_a_message_may_move_into_an_import():
    address = "message Address { string street = 1; }"
    together = parse(f"package a; {address} message User {{ Address home = 1; }}")
    apart = parse(
        'package a; import "address.proto"; message User { Address home = 1; }',
        {"address.proto": parse(f"package a; {address}")},
    )
    assert kinds(apart, together) == []
    assert kinds(together, apart) == []


def test_recursive_messages_are_compared():
    def tree(kind):
        return parse(f"message Tree {{ {kind} value = 1; repeated Tree children = 2; map<string, Tree> named = 3; }}")

    assert kinds(tree("int32"), tree("int64"), "FULL") == []
    assert kinds(tree("int32"), tree("string")) == ["FIELD_SCALAR_KIND_CHANGED"]


def test_many_messages_are_compared_once():
    def wide(kind):
        last = f"message N60 {{ {kind} a = 1; }}"
        levels = (
            f"message N{n} {{ {' '.join(f'N{n + 1} f{m} = {m};' for m in range(1, 9))} }}" for n in reversed(range(60))
        )
        return parse("\n".join([last, *levels]))

    assert kinds(wide("int32"), wide("int64"), "FULL") == []
    assert set(kinds(wide("int32"), wide("string"))) == {"FIELD_SCALAR_KIND_CHANGED"}
