"""Columns of Spark frames, in the spelling of declarations."""

from __future__ import annotations

from typing import Any

from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.statements import Column


def parse_expression(text: str) -> Any:
    """Return a Spark column of SQL text."""
    from pyspark.sql import functions  # noqa: PLC0415 - pyspark is an extra

    return functions.expr(text)


def columns_of(schema: Any) -> list[Column]:
    """Return the columns of a frame."""
    return [Column(field.name, spark_type(field.dataType), 0) for field in schema.fields]


def spark_type(kind: Any) -> str:
    """Return a Spark type in the spelling of declarations, with quoted field names."""
    name = kind.typeName()
    if name == "struct":
        return (
            f"STRUCT<{', '.join(f'{quote_name(field.name)}: {spark_type(field.dataType)}' for field in kind.fields)}>"
        )
    if name == "array":
        return f"ARRAY<{spark_type(kind.elementType)}>"
    if name == "map":
        return f"MAP<{spark_type(kind.keyType)}, {spark_type(kind.valueType)}>"
    return str(kind.simpleString()).upper()
