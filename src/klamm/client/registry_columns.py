"""Values of a schema registry as typed columns, for `read_topic(value="registry")`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from klamm.client.consumer.typed_columns import TypedColumns, handle_row_error, without_rows
from klamm.client.json_columns import spread
from klamm.client.serde import SupportsColumns

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


def registry_reader(value: str | SupportsColumns, registry: str | Mapping[str, Any] | None) -> SupportsColumns | None:
    """Return the deserializer that the arguments of `read_topic` name; None for other forms of values."""
    if not isinstance(value, str):
        if not hasattr(value, "deserialize_column"):
            raise TypeError(f"value is a form, or a deserializer of a registry, not {value!r}")
        if registry is not None:
            raise ValueError("the deserializer has its registry; leave out registry")
        return value
    if value != "registry":
        if registry is not None:
            raise ValueError(f'registry is for value="registry", not value={value!r}')
        return None
    if registry is None:
        raise ValueError('value="registry" needs registry="http://127.0.0.1:8081", the address of the registry')
    # By name: the registry is a package above the client, as an extra is, and nothing else of the client needs it.
    reader: SupportsColumns = import_module("klamm.registry.serializers").RegistryDeserializer(registry)
    return reader


async def read_registry_values(table: pa.Table, reader: SupportsColumns, on_error: Any) -> pa.Table:
    """Return the same rows with the fields of values as columns; rows that cannot be read are left out by on.error."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    columns = TypedColumns({"value": reader})
    batches = []
    for batch in table.combine_chunks().to_batches():
        typed, errors = await columns.convert(batch)
        for error in errors:
            await handle_row_error(error, on_error)
        batches.append(without_rows(typed, errors))
    batches = [batch for batch in batches if batch.num_rows]
    if not batches:
        return table.slice(0, 0)
    typed_table = pa.Table.from_batches(batches)
    names = [name for name in typed_table.schema.names if name != "value"]
    place = typed_table.schema.get_field_index("value")
    fields: list[tuple[str, Any]] = [(name, typed_table[name]) for name in names]
    fields[place:place] = spread(typed_table["value"], set(names))
    return pa.table([column for _, column in fields], names=[name for name, _ in fields])
