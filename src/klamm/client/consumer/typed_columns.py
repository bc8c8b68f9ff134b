"""Keys and values of tables as typed columns, by deserializers that read whole columns."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from klamm.client.errors import SerializationError
from klamm.client.serde import RecordContext, SupportsColumns
from klamm.client.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa  # type: ignore[import-untyped]


class TypedColumns:
    """The deserializers of a consumer that read columns."""

    def __init__(self, deserializers: Mapping[str, SupportsColumns]) -> None:
        self._deserializers = deserializers
        """By column: key, value."""

    @classmethod
    def of(cls, settings: Mapping[str, Any] | Any) -> TypedColumns | None:
        """Return the deserializers of a consumer's settings; None if none of them reads columns."""
        given = {part: settings[f"{part}.deserializer"] for part in ("key", "value")}
        readers = {part: reader for part, reader in given.items() if hasattr(reader, "deserialize_column")}
        return cls(readers) if readers else None

    async def convert(self, table: pa.RecordBatch) -> tuple[pa.RecordBatch, list[SerializationError]]:
        """Return the table with typed columns, and the errors of rows that cannot be read, in the order of rows.

        The rows are of one topic. They are read in a thread: a deserializer may wait for a schema.
        """
        if not table.num_rows:
            return table, []
        return await asyncio.to_thread(self._convert, table)

    def _convert(self, table: pa.RecordBatch) -> tuple[pa.RecordBatch, list[SerializationError]]:
        import pyarrow as pa  # noqa: PLC0415 - an extra

        errors: dict[int, SerializationError] = {}
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        topic = columns["topic"][0].as_py()
        for part, reader in self._deserializers.items():
            context = RecordContext(topic, part)
            columns[part], failed = reader.deserialize_column(context, table.column(part), table.column("headers"))
            for row, reason in failed.items():
                errors.setdefault(row, row_error(table, row, f"{part}.deserializer failed: {reason}"))
        typed = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return typed, [errors[row] for row in sorted(errors)]


def row_error(table: Any, row: int, reason: str) -> SerializationError:
    """Return the error of a row of a table, with its place, key and value."""
    topic, partition, offset, key, value = (
        table.column(name)[row].as_py() for name in ("topic", "partition", "offset", "key", "value")
    )
    where = TopicPartition(topic, partition)
    error = SerializationError(f"{where} offset {offset}: {reason}")
    error.key, error.value = key, value
    return error.locate(where, offset, offset + 1)


async def handle_row_error(error: SerializationError, on_error: Any) -> None:
    """Raise the error of a row, or return to skip the row, by on.error."""
    if on_error == "raise":
        raise error
    if on_error != "skip":
        outcome = on_error(error)
        if inspect.isawaitable(outcome):
            await outcome


def without_rows(table: Any, errors: list[SerializationError]) -> Any:
    """Return a table without the rows of errors."""
    if not errors:
        return table
    places = {(error.topic_partition, error.offset) for error in errors}
    rows = zip(
        table.column("topic").to_pylist(),
        table.column("partition").to_pylist(),
        table.column("offset").to_pylist(),
        strict=True,
    )
    return table.filter([(TopicPartition(topic, partition), offset) not in places for topic, partition, offset in rows])
