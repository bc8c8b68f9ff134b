"""Schemas of a registry, as statements name them: columns that were left out, subjects, what is registered on writing.

Asks the registry and nothing else: `klamm pipeline check` needs no Spark for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.model.errors import ConfigError, KlammError
from klamm.pipeline.registry.client import Registry, parse_settings, shared_registry
from klamm.pipeline.registry.codecs import compile_schema
from klamm.pipeline.sql.core.column_types import from_arrow
from klamm.pipeline.sql.core.graph import Node, Pipeline, check_columns
from klamm.pipeline.sql.core.problems import Problem, SqlError
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.statement_options import REGISTRY_SETTINGS
from klamm.pipeline.sql.core.statements import Column

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

KINDS: Final = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}
_OF_REGISTRY: Final = ("registry", "subject", "key_subject", "message", "schema", "framing")
VALUE: Final = "value"
KEY: Final = "key"


def registry_of(pipeline: Pipeline, node: Node, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where a statement's schemas are, and who asks, as serializers are told."""
    known = os.environ if environment is None else environment
    url = node.option("registry") or pipeline.settings.get("registry") or ""
    told = {setting: pipeline.settings.get(f"registry.{setting}") for setting in REGISTRY_SETTINGS}
    found = {"schema.registry.url": expand(url, known, "registry")}
    return {**found, **{each: expand(text, known, f"registry.{each}") for each, text in told.items() if text}}


def subject_of(node: Node, part: str = VALUE) -> str:
    """The subject of a statement's values or keys: what is said, or the topic's."""
    return node.option("subject" if part == VALUE else "key_subject") or f"{node.topic}-{part}"


def kind_of(node: Node, part: str = VALUE) -> str:
    """The kind of schema."""
    return KINDS[node.format if part == VALUE else node.key_format]


def message_of(node: Node, part: str = VALUE) -> str | None:
    """The message of a Protobuf file that values are."""
    return node.option("message") if part == VALUE else None


def lone_column(node: Node, names: Sequence[str], part: str = VALUE) -> str | None:
    """The column that is the whole value (or key) where a schema is no record; None when there are several."""
    keys = {each.lower() for each in node.key}
    found = [name for name in names if (name.lower() in keys) == (part == KEY)]
    return found[0] if len(found) == 1 else None


def arrow_type_of(pipeline: Pipeline, node: Node, part: str = VALUE) -> pa.DataType:
    """The type of values (or keys) by the newest schema; ConfigError when that is of another kind."""
    home = shared_registry(parse_settings(registry_of(pipeline, node)))
    subject = subject_of(node, part)
    newest = home.latest(subject)
    if newest.kind != kind_of(node, part):
        said = node.format if part == VALUE else node.key_format
        raise ConfigError(f"subject {subject} is {newest.kind.lower()}, not {said}")
    return compile_schema(home, newest, message_of(node, part)).arrow


def resolve(pipeline: Pipeline, *, declared: bool = False) -> Pipeline:
    """The pipeline with the columns that were left out; with `declared` those that were not are compared as well."""
    problems: list[Problem] = []
    nodes: list[Node] = []
    for node in pipeline.nodes:
        found = node
        if node.registered and not node.runs and (declared or not node.create.columns):
            try:
                if node.create.columns:
                    problems.extend(_compared(node, arrow_type_of(pipeline, node)))
                else:
                    found = replace(node, create=replace(node.create, columns=_columns(pipeline, node), resolved=True))
                    problems.extend(check_columns(found))
            except (ConfigError, KlammError) as error:
                problems.append(Problem(node.create.offset, str(error)))
        nodes.append(found)
    if problems:
        raise SqlError(pipeline.source, problems)
    return replace(pipeline, nodes=tuple(nodes))


def without_registry(pipeline: Pipeline) -> Pipeline:
    """The same rows without a registry, as JSON: for trying a pipeline where there is none."""
    nodes = []
    for node in pipeline.nodes:
        options = {name: each for name, each in node.create.options.items() if name not in _OF_REGISTRY}
        if node.registered:
            options.pop("format")
        if node.key_registered:
            options.pop("key_format")
        nodes.append(replace(node, create=replace(node.create, options=options)))
    return replace(pipeline, nodes=tuple(nodes))


def _columns(pipeline: Pipeline, node: Node) -> tuple[Column, ...]:
    import pyarrow as pa  # noqa: PLC0415

    arrow = arrow_type_of(pipeline, node)
    found: dict[str, str] = {}
    if node.key_registered:
        keys = arrow_type_of(pipeline, node, KEY)
        if pa.types.is_struct(keys):
            found |= {key.name: from_arrow(key.type) for key in keys}
        elif len(node.key) == 1:
            found[node.key[0]] = from_arrow(keys)
    if pa.types.is_struct(arrow):
        known = {each.lower() for each in found}
        found |= {each.name: from_arrow(each.type) for each in arrow if each.name.lower() not in known}
    else:
        found["value"] = from_arrow(arrow)
    return tuple(Column(name, kind, node.create.offset) for name, kind in found.items())


def _compared(node: Node, arrow: pa.DataType) -> Iterator[Problem]:
    """Whether declared columns are in the schema; a column of the key may be in the key alone."""
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_struct(arrow):
        names = [column.name for column in node.create.columns if column.metadata is None]
        if lone_column(node, names) is None:
            words = f"values of subject {subject_of(node)} are {from_arrow(arrow)}: declare one column beside the key"
            yield Problem(node.create.offset, words)
        return
    known = {each.name.lower(): from_arrow(each.type) for each in arrow}
    keys = {each.lower() for each in node.key}
    for column in node.create.columns:
        if column.metadata is not None:
            continue
        found = known.get(column.name.lower())
        if found is None and column.name.lower() not in keys:
            there = ", ".join(some.name for some in arrow)
            yield Problem(column.offset, f"subject {subject_of(node)} has no field {column.name}: it has {there}")
        elif found is not None and "<" in found + column.type and found.lower() != column.type.lower():
            yield Problem(column.offset, f"{column.name} is {found} in subject {subject_of(node)}")


def register(pipeline: Pipeline, node: Node, part: str, arrow: pa.DataType) -> None:
    """Make the schema of columns the newest of a subject, unless the statement takes what is there."""
    if (node.option("schema") or "derive").lower() == "latest":
        return
    from klamm.pipeline.core.derived_schemas import derive_schema  # noqa: PLC0415 - pyarrow is an extra

    home = shared_registry(parse_settings(registry_of(pipeline, node)))
    subject, kind = subject_of(node, part), kind_of(node, part)
    name = node.name if part == VALUE else f"{node.name}_key"
    home.register(subject, derive_schema(kind, name, arrow, _numbers(home, subject, kind)), kind)


def _numbers(home: Registry, subject: str, kind: str) -> dict[str, int]:
    """The numbers that fields of a Protobuf message have: they are what bytes are read by, so they stay."""
    if kind != "PROTOBUF":
        return {}
    try:
        newest = home.latest(subject)
    except ConfigError:
        return {}
    if newest.kind != kind:
        return {}
    codec: Any = compile_schema(home, newest)
    return dict(codec.numbers)
