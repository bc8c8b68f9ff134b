"""Selection of the columns of a table that become keys, values, headers and timestamps, and their conversion. Pure.

Wrong names and types raise here, before a row is sent, with the column and a remedy.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client.extras import require_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

_DEFAULTS = ("key", "headers", "timestamp")
"""Roles whose column may be absent, if the argument is not set."""
_ALLOWED = {
    "key": "text or binary",
    "value": "text or binary",
    "timestamp": "a timestamp, a date, or milliseconds since 1970 as whole numbers",
    "headers": "list<struct<key: string, value: binary>> or map<string, binary>",
    "partition": "whole numbers",
}


def as_table(given: Any) -> pa.Table:
    """The argument as a table: any object with Arrow's C interface is accepted."""
    require_pyarrow()
    import pyarrow as pa  # noqa: PLC0415 - an optional extra

    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return pa.table(given)
    raise TypeError(
        f"send_arrow takes a pyarrow Table, RecordBatch or RecordBatchReader, or a DataFrame of pandas or polars,"
        f" not {type(given).__name__}; pyarrow.table(...) makes one of a dict of lists"
    )


class Chosen(NamedTuple):
    """The columns to send, by role."""

    roles: tuple[str, ...]
    names: tuple[str, ...]
    indexes: tuple[int, ...]
    forms: tuple[Callable[[Any], Any] | None, ...]
    """The conversion of a column into what the kernels read; None where none is needed."""
    folded: bool
    """Whether any is a dictionary."""

    def name(self, role: str) -> str | None:
        """The column for a role, where there is one."""
        return self.names[self.roles.index(role)] if role in self.roles else None


def chosen_columns(schema: pa.Schema, given: Mapping[str, object]) -> Chosen:
    """The columns that the arguments of `send_arrow` name.

    ValueError for a name that is not there, TypeError for a column of a type that cannot be sent.
    """
    for role, name in given.items():
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{role}={name!r}: write the name of a column, or None")
    return _choose_columns(schema, tuple(given.items()))


# Streams send thousands of small tables of one schema: the checks below cost more than encoding a small batch.
@functools.lru_cache(maxsize=64)
def _choose_columns(schema: pa.Schema, given: tuple[tuple[str, str | None], ...]) -> Chosen:
    import pyarrow as pa  # noqa: PLC0415

    columns: list[tuple[str, str, int, Callable[[Any], Any] | None]] = []
    folded = False
    for role, name in given:
        if name is None or (name == role and role in _DEFAULTS and name not in schema.names):
            continue
        index = _index(schema, role, name)
        kind = schema.field(index).type
        if not _ACCEPTS[role](_storage_type(kind)):
            must = f"column {name!r} is {kind}; for {role} it must be {_ALLOWED[role]}"
            raise TypeError(f"{must}: {_advice(role, kind)}")
        columns.append((role, name, index, None if pa.types.is_binary(kind) else _PLAIN[role]))
        folded |= pa.types.is_dictionary(_storage_type(kind))
    roles, names, indexes, forms = zip(*columns, strict=True) if columns else ((), (), (), ())
    if not {"key", "value", "headers"} & set(roles):
        raise ValueError("there is nothing to send: name a column for key, value or headers")
    return Chosen(roles, names, indexes, forms, folded)


def _index(schema: pa.Schema, role: str, name: str) -> int:
    indexes = schema.get_all_field_indices(name)
    if len(indexes) == 1:
        return int(indexes[0])
    if indexes:
        raise ValueError(f"there are {len(indexes)} columns {name!r}: rename all but the one for {role}")
    near = difflib.get_close_matches(name, schema.names, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"the table has {', '.join(map(repr, schema.names)) or 'none'}"
    none = "" if role == "partition" else f"; {role}=None sends none"
    raise ValueError(f"there is no column {name!r} for {role}: {hint} ({role}=... names the one to use{none})")


def _advice(role: str, kind: pa.DataType) -> str:
    import pyarrow as pa  # noqa: PLC0415

    if role not in ("key", "value"):
        return "cast it first"
    first = (
        "make text of it first, e.g. JSON" if pa.types.is_nested(kind) else "cast it first, e.g. to pyarrow.string()"
    )
    return f"{first}, or pass rows to send() with a {role}.serializer"


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """The storage type of an extension type, such as UUID or JSON."""
    import pyarrow as pa  # noqa: PLC0415

    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    plain = types.is_string(kind) or types.is_binary(kind) or types.is_null(kind)
    large = types.is_large_string(kind) or types.is_large_binary(kind)
    return plain or large or types.is_fixed_size_binary(kind) or _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _is_bytes_or_dictionary(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    return _is_bytes(kind.value_type if types.is_dictionary(kind) else kind)


def _is_moment(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_integer(kind) or types.is_null(kind))


def _is_whole(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    return bool(types.is_integer(kind))


def _is_headers(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    if types.is_null(kind):
        return True
    if types.is_map(kind):
        return _is_bytes(kind.key_type) and _is_bytes(kind.item_type)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    pair = kind.value_type
    if types.is_null(pair):
        return True
    parts = {"key", "value"}
    if not types.is_struct(pair) or parts - {pair.field(index).name for index in range(pair.num_fields)}:
        return False
    return all(_is_bytes(pair.field(part).type) for part in parts)


_ACCEPTS: dict[str, Callable[[Any], bool]] = {
    "key": _is_bytes_or_dictionary,
    "value": _is_bytes_or_dictionary,
    "timestamp": _is_moment,
    "headers": _is_headers,
    "partition": _is_whole,
}


# Conversion into what the kernels read


def plain(rows: pa.RecordBatch, chosen: Chosen) -> pa.RecordBatch:
    """The chosen columns under the names of their roles, in the form that the kernels read, except dictionaries.

    Those are decoded (`unfold`) when rows are sent: until then they may be much smaller.
    """
    import pyarrow as pa  # noqa: PLC0415

    columns = []
    for role, name, index, form in zip(chosen.roles, chosen.names, chosen.indexes, chosen.forms, strict=True):
        column = rows.column(index)
        if form is not None:
            if isinstance(column.type, pa.BaseExtensionType):
                column = column.storage
            try:
                column = form(column)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ValueError(f"column {name!r} cannot be sent as {role}: {error}") from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, chosen.roles)


def unfold(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Plain rows with dictionaries decoded."""
    import pyarrow as pa  # noqa: PLC0415

    columns = [
        plain_bytes(column.dictionary_decode()) if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def plain_bytes(column: pa.Array) -> pa.Array:
    """A column of binary with 32-bit offsets, from text, large, view and fixed-size types."""
    from pyarrow import binary, types  # noqa: PLC0415

    kind = column.type
    if types.is_string(kind):  # the same buffers: Arrow's text is UTF-8
        return column.view(binary())
    if types.is_binary(kind) or types.is_null(kind) or types.is_dictionary(kind):
        return column
    return column.cast(binary())


def _plain_moments(column: pa.Array) -> pa.Array:
    from pyarrow import int64, timestamp, types  # noqa: PLC0415

    if types.is_date(column.type):
        return column.cast(timestamp("ms"))
    # The kernel reads signed numbers; the cast raises for one above 2^63 - 1.
    return column.cast(int64()) if types.is_uint64(column.type) else column


def _plain_headers(column: pa.Array) -> pa.Array:
    """A list of (key, value) structs with 32-bit offsets."""
    import pyarrow as pa  # noqa: PLC0415

    kind = column.type
    if pa.types.is_null(kind):
        return column
    # A map has the layout of a list of structs: only the type changes, no bytes are copied.
    if pa.types.is_map(kind):
        pairs = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        buffers = column.buffers()[:2]
        return pa.Array.from_buffers(pa.list_(pairs.type), len(column), buffers, offset=column.offset, children=[pairs])
    if pa.types.is_null(kind.value_type):  # lists that are all empty, of unknown type
        if len(column.flatten()):
            raise pa.ArrowInvalid("a header is a key and a value, not null")
        return pa.nulls(len(column))
    return column if pa.types.is_list(kind) else column.cast(pa.list_(kind.value_type))


def _plain_numbers(column: pa.Array) -> pa.Array:
    from pyarrow import int32  # noqa: PLC0415

    return column.cast(int32())


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "key": plain_bytes,
    "value": plain_bytes,
    "timestamp": _plain_moments,
    "headers": _plain_headers,
    "partition": _plain_numbers,
}
