"""Columns of a frame as columns of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def nullable(schema: pa.Schema) -> pa.Schema:
    """A schema whose columns may all be null: what a table was made with binds every batch after it."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return pa.schema([each.with_nullable(True) for each in schema])
