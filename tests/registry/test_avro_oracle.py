"""Random pairs of Avro schemas, with fastavro as oracle: what BACKWARD allows, the new schema decodes."""

import io
import json

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from klamm.registry.schemas import check_compatibility, parse_schema

KINDS = {
    "TYPE_MISMATCH",
    "NAME_MISMATCH",
    "FIXED_SIZE_MISMATCH",
    "MISSING_ENUM_SYMBOLS",
    "MISSING_UNION_BRANCH",
    "READER_FIELD_MISSING_DEFAULT_VALUE",
}
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS = {
    "null": None,
    "boolean": True,
    "int": 7,
    "long": 7,
    "float": 0.5,
    "double": 0.5,
    "bytes": "x",
    "string": "x",
}


class Names:
    """Names of one schema: a name is defined once."""

    def __init__(self, draw):
        self.draw = draw
        self.count = 0

    def new(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"


def draw_type(draw, names, depth, inside):
    kinds = ["primitive"] * 3 + (["array", "map", "union", "record", "enum", "fixed"] if depth else [])
    kind = draw(st.sampled_from(kinds + (["recursion"] if inside else [])))
    if kind == "primitive":
        return draw(st.sampled_from(PRIMITIVES))
    if kind == "array":
        return {"type": "array", "items": draw_type(draw, names, depth - 1, inside)}
    if kind == "map":
        return {"type": "map", "values": draw_type(draw, names, depth - 1, inside)}
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
        default = {"default": symbols[0]} if draw(st.booleans()) else {}
        return {"type": "enum", "name": names.new("E"), "symbols": symbols, **default}
    if kind == "fixed":
        return {"type": "fixed", "name": names.new("F"), "size": draw(st.integers(1, 3))}
    if kind == "union":
        branches = [draw_type(draw, names, depth - 1, inside) for _ in range(draw(st.integers(1, 3)))]
        flat = [branch for branch in branches if not isinstance(branch, list)]
        return list({json.dumps(key(branch)): branch for branch in flat}.values()) or ["null"]
    if kind == "recursion":
        return ["null", draw(st.sampled_from(inside))]
    name = names.new("R")
    fields = [
        draw_field(draw, names, f"f{number}", depth - 1, [*inside, name]) for number in range(draw(st.integers(0, 3)))
    ]
    return {"type": "record", "name": name, "fields": fields}


def key(branch):
    """What may be in a union only once."""
    return branch if isinstance(branch, str) else branch.get("name", branch["type"])


def draw_field(draw, names, name, depth, inside):
    field_type = draw_type(draw, names, depth, inside)
    field = {"name": name, "type": field_type}
    first = field_type[0] if isinstance(field_type, list) else field_type
    if isinstance(first, str) and first in DEFAULTS and draw(st.booleans()):
        field["default"] = DEFAULTS[first]
    return field


def mutate(draw, node):
    """Return a schema with some of its parts changed."""
    changes = draw(st.integers(0, 9))
    if isinstance(node, list):
        branches = [mutate(draw, branch) for branch in node]
        branches = [branch for branch in branches if not isinstance(branch, list)]
        if changes == 0 and branches:
            branches.pop()
        if changes in (1, 2):
            branches.append(draw(st.sampled_from(PRIMITIVES)))
        return list({json.dumps(key(branch)): branch for branch in branches}.values()) or ["null"]
    if isinstance(node, str):
        if node not in PRIMITIVES or changes > 2:
            return node
        return [node, "null"] if changes == 0 and node != "null" else draw(st.sampled_from(PRIMITIVES))
    changed = dict(node)
    match node["type"]:
        case "array":
            changed["items"] = mutate(draw, node["items"])
        case "map":
            changed["values"] = mutate(draw, node["values"])
        case "enum" if changes < 3:
            changed["symbols"] = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
            changed.pop("default", None)
        case "fixed" if changes == 0:
            changed["size"] = node["size"] + 1
        case "record":
            fields = [mutate_field(draw, field) for field in node["fields"]]
            if changes == 0 and fields:
                fields.pop(0)
            if changes in (1, 2):
                fields.append({"name": "added", "type": "int"} | ({"default": 1} if changes == 1 else {}))
            changed["fields"] = fields
            if changes == 3:
                changed |= {"name": f"{node['name']}x"}
                if draw(st.booleans()):
                    changed["aliases"] = [node["name"]]
    return changed


def mutate_field(draw, field):
    changed = {"name": field["name"], "type": mutate(draw, field["type"])}
    first = changed["type"][0] if isinstance(changed["type"], list) else changed["type"]
    if isinstance(first, str) and first in DEFAULTS and draw(st.booleans()):
        changed["default"] = DEFAULTS[first]
    return changed


def draw_value(draw, node, named, depth=0, variant=0):
    """Draw a value; another variant has another branch and symbol of the same draws, and odd ones are never empty."""
    if isinstance(node, str) and node not in PRIMITIVES:
        node = named[node]
    if isinstance(node, list):
        # A union at depth is closed by null where it can, so that recursion ends.
        index = 0 if depth > 4 else (draw(st.integers(0, len(node) - 1)) + variant // 2) % len(node)
        return draw_value(draw, node[index], named, depth + 1, variant)
    match node if isinstance(node, str) else node["type"]:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "long":
            return draw(st.integers(-(2**63), 2**63 - 1))
        case "float" | "double":
            return draw(st.floats(width=32, allow_nan=False))
        case "bytes":
            return draw(st.text(max_size=3)).encode()  # bytes that are read as a string have to be UTF-8
        case "string":
            return draw(st.text(max_size=3))
        case "array":
            size = draw(st.integers(variant % 2, 2))
            return [draw_value(draw, node["items"], named, depth + 1, variant) for _ in range(size)]
        case "map":
            keys = draw(st.lists(st.text(max_size=2), min_size=variant % 2, max_size=2, unique=True))
            return {name: draw_value(draw, node["values"], named, depth + 1, variant) for name in keys}
        case "enum":
            symbols = node["symbols"]
            return symbols[(draw(st.integers(0, len(symbols) - 1)) + variant) % len(symbols)]
        case "fixed":
            return draw(st.binary(min_size=node["size"], max_size=node["size"]))
        case "record":
            return {item["name"]: draw_value(draw, item["type"], named, depth + 1, variant) for item in node["fields"]}
    raise AssertionError(node)


def collect_named(node, named):
    if isinstance(node, list):
        for branch in node:
            collect_named(branch, named)
    elif isinstance(node, dict):
        if "name" in node:
            named[node["name"]] = node
        for part in [field["type"] for field in node.get("fields", ())] + [node.get("items"), node.get("values")]:
            collect_named(part, named)
    return named


def rename_references(node, new_names):
    """Let references to types that a mutation renamed follow them."""
    if isinstance(node, str):
        return node if node in PRIMITIVES or node in new_names else f"{node}x"
    if isinstance(node, list):
        return [rename_references(branch, new_names) for branch in node]
    changed = dict(node)
    for part in ("items", "values"):
        if part in node:
            changed[part] = rename_references(node[part], new_names)
    if "fields" in node:
        changed["fields"] = [{**field, "type": rename_references(field["type"], new_names)} for field in node["fields"]]
    return changed


@st.composite
def schema_pairs(draw):
    old = draw_type(draw, Names(draw), 3, [])
    new = mutate(draw, old)
    return old, rename_references(new, collect_named(new, {}))


def read_fastavro(data, old, new):
    writer, reader = fastavro.parse_schema(old), fastavro.parse_schema(new)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, writer, data)
    buffer.seek(0)
    return fastavro.schemaless_reader(buffer, writer, reader)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema_pairs(), st.data())
def test_what_backward_allows_decodes(pair, data):
    old, new = pair
    parsed_old = parse_schema("AVRO", json.dumps(old), {}, is_new=True)
    parsed_new = parse_schema("AVRO", json.dumps(new), {}, is_new=True)
    incompatibilities = check_compatibility(parsed_new, parsed_old, "BACKWARD")
    event("incompatible" if incompatibilities else "compatible" if old != new else "equal")
    assert {entry.kind for entry in incompatibilities} <= KINDS
    if old == new:
        assert incompatibilities == []
    if not incompatibilities:
        value = draw_value(data.draw, old, collect_named(old, {}))
        # The canonical text is the same schema to another parser.
        read_fastavro(value, json.loads(parsed_old.canonical), json.loads(parsed_new.normalize().canonical))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema_pairs(), st.data())
def test_what_fastavro_cannot_decode_is_incompatible(pair, data):
    old, new = pair
    value = draw_value(data.draw, old, collect_named(old, {}))
    parsed_old, parsed_new = (parse_schema("AVRO", json.dumps(schema), {}, is_new=True) for schema in pair)
    try:
        read_fastavro(value, old, new)
    except (SchemaResolutionError, ValueError, KeyError, AttributeError):
        event("not decoded")
        assert check_compatibility(parsed_new, parsed_old, "BACKWARD")


@pytest.mark.parametrize("text", ["null", '"long"', '{"type":"array","items":["null","string"]}'])
def test_canonical_texts_are_schemas_to_fastavro(text):
    fastavro.parse_schema(json.loads(parse_schema("AVRO", text, {}, is_new=True).canonical))
