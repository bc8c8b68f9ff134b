"""A stand-in for `klamm.registry.schemas`: records of fields, JSON throughout; a field added without default breaks."""

import json
from dataclasses import dataclass, field

SCHEMA_TYPES = ("JSON", "PROTOBUF", "AVRO")


class InvalidSchemaError(Exception):
    pass


@dataclass(frozen=True)
class SmallDifference:
    message: str

    def describe(self):
        return self.message


@dataclass(frozen=True)
class SmallEntity:
    entity_type: str
    entity_path: str


@dataclass(eq=False)
class SmallSchema:
    schema_type: str
    tree: object
    references: dict = field(default_factory=dict)

    @property
    def canonical(self):
        return json.dumps(self.tree, separators=(",", ":"))

    def normalize(self):
        return SmallSchema(self.schema_type, json.loads(json.dumps(self.tree, sort_keys=True)), self.references)

    def format(self, name):
        if name == "resolved":
            return json.dumps({**self.tree, "with": sorted(self.references)}, separators=(",", ":"))
        return self.canonical

    @property
    def meaning(self):
        return self.format("resolved") if self.references else self.canonical

    @property
    def linked_text(self):
        return self.canonical

    def tags(self):
        return {SmallEntity("sr_record", "R"): set(self.tree.get("confluent:tags", []))}

    def field_names(self):
        return [item["name"] for item in self.tree.get("fields", [])] if isinstance(self.tree, dict) else []

    def with_tags(self, add, remove):
        tags = {tag for tags in add.values() for tag in tags} - {tag for tags in remove.values() for tag in tags}
        return SmallSchema(self.schema_type, {**self.tree, "confluent:tags": sorted(tags)}, self.references)

    def fields(self):
        return {item["name"]: "default" in item for item in self.tree.get("fields", [])}


def parse_schema(schema_type, text, references, *, is_new):
    if schema_type not in ("AVRO", "JSON", "PROTOBUF"):
        raise InvalidSchemaError(f"unknown type {schema_type}")
    try:
        tree = json.loads(text)
    except ValueError:
        raise InvalidSchemaError(f"not JSON: {text}") from None
    if tree == {"bad": True} and is_new:
        raise InvalidSchemaError("bad")
    return SmallSchema(schema_type, tree, dict(references))


def reduce_spelling(schema_type, text):
    return None


def check_compatibility(new, old, level, policy):
    if level == "NONE":
        return []
    if new.schema_type != old.schema_type:
        return [SmallDifference("TYPE_CHANGED")]
    pairs = []
    if level.startswith(("BACKWARD", "FULL")):
        pairs.append((new, old))
    if level.startswith(("FORWARD", "FULL")):
        pairs.append((old, new))
    return [
        SmallDifference(f"READER_FIELD_MISSING_DEFAULT_VALUE {name}")
        for reader, writer in pairs
        for name, has_default in reader.fields().items()
        if not has_default and name not in writer.fields()
    ]
