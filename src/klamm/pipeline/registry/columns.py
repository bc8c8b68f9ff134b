"""`from_registry` and `to_registry`: columns of bytes to values and back, and records that cannot be decoded.

The schema that gives a column its type is looked up once, when the query is built. Tasks request from
the registry only schemas that records name and that are not in their process's cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, RegistrySettings, Schema, parse_settings, shared_registry
from klamm.registry.codecs.compilation import Decoder, SchemaCodec, compile_schema
from klamm.registry.framing import HEADERS, BadRecord, header, prefix
from klamm.registry.rules import WRITE, refuse_rules

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame

POLICIES: Final = ("fail", "dead_letter")
FRAMINGS: Final = ("prefix", "header")
LETTER: Final = "dead_letter."
"""The prefix of a dead letter's headers; `klamm pipeline dlq` reads them."""


def from_registry(
    column: Column | str,
    registry: str | Mapping[str, str],
    *,
    subject: str | None = None,
    schema_id: int | None = None,
    message: str | None = None,
    headers: Column | str | None = None,
    part: str = "value",
    bad: str = "fail",
) -> Column:
    """Decode bytes that name their schema, to the type of the newest schema of `subject` (or of `schema_id`).

    With `headers` the schema may also be named there, for the record's `part`. `bad="fail"` fails the query at a record
    that cannot be decoded; with "dead_letter" the column is a struct of `record` and `error`, one of them null, for
    `good_rows` and `dead_letters`. A null stays null.
    """
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra

    _check_choice("bad", bad, POLICIES)
    _check_choice("part", part, tuple(HEADERS))
    registry_settings = parse_settings(registry)
    schema = _reader_schema(shared_registry(registry_settings), subject, schema_id)
    arrow = compile_schema(shared_registry(registry_settings), schema, message).arrow
    keeps_errors = bad == "dead_letter"
    kind = from_arrow_type(arrow)
    if keeps_errors:
        from pyspark.sql.types import StringType, StructType  # noqa: PLC0415

        kind = StructType().add("record", kind).add("error", StringType())
    decode = _ColumnDecoder(registry_settings, schema, message, HEADERS[part], keeps_errors)
    columns = [column] if headers is None else [column, headers]
    return _function(decode, kind)(*columns)


def make_reader(
    registry: str | Mapping[str, str],
    *,
    subject: str,
    names: Sequence[str],
    message: str | None = None,
    part: str = "value",
    alone: str | None = None,
) -> Any:
    """Return `from_registry` over bytes and headers as a function to register with a session.

    It returns a struct of `record` and `error`; the record has these `names`, null where the schema has no such field.
    A value that is no record becomes the field `alone`. It is marked nondeterministic so that Spark's optimizer does
    not duplicate the call: it runs once per row.
    """
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql.types import StringType, StructType  # noqa: PLC0415

    registry_settings = parse_settings(registry)
    schema = shared_registry(registry_settings).latest(subject)
    arrow = select_fields(compile_schema(shared_registry(registry_settings), schema, message).arrow, names, alone)
    kind = StructType().add("record", from_arrow_type(arrow)).add("error", StringType())
    decode = _ColumnDecoder(
        registry_settings, schema, message, HEADERS[part], True, _FieldSelection(tuple(names), alone)
    )
    return _function(decode, kind).asNondeterministic()


def make_decoder(
    registry: str | Mapping[str, str],
    *,
    subject: str,
    names: Sequence[str],
    message: str | None = None,
    part: str = "value",
    alone: str | None = None,
) -> Callable[[pa.Array, pa.Array | None], pa.Array]:
    """Return what `make_reader` registers as a plain function of Arrow arrays, for readers without Spark."""
    registry_settings = parse_settings(registry)
    schema = shared_registry(registry_settings).latest(subject)
    selection = _FieldSelection(tuple(names), alone)
    return _ColumnDecoder(registry_settings, schema, message, HEADERS[part], True, selection)


class _FieldSelection(NamedTuple):
    """The fields of a record that a statement declares."""

    names: tuple[str, ...]
    alone: str | None


def select_fields(arrow: Any, names: Sequence[str], alone: str | None) -> Any:
    """Return the type of a record with these fields of a schema's type; names match in any case."""
    import pyarrow as pa  # noqa: PLC0415

    known = _fields(arrow, alone)
    # A declared column that the schema lacks is always null: its type does not matter.
    return pa.struct([(name, known.get(name.lower(), pa.string())) for name in names])


def _fields(arrow: Any, alone: str | None) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_struct(arrow):
        return {field.name.lower(): field.type for field in arrow}
    return {} if alone is None else {alone.lower(): arrow}


def make_writer(
    registry: str | Mapping[str, str],
    *,
    subject: str,
    message: str | None = None,
    framing: str = "prefix",
    alone: str | None = None,
    keeps_errors: bool = False,
) -> Any:
    """Return `to_registry` over a struct as a function to register; a schema that is no record gets column `alone`.

    With `keeps_errors` it returns a struct of value and error, so that a row that does not fit can go elsewhere.
    """
    _check_choice("framing", framing, FRAMINGS)
    registry_settings = parse_settings(registry)
    schema = shared_registry(registry_settings).latest(subject)
    refuse_rules(schema, WRITE)
    if framing == "prefix" and schema.id is None:
        raise ConfigError(f"the registry gives the schema of {subject} no id")
    import pyarrow as pa  # noqa: PLC0415

    is_single = not pa.types.is_struct(compile_schema(shared_registry(registry_settings), schema, message).arrow)
    if is_single and alone is None:
        raise ConfigError(f"the schema of {subject} is not a record, and there are several columns")
    column = alone if is_single else None
    encode = _ColumnEncoder(registry_settings, schema, message, framing == "prefix", column, keeps_errors)
    return _function(encode, "struct<value: binary, error: string>" if keeps_errors else "binary")


def to_registry(
    column: Column | str,
    registry: str | Mapping[str, str],
    *,
    subject: str,
    schema: str | None = None,
    kind: str = "AVRO",
    message: str | None = None,
    framing: str = "prefix",
) -> Column:
    """Encode values with the newest schema of `subject`; a `schema` (text, of `kind`) is registered first.

    `framing="header"` writes no prefix; `registry_header` makes the header for it. A null stays null, which deletes the
    key in a compacted topic. A value that does not fit the schema fails the query.
    """
    _check_choice("framing", framing, FRAMINGS)
    registry_settings = parse_settings(registry)
    registered = _writer_schema(shared_registry(registry_settings), subject, schema, kind)
    refuse_rules(registered, WRITE)
    # Compiled on the driver too: an invalid schema fails here, and not in a task.
    compile_schema(shared_registry(registry_settings), registered, message)
    if framing == "prefix" and registered.id is None:
        raise ConfigError(f"the registry gives the schema of {subject} no id")
    encode = _ColumnEncoder(registry_settings, registered, message, framing == "prefix")
    return _function(encode, "binary")(column)


def _function(work: Callable[..., Any], kind: Any) -> Any:
    """Return a Spark function over Arrow columns."""
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.functions import arrow_udf  # noqa: PLC0415

    def call(*columns):  # type: ignore[no-untyped-def] # noqa: ANN002, ANN202
        return work(*columns)

    # Spark chooses the kind of function by its type hints, and they must be types: this module's are strings.
    call.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    return arrow_udf(call, kind)


def registry_header(
    registry: str | Mapping[str, str], *, subject: str, message: str | None = None, part: str = "value"
) -> Column:
    """Return the header that names the newest schema of `subject`, for an array of headers."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    name, value = schema_header(registry, subject=subject, message=message, part=part)
    return f.struct(f.lit(name).alias("key"), f.lit(bytearray(value)).alias("value"))


def schema_header(
    registry: str | Mapping[str, str], *, subject: str, message: str | None = None, part: str = "value"
) -> tuple[str, bytes]:
    """Return name and value of that header."""
    _check_choice("part", part, tuple(HEADERS))
    client = shared_registry(parse_settings(registry))
    schema = client.latest(subject)
    if schema.guid is None:
        raise ConfigError(f"the registry gives the schema of {subject} no GUID, which headers need: use framing=prefix")
    return HEADERS[part], header(schema.guid) + (compile_schema(client, schema, message).path or b"")


def good_rows(rows: DataFrame, column: str) -> DataFrame:
    """Return the rows that were decoded, with the record itself in `column`."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return rows.where(f.col(f"{column}.error").isNull()).withColumn(column, f.col(f"{column}.record"))


def dead_letters(rows: DataFrame, column: str, topic: str) -> DataFrame:
    """Return the rows that were not decoded, as records for `topic`, with origin and error in headers.

    Key and value are unchanged; `column` is the stream's name in `klamm pipeline dlq`.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    broken = rows.where(f.col(f"{column}.error").isNotNull())

    def header_column(name: str, value: Column) -> Column:
        return f.struct(f.lit(LETTER + name).alias("key"), value.cast("string").cast("binary").alias("value"))

    letter_headers = f.array(
        header_column("stream", f.lit(column)),
        *(header_column(name, f.col(name)) for name in ("topic", "partition", "offset")),
        header_column("timestamp", f.unix_millis("timestamp")),
        header_column("error", f.col(f"{column}.error")),
    )
    if "headers" in rows.columns:
        # concat with a null array is null, and the record would lose all headers.
        letter_headers = f.concat(f.coalesce(f.col("headers"), f.array().cast(_HEADERS)), letter_headers.cast(_HEADERS))
    return broken.select(f.lit(topic).alias("topic"), "key", "value", letter_headers.cast(_HEADERS).alias("headers"))


_HEADERS = "array<struct<key:string,value:binary>>"


class _ColumnDecoder:
    """Decodes a column in a task. It is pickled as settings, and compiles the schema there at the first batch."""

    def __init__(
        self,
        registry_settings: RegistrySettings,
        schema: Schema,
        message: str | None,
        name: str,
        keeps_errors: bool,
        selection: _FieldSelection | None = None,
    ) -> None:
        self._given = (registry_settings, schema, message, name, keeps_errors, selection)
        self._ready: tuple[Decoder, Any] | None = None

    def __getstate__(self) -> Any:
        # Compiled schemas hold descriptors of C libraries, which cannot be pickled.
        return self._given

    def __setstate__(self, given: Any) -> None:
        self._given = given
        self._ready = None

    def __call__(self, values: pa.Array, headers: pa.Array | None = None) -> pa.Array:
        from klamm.registry.codecs.columns import decode_rows  # noqa: PLC0415 - pyarrow is an extra

        registry_settings, schema, message, name, keeps_errors, selection = self._given
        if self._ready is None:
            newest = compile_schema(shared_registry(registry_settings), schema, message)
            self._ready = Decoder(shared_registry(registry_settings), newest), newest.arrow
        decoder, arrow = self._ready
        records, errors = decode_rows(decoder.decode, values, headers, name)
        return _column(records, errors, arrow, keeps_errors, selection)


def _column(
    records: list[Any],
    errors: list[str | None],
    arrow: Any,
    keeps_errors: bool,
    selection: _FieldSelection | None = None,
) -> Any:
    """Return an Arrow column of values, or of values and errors."""
    import pyarrow as pa  # noqa: PLC0415

    from klamm.registry.codecs.columns import build_column  # noqa: PLC0415 - pyarrow is an extra

    column = build_column(records, errors, arrow)
    if not keeps_errors:
        for error in errors:
            if error is not None:
                raise BadRecord(error)
        return column
    if selection is not None:
        column = _select(column, selection)
    return pa.StructArray.from_arrays([column, pa.array(errors, pa.string())], names=["record", "error"])


def _select(values: Any, selection: _FieldSelection) -> Any:
    """Return the selected fields; a record that is null stays null."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    if pa.types.is_struct(values.type):
        fields = {field.name.lower(): part for field, part in zip(values.type, values.flatten(), strict=True)}
    else:
        fields = {} if selection.alone is None else {selection.alone.lower(): values}
    empty = pa.nulls(len(values), pa.string())
    return pa.StructArray.from_arrays(
        [fields.get(name.lower(), empty) for name in selection.names],
        names=list(selection.names),
        # Without the mask a null struct would become a struct of nulls.
        mask=pc.is_null(values),
    )


class _ColumnEncoder:
    """Encodes a column in a task, the counterpart of `_ColumnDecoder`."""

    def __init__(
        self,
        registry_settings: RegistrySettings,
        schema: Schema,
        message: str | None,
        prefixed: bool,
        alone: str | None = None,
        keeps_errors: bool = False,
    ) -> None:
        self._given = (registry_settings, schema, message, prefixed, alone, keeps_errors)
        self._ready: tuple[SchemaCodec, bytes] | None = None

    def __getstate__(self) -> Any:
        return self._given

    def __setstate__(self, given: Any) -> None:
        self._given = given
        self._ready = None

    def __call__(self, values: pa.Array) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415

        registry_settings, schema, message, prefixed, alone, keeps_errors = self._given
        if self._ready is None:
            codec = compile_schema(shared_registry(registry_settings), schema, message)
            first = prefix(schema.id or 0) + (codec.path or b"") if prefixed else b""
            self._ready = codec, first
        codec, first = self._ready
        if alone is not None:
            values = values.field(alone)
        unpack = _map_unpacker(values.type)
        rows = values.to_pylist() if unpack is None else map(unpack, values.to_pylist())
        if not keeps_errors:
            return pa.array([None if row is None else first + codec.encode(row) for row in rows], pa.binary())
        encoded = [_encode_or_error(codec, first, row) for row in rows]
        return pa.array(encoded, pa.struct([("value", pa.binary()), ("error", pa.string())]))


def _encode_or_error(codec: SchemaCodec, first: bytes, row: Any) -> dict[str, Any]:
    try:
        return {"value": None if row is None else first + codec.encode(row), "error": None}
    except BadRecord as problem:
        return {"value": None, "error": str(problem)}


def _map_unpacker(arrow: Any) -> Callable[[Any], Any] | None:
    """Return a function that turns Arrow's lists of pairs into dicts; None for a type without maps."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_struct(arrow):
        unpackers = {field.name: inner for field in arrow if (inner := _map_unpacker(field.type)) is not None}
        return functools.partial(_unpack_struct, unpackers) if unpackers else None
    if pa.types.is_map(arrow):
        return functools.partial(_unpack_map, _map_unpacker(arrow.item_type))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        inner = _map_unpacker(arrow.value_type)
        return None if inner is None else functools.partial(_unpack_list, inner)
    return None


def _unpack_struct(unpackers: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    return value and {**value, **{name: unpack(value[name]) for name, unpack in unpackers.items()}}


def _unpack_map(unpack: Callable[[Any], Any] | None, value: Any) -> Any:
    return None if value is None else {key: item if unpack is None else unpack(item) for key, item in value}


def _unpack_list(unpack: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else [unpack(item) for item in value]


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value}; there are {' and '.join(known)}")


def _reader_schema(registry: Registry, subject: str | None, schema_id: int | None) -> Schema:
    if (subject is None) == (schema_id is None):
        raise ConfigError("name either a subject or a schema_id: the schema defines the columns")
    return registry.latest(subject) if subject is not None else registry.schema(schema_id or 0)


def _writer_schema(registry: Registry, subject: str, text: str | None, kind: str) -> Schema:
    if text is not None:
        registry.register(subject, text, kind)
    return registry.latest(subject)
