"""Schemas of a registry as statements name them: their columns, their subjects, and what a statement registers.

Only the registry is needed: `klamm pipeline check` runs without Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError, KlammError
from klamm.pipeline.sql.core.column_checks import check_columns
from klamm.pipeline.sql.core.column_types import from_arrow
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.statement_options import REGISTRY_SETTINGS
from klamm.pipeline.sql.core.statements import Column
from klamm.registry.client import Registry, parse_settings, shared_registry
from klamm.registry.codecs.compilation import compile_schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

KINDS: Final = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}
_REGISTRY_OPTIONS: Final = ("registry", "subject", "key_subject", "message", "schema", "framing")
VALUE: Final = "value"
KEY: Final = "key"


def registry_of(pipeline: Pipeline, node: GraphNode, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return address and credentials of a statement's registry, as the settings of Confluent's serializers."""
    variables = os.environ if environment is None else environment
    url = node.option("registry") or pipeline.settings.get("registry") or ""
    credentials = {setting: pipeline.settings.get(f"registry.{setting}") for setting in REGISTRY_SETTINGS}
    address = {"schema.registry.url": expand(url, variables, "registry")}
    expanded = {name: expand(text, variables, f"registry.{name}") for name, text in credentials.items() if text}
    return {**address, **expanded}


def subject_of(node: GraphNode, part: str = VALUE) -> str:
    """Return the subject of a statement's values or keys: the option, or `<topic>-value`."""
    return node.option("subject" if part == VALUE else "key_subject") or f"{node.topic}-{part}"


def kind_of(node: GraphNode, part: str = VALUE) -> str:
    """Return the kind of schema, as the registry names it."""
    return KINDS[node.format if part == VALUE else node.key_format]


def message_of(node: GraphNode, part: str = VALUE) -> str | None:
    """Return the message of a Protobuf file that values are."""
    return node.option("message") if part == VALUE else None


def lone_column(node: GraphNode, names: Sequence[str], part: str = VALUE) -> str | None:
    """Return the column that is the value (or key) of a schema that is no record; None when there are several."""
    keys = {column.lower() for column in node.key}
    candidates = [name for name in names if (name.lower() in keys) == (part == KEY)]
    return candidates[0] if len(candidates) == 1 else None


def arrow_type_of(pipeline: Pipeline, node: GraphNode, part: str = VALUE) -> pa.DataType:
    """Return the type of values (or keys) by the newest schema; ConfigError when that is of another kind."""
    registry = shared_registry(parse_settings(registry_of(pipeline, node)))
    subject = subject_of(node, part)
    newest = registry.latest(subject)
    if newest.kind != kind_of(node, part):
        declared = node.format if part == VALUE else node.key_format
        raise ConfigError(f"subject {subject} is {newest.kind.lower()}, not {declared}")
    return compile_schema(registry, newest, message_of(node, part)).arrow


def resolve(pipeline: Pipeline, *, declared: bool = False) -> Pipeline:
    """Return the pipeline with omitted columns filled in; with `declared` the others are compared with the schema."""
    problems: list[SqlProblem] = []
    nodes: list[GraphNode] = []
    for node in pipeline.nodes:
        resolved = node
        # A statement that runs derives its schema from its SELECT.
        if node.registered and not node.runs and (declared or not node.create.columns):
            try:
                if node.create.columns:
                    problems.extend(_compare_columns(node, arrow_type_of(pipeline, node)))
                else:
                    resolved = replace(
                        node, create=replace(node.create, columns=columns_of_registry(pipeline, node), resolved=True)
                    )
                    problems.extend(check_columns(resolved))
            except (ConfigError, KlammError) as error:
                problems.append(SqlProblem(node.create.offset, str(error)))
        nodes.append(resolved)
    if problems:
        raise SqlError(pipeline.source, problems)
    return replace(pipeline, nodes=tuple(nodes))


def without_registry(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with JSON in place of registry formats, for tests without a registry."""
    nodes = []
    for node in pipeline.nodes:
        options = {name: value for name, value in node.create.options.items() if name not in _REGISTRY_OPTIONS}
        if node.registered:
            options.pop("format")
        if node.key_registered:
            options.pop("key_format")
        nodes.append(replace(node, create=replace(node.create, options=options)))
    return replace(pipeline, nodes=tuple(nodes))


def columns_of_registry(pipeline: Pipeline, node: GraphNode) -> tuple[Column, ...]:
    """Return the columns of a statement by the newest schemas of its values and keys."""
    import pyarrow as pa  # noqa: PLC0415

    arrow = arrow_type_of(pipeline, node)
    types: dict[str, str] = {}
    if node.key_registered:
        keys = arrow_type_of(pipeline, node, KEY)
        if pa.types.is_struct(keys):
            types |= {key.name: from_arrow(key.type) for key in keys}
        elif len(node.key) == 1:
            types[node.key[0]] = from_arrow(keys)
    if pa.types.is_struct(arrow):
        key_names = {name.lower() for name in types}
        types |= {field.name: from_arrow(field.type) for field in arrow if field.name.lower() not in key_names}
    else:
        types["value"] = from_arrow(arrow)
    return tuple(Column(name, kind, node.create.offset) for name, kind in types.items())


def _compare_columns(node: GraphNode, arrow: pa.DataType) -> Iterator[SqlProblem]:
    """Yield the declared columns that the schema does not have; a column of the key may be in the key only."""
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_struct(arrow):
        names = [column.name for column in node.create.columns if column.metadata is None]
        if lone_column(node, names) is None:
            message = f"values of subject {subject_of(node)} are {from_arrow(arrow)}: declare one column beside the key"
            yield SqlProblem(node.create.offset, message)
        return
    types = {field.name.lower(): from_arrow(field.type) for field in arrow}
    keys = {column.lower() for column in node.key}
    for column in node.create.columns:
        if column.metadata is not None:
            continue
        type_ = types.get(column.name.lower())
        if type_ is None and column.name.lower() not in keys:
            fields = ", ".join(field.name for field in arrow)
            yield SqlProblem(column.offset, f"subject {subject_of(node)} has no field {column.name}: it has {fields}")
        # Simple types are cast by name; nested ones by position, so they have to match.
        elif type_ is not None and "<" in type_ + column.type and type_.lower() != column.type.lower():
            yield SqlProblem(column.offset, f"{column.name} is {type_} in subject {subject_of(node)}")


def register(pipeline: Pipeline, node: GraphNode, part: str, arrow: pa.DataType) -> None:
    """Register the schema of columns as the newest of a subject, unless schema = 'latest' takes the existing one."""
    if (node.option("schema") or "derive").lower() == "latest":
        return
    from klamm.pipeline.core.derived_schemas import derive_schema  # noqa: PLC0415 - pyarrow is an extra

    registry = shared_registry(parse_settings(registry_of(pipeline, node)))
    subject, kind = subject_of(node, part), kind_of(node, part)
    name = node.name if part == VALUE else f"{node.name}_key"
    registry.register(subject, derive_schema(kind, name, arrow, _field_numbers(registry, subject, kind)), kind)


def _field_numbers(registry: Registry, subject: str, kind: str) -> dict[str, int]:
    """Return the field numbers of the newest Protobuf message: bytes are read by number, so fields keep them."""
    # Avro and JSON Schema match fields by name.
    if kind != "PROTOBUF":
        return {}
    try:
        newest = registry.latest(subject)
    except ConfigError:  # a new subject: no numbers to keep
        return {}
    if newest.kind != kind:
        return {}
    codec: Any = compile_schema(registry, newest)
    return dict(codec.numbers)
