"""Makes the columns of a frame nullable before a table is created from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with nullable columns: a first batch without nulls must not forbid them for ever."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    return pa.schema([field.with_nullable(True) for field in schema])
