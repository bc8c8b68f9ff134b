"""Registers Spark functions for the formats of a schema registry; `row_expressions` calls them by name.

Schemas are looked up and decoded in Python; SQL sees a function from bytes to a struct, and one back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from klamm.model.errors import ConfigError, KlammError
from klamm.pipeline.sql import registry_schemas
from klamm.pipeline.sql.core import row_expressions
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem
from klamm.pipeline.sql.core.statements import Column
from klamm.pipeline.sql.registry_schemas import KEY, VALUE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RegistryFunctions:
    """The functions that one engine has registered with its session."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._made: set[tuple[str, str]] = set()
        self._headers: dict[str, list[tuple[str, bytes]]] = {}

    def register_readers(self, node: GraphNode, columns: Sequence[Column]) -> None:
        """Register the functions that decode a statement's records, once."""
        if not self._new(node, "read"):
            return
        names = [column.name for column in columns if column.metadata is None]
        try:
            if node.registered:
                self._register(row_expressions.value_reader(node), self._reader(node, VALUE, names))
            if node.key_registered:
                self._register(row_expressions.key_reader(node), self._reader(node, KEY, list(node.key)))
        except (ConfigError, KlammError) as error:
            raise self._problem_of(node, error) from None

    def register_writers(self, node: GraphNode, schema: Any) -> None:
        """Register the schemas of what a statement writes, and the functions that encode it, once."""
        if not self._new(node, "write"):
            return
        import pyarrow as pa  # type: ignore[import-untyped] # noqa: PLC0415 - both are extras
        from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415

        # The zone only marks timestamps as instants: schemas have one type for them.
        arrow = to_arrow_type(schema, timezone="UTC")
        fields = {field.name.lower(): field for field in arrow}
        try:
            if node.registered:
                self._writer(node, VALUE, arrow, [field.name for field in arrow])
            if node.key_registered:
                keys = [fields[column.lower()] for column in node.key]
                # Protobuf has no values but messages, so a single key is wrapped, too.
                single = len(keys) == 1 and registry_schemas.kind_of(node, KEY) != "PROTOBUF"
                self._writer(node, KEY, keys[0].type if single else pa.struct(keys), [key.name for key in keys])
        except (ConfigError, KlammError) as error:
            raise self._problem_of(node, error) from None

    def headers(self, node: GraphNode) -> list[tuple[str, bytes]]:
        """Return the constant headers of a statement's records: with framing = 'header' they name the schema."""
        return self._headers.get(node.name, [])

    def _new(self, node: GraphNode, what: str) -> bool:
        # Once per statement: a function that is registered again gets a new plan, and streams would not share it.
        if not (node.registered or node.key_registered) or (node.name, what) in self._made:
            return False
        self._made.add((node.name, what))
        return True

    def _reader(self, node: GraphNode, part: str, names: Sequence[str]) -> Any:
        from klamm.pipeline.registry.columns import make_reader  # noqa: PLC0415 - pyspark is an extra

        return make_reader(
            registry_schemas.registry_of(self._pipeline, node),
            subject=registry_schemas.subject_of(node, part),
            names=names,
            message=registry_schemas.message_of(node, part),
            part=part,
            alone=registry_schemas.lone_column(node, names, part),
        )

    def _writer(self, node: GraphNode, part: str, arrow: Any, names: Sequence[str]) -> None:
        from klamm.pipeline.registry.columns import make_writer, schema_header  # noqa: PLC0415 - pyspark is an extra

        registry_schemas.register(self._pipeline, node, part, arrow)
        registry, subject = registry_schemas.registry_of(self._pipeline, node), registry_schemas.subject_of(node, part)
        message, framing = registry_schemas.message_of(node, part), (node.option("framing") or "prefix").lower()
        make = functools.partial(
            make_writer,
            registry,
            subject=subject,
            message=message,
            framing=framing,
            alone=registry_schemas.lone_column(node, names, part),
        )
        self._register(
            row_expressions.value_writer(node) if part == VALUE else row_expressions.key_writer(node), make()
        )
        if part == VALUE and node.name in self._pipeline.refused_rows:
            self._register(row_expressions.checked_value_writer(node), make(keeps_errors=True))
        if framing == "header":
            header = schema_header(registry, subject=subject, message=message, part=part)
            self._headers.setdefault(node.name, []).append(header)

    def _register(self, name: str, function: Any) -> None:
        self._spark.udf.register(name, function)

    def _problem_of(self, node: GraphNode, error: Exception) -> SqlError:
        return SqlError(self._pipeline.source, [SqlProblem(node.create.offset, f"{node.name}: {error}")])
