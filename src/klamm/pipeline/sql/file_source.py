"""The rows of a source of files, each with its error; Spark notices new files by their names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from klamm.pipeline.sql.core import row_expressions
from klamm.pipeline.sql.core.column_types import quote_name
from klamm.pipeline.sql.core.graph import GraphNode
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.value_parsing import BROKEN, is_strict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def file_rows(spark: SparkSession, node: GraphNode) -> DataFrame:
    """Return rows of files with their errors; `_broken` is the text of a row that does not parse."""
    kind, columns = (node.option("file_format") or "json").lower(), node.create.columns
    options = {
        name.removeprefix("option."): expand(value.text, os.environ, name)
        for name, value in node.create.options.items()
        if name.startswith("option.")
    }
    # With options of its own the format is read by Spark alone: they may say that a row has several lines.
    if kind == "json" and not options and is_strict(node):
        return _json_lines(spark.readStream.text(node.option("path")).where("trim(value) <> ''"), node)
    reader = spark.readStream.format(kind).options(**options)
    is_text = kind in ("json", "csv")
    if is_text:
        # A row that does not parse becomes a row with its text, and the other rows of the file survive.
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", BROKEN)
    broken = f", {BROKEN} STRING" if is_text else ""
    frame = reader.schema(row_expressions.ddl(columns) + broken).load(node.option("path"))
    rows = frame.selectExpr(
        "*",
        "_metadata.file_path AS _file",
        "_metadata.file_modification_time AS _written",
        *(() if is_text else (f"cast(NULL AS STRING) AS {BROKEN}",)),
    )
    return rows.selectExpr("*", f"{row_expressions.row_error(node, kind)} AS {row_expressions.ERROR}")


def _json_lines(lines: DataFrame, node: GraphNode) -> DataFrame:
    """Return lines of JSON as rows with their errors, parsed as values of topics are."""
    rows = lines.selectExpr(
        "value",
        "_metadata.file_path AS _file",
        "_metadata.file_modification_time AS _written",
        f"{row_expressions.line_struct(node)} AS {row_expressions.PARSED}",
    )
    rows = rows.selectExpr("*", f"{row_expressions.line_error(node)} AS {row_expressions.ERROR}")
    fields = (
        f"{row_expressions.line_field(node, column)} AS {quote_name(column.name)}" for column in node.create.columns
    )
    broken = f"CASE WHEN {row_expressions.ERROR} IS NOT NULL THEN value END AS {BROKEN}"
    return rows.selectExpr(*fields, broken, "_file", "_written", row_expressions.ERROR)
